//! Shared memory with a name: a file in memory, or a System V segment.
//!
//! It is shared memory of the machine, one for all that maps it. It stays until the recording tells that it
//! has ended; in recordings before version 13, which do not, until the end.
//!
//! What `write` or `fallocate` brought in comes by no touch. A call that maps the file tells how many pages
//! it has, not which. Linux maps the pages around one that is read, as far as they are there: so they come in
//! with such a touch, as many as the file has more than the machine.

use super::known_file::{HostFile, Nowhere};
use crate::space::HostSpace;
use quire_arch::{PAGE_SHIFT, PAGE_SIZE};
use quire_trace::event::{FileChange, HeldInMemory};
use std::ops::Range;
use std::rc::Rc;

/// Shared memory of the machine that has a name.
#[derive(Debug)]
pub(super) struct SharedFile<'m> {
    opening: Rc<HostFile<'m>>,
    /// What it had when it was mapped last, less what was punched out since. `None`: not known.
    held: Option<HeldInMemory>,
}

impl<'m> SharedFile<'m> {
    pub(super) fn new(file: HostFile<'m>) -> Self {
        Self { opening: Rc::new(file), held: None }
    }

    /// What is mapped for it.
    pub(super) fn opening(&self) -> &Rc<HostFile<'m>> {
        &self.opening
    }

    /// Its size in pages.
    pub(super) fn pages(&self) -> u64 {
        self.opening.size().div_ceil(PAGE_SIZE)
    }

    /// A call maps it, and it has so many bytes and such pages.
    pub(super) fn note_mapped(&mut self, bytes: u64, held: Option<HeldInMemory>) {
        self.set_size(bytes);
        if let Some(held) = held {
            // It is the programs' once they have changed it.
            let changed = held.changed || self.held.is_some_and(|before| before.changed);
            self.held = Some(HeldInMemory { changed, ..held });
        }
    }

    /// A call changed it.
    pub(super) fn change(&mut self, change: &FileChange) {
        match change {
            FileChange::Size { bytes, .. } => self.set_size(*bytes),
            FileChange::Punched(bytes) => {
                let before = self.opening.figures();
                // Without memory for what is left of a page at an edge it stays, as at the end of a file.
                let _ = self.opening.punch(bytes.clone(), |_| Ok(()));
                let after = self.opening.figures();
                let pages = (before.cached + before.swapped).saturating_sub(after.cached + after.swapped);
                self.removed(pages);
            }
            // It has no other pages than its own.
            FileChange::Cached(_) | FileChange::Evicted(_) | FileChange::Gone => {}
        }
    }

    fn set_size(&self, bytes: u64) {
        if bytes != self.opening.size() {
            // Without memory for the page at the new end it keeps its size, and ends at a later touch.
            let _ = self.opening.set_size(bytes);
        }
    }

    /// Linux has these pages of it, so that it does not end before.
    pub(super) fn grow_to(&self, end: u64) {
        if end > self.pages() {
            self.set_size(end.saturating_mul(PAGE_SIZE));
        }
    }

    /// Linux found no such page: the file ends before.
    pub(super) fn cut_at(&self, page: u64) {
        if page < self.pages() {
            self.set_size(page.saturating_mul(PAGE_SIZE));
        }
    }

    /// Pages that Linux had of it and no touch brought in.
    fn unplaced(&self) -> u64 {
        let Some(held) = self.held else { return 0 };
        let figures = self.opening.figures();
        (held.bytes >> PAGE_SHIFT).saturating_sub(figures.cached + figures.swapped)
    }

    /// Of these, those that may be the programs': of a file that changed since the recording began.
    pub(super) fn unplaced_of_programs(&self) -> u64 {
        if self.held.is_some_and(|held| held.changed) { self.unplaced() } else { 0 }
    }

    /// Its pages in RAM and on swap devices, if nothing that is known keeps them: a file that was there
    /// before is another's.
    pub(super) fn pages_that_may_be_gone(&self) -> u64 {
        let figures = self.opening.figures();
        if self.opening.is_mapped() || self.held.is_some_and(|held| !held.changed) {
            return 0;
        }
        figures.cached + figures.swapped + self.unplaced()
    }

    /// What a mapping of so many pages can have of it beside what touches brought in.
    pub(super) fn unplaced_within(&self, pages: u64) -> u64 {
        self.unplaced().min(pages)
    }

    /// The program in `space` reads `page`, and Linux maps what is there of `around`: brings that in.
    pub(super) fn read(&self, space: &HostSpace<'_>, page: u64, around: Range<u64>) {
        // Of old recordings it is not known what there is: all.
        let mut left = if self.held.is_none() { u64::MAX } else { self.unplaced() };
        for other in around.start..around.end.min(self.pages()) {
            if left == 0 {
                return;
            }
            if other == page {
                continue;
            }
            let before = self.opening.figures().cached;
            // What there is no memory for stays out.
            let _ = space.files().write(&self.opening, other * PAGE_SIZE, &mut Nowhere(1));
            left -= u64::from(self.opening.figures().cached > before);
        }
    }

    /// A program has made a hole of so many pages.
    pub(super) fn removed(&mut self, pages: u64) {
        if let Some(held) = &mut self.held {
            held.bytes = held.bytes.saturating_sub(pages << PAGE_SHIFT);
        }
    }
}

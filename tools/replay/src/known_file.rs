//! A file whose size is recorded: a file of the machine that has no bytes.
//!
//! What Linux had in its page cache is followed, and brought into that of the machine where a touch needs it:
//! pages that nothing touches take nothing.

use super::page_set::PageSet;
use crate::space::HostSpace;
use quire_arch::PAGE_SIZE;
use quire_host::HostPlatform;
use quire_mm::file::{
    DeviceMemory, Direction, File, FileBacking, FileError, FileIo, IoLimits, PageBytes, Submitted,
    Transferred, UserCopy, Wait,
};
use quire_trace::event::{FileChange, IndexRun};
use std::ops::Range;
use std::rc::Rc;

/// An open file on the machine of a replay.
pub(super) type HostFile<'m> = File<'m, HostPlatform>;

/// Where a file without bytes is stored: what is read is zeros, and what is written is lost.
#[derive(Debug)]
pub(super) struct NoBytes;

impl FileBacking<HostPlatform> for NoBytes {
    unsafe fn submit(
        &self,
        _memory: DeviceMemory<'_, HostPlatform>,
        io: &FileIo<'_>,
    ) -> Submitted<Transferred, FileError> {
        Submitted::Done(Ok(match io.direction {
            Direction::Read => Transferred::Zeros,
            Direction::Write => Transferred::All,
        }))
    }

    fn limits(&self) -> IoLimits {
        // Linux's file systems for disks allow holes. What Linux has read ahead is in the recording.
        IoLimits { holes: true, readahead: 0, ..IoLimits::default() }
    }
}

/// So many bytes of a program, which keeps none that it reads and changes none that it writes. The pages
/// come to be in the cache.
pub(super) struct Nowhere(pub(super) u64);

impl UserCopy for Nowhere {
    fn left(&self) -> u64 {
        self.0
    }

    fn fault_in(&mut self, bytes: usize) -> usize {
        bytes
    }

    fn copy(&mut self, page: PageBytes<'_>) -> usize {
        page.len()
    }

    fn advance(&mut self, bytes: usize) {
        self.0 -= bytes as u64;
    }
}

/// Which pages of a file Linux had in its page cache.
#[derive(Debug)]
enum OnLinux {
    /// All that were not seen to leave it.
    Unknown { gone: PageSet },
    /// These.
    Known { cached: PageSet },
}

impl OnLinux {
    fn has(&self, page: u64) -> bool {
        match self {
            Self::Unknown { gone } => !gone.has(page),
            Self::Known { cached } => cached.has(page),
        }
    }

    fn add(&mut self, runs: &[IndexRun]) {
        if let Self::Unknown { .. } = self {
            // The first time it is all that there is.
            *self = Self::Known { cached: PageSet::default() };
        }
        if let Self::Known { cached } = self {
            runs.iter().for_each(|run| cached.add(pages_of(run)));
        }
    }

    /// These are there, and nothing is known of others by that.
    fn found(&mut self, pages: Range<u64>) {
        match self {
            Self::Unknown { gone } => gone.remove(pages),
            Self::Known { cached } => cached.add(pages),
        }
    }

    fn remove(&mut self, pages: Range<u64>) {
        match self {
            Self::Unknown { gone } => gone.add(pages),
            Self::Known { cached } => cached.remove(pages),
        }
    }
}

/// A file with its size.
#[derive(Debug)]
pub(super) struct KnownFile<'m> {
    /// Its device and its inode.
    place: (u64, u64),
    /// One for all descriptors: mappings merge as those of a file that is only a number.
    opening: Rc<HostFile<'m>>,
    linux: OnLinux,
    /// Pages that were brought into the machine's cache since they last left it. Others may be there, too.
    here: PageSet,
}

impl<'m> KnownFile<'m> {
    /// `file`, which has this device and this inode.
    pub(super) fn new(file: HostFile<'m>, place: (u64, u64)) -> Self {
        let linux = OnLinux::Unknown { gone: PageSet::default() };
        Self { place, opening: Rc::new(file), linux, here: PageSet::default() }
    }

    /// Its device and its inode.
    pub(super) fn place(&self) -> (u64, u64) {
        self.place
    }

    /// What is mapped for it.
    pub(super) fn opening(&self) -> &Rc<HostFile<'m>> {
        &self.opening
    }

    /// Its size in pages.
    pub(super) fn pages(&self) -> u64 {
        self.opening.size().div_ceil(PAGE_SIZE)
    }

    /// Its pages in the machine's cache.
    pub(super) fn cached(&self) -> u64 {
        self.opening.figures().cached
    }

    /// Follows what happened to it.
    pub(super) fn change(&mut self, change: &FileChange) {
        match change {
            FileChange::Size { bytes, .. } => self.set_size(*bytes),
            FileChange::Punched(bytes) => {
                let whole = bytes.start.div_ceil(PAGE_SIZE)..bytes.end / PAGE_SIZE;
                self.leave(whole.start..whole.end.max(whole.start), bytes.clone());
            }
            FileChange::Cached(runs) => self.linux.add(runs),
            // Only files in memory end in a recording.
            FileChange::Gone => {}
            FileChange::Evicted(runs) => {
                for run in runs {
                    let bytes = run.first * PAGE_SIZE..run.end().saturating_mul(PAGE_SIZE);
                    self.leave(pages_of(run), bytes);
                }
            }
        }
    }

    fn set_size(&mut self, bytes: u64) {
        let before = self.opening.size();
        if bytes == before || self.opening.set_size(bytes).is_err() {
            return;
        }
        self.here.remove(before.min(bytes).div_ceil(PAGE_SIZE)..u64::MAX);
        if bytes < before
            && let OnLinux::Known { cached } = &mut self.linux
        {
            cached.remove(bytes.div_ceil(PAGE_SIZE)..u64::MAX);
        }
    }

    /// Linux allowed a touch of `page`, which is past the end as far as that is known: what a program wrote
    /// there is seen later.
    pub(super) fn has_grown_to(&mut self, page: u64) {
        self.set_size(page.saturating_add(1).saturating_mul(PAGE_SIZE));
        if let OnLinux::Known { cached } = &mut self.linux {
            cached.add(page..page.saturating_add(1));
        }
    }

    /// These pages are not cached any more, on Linux and here; nor mapped, but for copies.
    fn leave(&mut self, pages: Range<u64>, bytes: Range<u64>) {
        self.removed(pages);
        if self.cached() > 0 {
            // Without memory for what is left of a page at an edge it stays, with zeros as before.
            let _ = self.opening.punch(bytes, |_| Ok(()));
        }
    }

    /// A program has made a hole of these pages: they have left the cache.
    pub(super) fn removed(&mut self, pages: Range<u64>) {
        self.linux.remove(pages.clone());
        self.here.remove(pages);
    }

    /// Whether Linux had this page in its cache, as far as is known.
    pub(super) fn is_cached(&self, page: u64) -> bool {
        self.linux.has(page)
    }

    /// Linux did not have this page in its cache, whatever is known.
    pub(super) fn was_not_cached(&mut self, page: u64) {
        self.linux.remove(page..page + 1);
    }

    /// A touch of `page` made Linux read it with others, `bytes` in all, and the recording does not have
    /// which: those around it, which are added to `read`. The page itself comes in by the touch.
    pub(super) fn read_around(&mut self, page: u64, bytes: u64, read: &mut PageSet) {
        let pages = (bytes / PAGE_SIZE).max(1);
        let first = page.saturating_sub(pages / 2);
        let end = first.saturating_add(pages).min(self.pages());
        for others in [first..page, page + 1..end] {
            self.linux.found(others.clone());
            read.add(others);
        }
    }

    /// `page` comes in by a touch, if the file has it: it is cached from then on, on Linux, too.
    pub(super) fn touched(&mut self, page: u64) {
        if page < self.pages() {
            self.here.add(page..page + 1);
            self.linux.found(page..page + 1);
        }
    }

    /// Brings those of these pages in that Linux had in its cache, or that `more` names, for the program in
    /// `space`.
    pub(super) fn bring_in(&mut self, space: &HostSpace<'_>, pages: Range<u64>, more: &PageSet) {
        let pages = pages.start..pages.end.min(self.pages());
        if pages.is_empty() || self.here.has_all(&pages) {
            return;
        }
        let mut from = pages.start;
        for page in pages.start..=pages.end {
            let comes = page < pages.end && !self.here.has(page) && (self.linux.has(page) || more.has(page));
            if !comes {
                self.read(space, from..page);
                from = page + 1;
            }
        }
    }

    fn read(&mut self, space: &HostSpace<'_>, pages: Range<u64>) {
        if pages.is_empty() {
            return;
        }
        let mut to = Nowhere((pages.end - pages.start) * PAGE_SIZE);
        let read = space.files().read(&self.opening, pages.start * PAGE_SIZE, &mut to);
        self.here.add(pages.start..pages.start + read.bytes.div_ceil(PAGE_SIZE));
    }

    /// Drops from the machine's cache what nothing maps.
    pub(super) fn drop_unused(&mut self) {
        // What is dirty has no bytes to be lost.
        let _ = self.opening.write_back(0..u64::MAX, Wait::Yes);
        let _ = self.opening.invalidate(0..u64::MAX);
        // What is there still is found again.
        self.here = PageSet::default();
    }
}

fn pages_of(run: &IndexRun) -> Range<u64> {
    run.first..run.end()
}

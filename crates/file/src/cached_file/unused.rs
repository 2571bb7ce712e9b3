//! Pages of shared memory that were allocated ahead, and not used yet (Linux's pages that are not uptodate).
//!
//! They are zeros, and look like holes to who asks what is there. A tag of the store says which these are; a
//! file of shared memory has no other use for it.

use super::CachedFile;
use crate::entry::{Entry, Stored};
use crate::index::{IndexRange, PageIndex};
use crate::slabs::NodesOn;
use crate::store::{Filter, LockedStore, Tag};
use arrayvec::ArrayVec;
use core::fmt;
use quire_arch::{PAGE_SHIFT, PAGE_SIZE, Platform};
use quire_frame::Frames;
use quire_sync::atomic::raw::Ordering;

/// The tag of what is not used yet.
pub(crate) const UNUSED: Tag = Tag::ToWrite;

/// Entries that are looked at under one hold of the store's lock.
const AT_ONCE: usize = 16;

type Locked<'s, 'n, P> = LockedStore<'s, P, NodesOn<'n, P>>;

/// The pages of a file that are not used yet, beside those that are data.
pub struct UnusedPages<'f, P: Platform>(&'f CachedFile<P>);

impl<'f, P: Platform> UnusedPages<'f, P> {
    /// Those of this file.
    #[inline]
    pub const fn of(file: &'f CachedFile<P>) -> Self {
        Self(file)
    }

    /// How many pages of the file stay when the folio that they are in is split: all, but of shared memory
    /// those up to its end, or as far as they were allocated.
    pub(crate) fn kept(&self) -> u64 {
        let size = self.0.size().div_ceil(PAGE_SIZE);
        self.0.shmem().map_or(u64::MAX, |shmem| size.max(shmem.allocated.get()))
    }

    /// Marks the entry at `index` as not used yet.
    pub(crate) fn mark(&self, frames: &Frames<P>, index: PageIndex) {
        self.0.with_store(frames, |store| {
            let pages = store.get(index).map_or(0, |stored| stored.order.pages());
            if !store.has_tag(index, UNUSED) && store.set_tag(index, UNUSED) {
                self.0.unused.fetch_add(pages, Ordering::Relaxed);
            }
        });
    }

    /// Page `index` is used from now on. The caller has locked its folio, or removes it.
    #[inline]
    pub(crate) fn note_use(&self, frames: &Frames<P>, index: PageIndex) {
        if self.0.unused.load(Ordering::Relaxed) != 0 {
            self.0.with_store(frames, |store| self.unmark(store, index));
        }
    }

    /// The same for who has the store locked.
    #[inline]
    pub(crate) fn unmark(&self, store: &mut Locked<'_, '_, P>, index: PageIndex) {
        if self.0.unused.load(Ordering::Relaxed) != 0 {
            self.unmark_some(store, index);
        }
    }

    #[cold]
    fn unmark_some(&self, store: &mut Locked<'_, '_, P>, index: PageIndex) {
        if !store.has_tag(index, UNUSED) {
            return;
        }
        if let Some(stored) = store.get(index)
            && store.clear_tag(index, UNUSED)
        {
            self.0.unused.fetch_sub(stored.order.pages(), Ordering::Relaxed);
        }
    }

    /// Whether page `index` is not used yet, at a moment.
    pub fn has(&self, frames: &Frames<P>, index: PageIndex) -> bool {
        self.0.unused.load(Ordering::Relaxed) != 0
            && self.0.with_store(frames, |store| store.has_tag(index, UNUSED))
    }

    /// The first byte from `from` on that is data (`SEEK_DATA`), at a moment: one in a page of shared memory
    /// that was used, in RAM or on a swap device. Any other file is all data. `None` if there is none.
    pub fn seek_data(&self, frames: &Frames<P>, from: u64) -> Option<u64> {
        let size = self.0.size();
        if from >= size {
            return None;
        }
        if !self.0.is_shmem() {
            return Some(from);
        }
        let pages = CachedFile::<P>::pages_of(from..size);
        let data = self.next_data(frames, pages)?;
        let at = (data.start() << PAGE_SHIFT).max(from);
        (at < size).then_some(at)
    }

    /// The first byte from `from` on that is in a hole (`SEEK_HOLE`), at a moment: the end, of a file without
    /// one. `None` if the file ends before `from`.
    pub fn seek_hole(&self, frames: &Frames<P>, from: u64) -> Option<u64> {
        let size = self.0.size();
        if from >= size {
            return None;
        }
        if !self.0.is_shmem() {
            return Some(size);
        }
        let mut rest = CachedFile::<P>::pages_of(from..size);
        while let Some(data) = self.next_data(frames, rest) {
            if data.start() > rest.start() {
                break;
            }
            rest = IndexRange::new(data.end(), rest.end());
        }
        Some((rest.start() << PAGE_SHIFT).max(from).min(size))
    }

    /// The first pages of the range that are data, as far as they follow each other.
    fn next_data(&self, frames: &Frames<P>, pages: IndexRange) -> Option<IndexRange> {
        let mut rest = pages;
        let mut data: Option<IndexRange> = None;
        while !rest.is_empty() {
            let found: ArrayVec<Stored, AT_ONCE> = self.0.with_store(frames, |store| {
                let mut found = store.batch::<AT_ONCE>(rest, Filter::All);
                rest = found
                    .last()
                    .map_or(IndexRange::default(), |last| IndexRange::new(last.range().end(), pages.end()));
                found.retain(|stored| {
                    !matches!(stored.entry, Entry::Shadow(_)) && !store.has_tag(stored.start, UNUSED)
                });
                found
            });
            for stored in found {
                let part = stored.range().intersect(pages);
                data = match data {
                    None => Some(part),
                    Some(before) if before.end() == part.start() => Some(before.with(part)),
                    Some(before) => return Some(before),
                };
            }
        }
        data
    }
}

impl<P: Platform> fmt::Debug for UnusedPages<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UnusedPages").field(&self.0).finish()
    }
}

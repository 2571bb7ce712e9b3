//! Shared memory on swap devices.
//!
//! A folio of shared memory that is paged out leaves the cache of its file for the swap cache, and back. The
//! word in the store says which of both has it: a folio or its slot, which is named by this word alone. Each
//! change of the word, and of the slot's count, is made in one hold of FolioStore.
//!
//! A swap-in does not take Invalidate, since it holds the folio lock: so who removes a range goes on until it
//! finds neither folios nor slots there. A word never comes where there was none. A page-out only tries
//! Invalidate, shared: who holds it alone unmaps pages without their locks, and a page that counts no maps
//! any more may be in TLBs until that is flushed.

use super::PageCache;
use crate::backing::FileError;
use crate::cached_file::{CachedFile, UnusedPages};
use crate::entry::{Entry, Payload};
use crate::error::{PageError, SwappedPage};
use crate::file_core::Mapping;
use crate::index::{IndexRange, PageIndex};
use crate::store::Filter;
use arrayvec::ArrayVec;
use core::fmt;
use quire_arch::{Pfn, Platform};
use quire_frame::{FrameFlags, OwnerWord};
use quire_swap::SlotId;
use quire_sync::atomic::raw::Ordering;

/// Slots that are freed under one hold of a store's lock.
const AT_ONCE: usize = 16;

/// References to a folio that is paged out: those of the file's cache, the swap cache and the caller.
const ALONE: u32 = 3;

/// The cache as far as it has shared memory.
pub struct ShmemPages<'m, P: Platform, V: Mapping>(pub(super) PageCache<'m, P, V>);

impl<P: Platform, V: Mapping> ShmemPages<'_, P, V> {
    /// Refuses a page that is not in the cache but on a swap device.
    ///
    /// # Errors
    ///
    /// [`PageError::Swapped`], or that it is lost.
    pub(super) fn check(self, file: &CachedFile<P>, index: PageIndex) -> Result<(), PageError> {
        if !file.is_shmem() || file.swapped.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        match file.with_store(self.0.frames(), |store| store.get(index)).map(|stored| stored.entry) {
            Some(Entry::Slot(Payload::LOST)) => Err(FileError::Io.into()),
            Some(entry) => match entry.swap_slot() {
                Some(slot) => Err(PageError::Swapped(SwappedPage { index, slot })),
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// Refuses to change a part of a page that is on a swap device. Invalidate is held exclusively, so that
    /// the page is not paged out meanwhile.
    ///
    /// # Errors
    ///
    /// [`PageError::Swapped`].
    pub(super) fn check_part(self, file: &CachedFile<P>, index: PageIndex) -> Result<(), PageError> {
        match self.check(file, index) {
            // Its bytes are lost, and need not be zeros.
            Err(PageError::File(_)) => Ok(()),
            result => result,
        }
    }

    /// Lists a new folio of shared memory, which the caller has locked.
    pub(super) fn list(self, head: Pfn) {
        let pin = self.0.platform().pin();
        let _section = self.0.frames().epoch().enter(&pin);
        self.0.memcgs.folios().list_new(&pin, head, false);
    }

    /// Takes the folio at `head` out of the cache of its file, where its slot takes its place. The caller has
    /// the folio lock and a reference; the folio is in the swap cache, nothing maps it, and what was mapped
    /// of it is flushed. Returns false, and changes nothing, where another thread has a reference, or removes
    /// pages of the file.
    pub fn page_out(self, head: Pfn) -> bool {
        let (frames, frame) = (self.0.frames(), self.0.frames().known(head));
        // SAFETY: the caller has the folio lock.
        let Some(file) = (unsafe { CachedFile::of_folio(frames, head) }) else { return false };
        let order = frame.word().order();
        let (Some(index), Some(payload)) =
            (PageIndex::new(frame.as_folio().index()), Payload::new(frame.as_folio().slot()))
        else {
            return false;
        };
        let Some(_shared) = file.invalidate.try_read(self.0.platform()) else { return false };
        let is_swapped = file.with_store(frames, |store| {
            if frame.refs() != ALONE || frame.as_folio().maps() != 0 {
                return false;
            }
            // What is on a device is data, as in Linux.
            UnusedPages::of(file).unmark(store, index);
            // First: who finds the slot finds that there are some.
            file.swapped.fetch_add(order.pages(), Ordering::Relaxed);
            if store.replace(index, Entry::Slot(payload)).is_err() {
                file.swapped.fetch_sub(order.pages(), Ordering::Relaxed);
                return false;
            }
            self.0.swap.counts().add_counts(SlotId::from_raw(payload.get()), order.pages() as u32);
            frame.as_folio().set_owner(OwnerWord::NONE);
            frame.clear_flags(FrameFlags::SHARED_BY_NAME);
            true
        });
        if is_swapped {
            file.count_gone(self.0.memcgs, head, order);
            self.0.memcgs.folios().disown_file_page(&self.0.platform().pin(), frame);
            // The cache's. The swap cache has one, and the caller.
            let last = frame.put(1);
            debug_assert!(!last, "{head:?} is in no cache");
        }
        is_swapped
    }

    /// Frees the slots of these pages, and returns whether nothing is left of them, cached or swapped out.
    /// Invalidate is held exclusively.
    pub(super) fn free(self, file: &CachedFile<P>, pages: IndexRange) -> bool {
        let mut rest = pages;
        let (mut is_empty, mut gone) = (true, 0);
        while !rest.is_empty() {
            let mut freed = ArrayVec::<_, AT_ONCE>::new();
            rest = file.with_store(self.0.frames(), |store| {
                let mut rest = rest;
                while !freed.is_full() {
                    let Some(stored) = store.next(rest, Filter::All) else { return IndexRange::default() };
                    rest = IndexRange::new(stored.range().end(), pages.end());
                    match stored.entry {
                        Entry::Slot(_) => {
                            store.remove(stored.start);
                            let pages = stored.order.pages();
                            file.swapped.fetch_sub(pages, Ordering::Relaxed);
                            let slot = stored.entry.swap_slot();
                            let is_cached = slot.filter(|&slot| {
                                self.0.swap.counts().drop_counts(slot, pages as u32).cached_only
                            });
                            freed.push((is_cached, pages));
                        }
                        Entry::Folio(_) => is_empty = false,
                        Entry::Shadow(_) => {}
                    }
                }
                rest
            });
            for (cached, pages) in freed {
                if let Some(slot) = cached {
                    self.0.swap.cache().drop_unnamed(slot, pages as u32, |_| {});
                }
                gone += pages;
            }
        }
        if gone > 0 {
            // An owner may panic.
            file.give_back_pages(gone);
        }
        is_empty
    }

    /// The first page of the file from `from` and before `end` that is on a swap device for which
    /// `is_wanted`.
    pub fn next(
        self,
        file: &CachedFile<P>,
        (from, end): (u64, u64),
        mut is_wanted: impl FnMut(SlotId) -> bool,
    ) -> Option<SwappedPage> {
        let mut rest = IndexRange::new(from, end);
        while file.swapped.load(Ordering::Relaxed) > 0 && !rest.is_empty() {
            let found = file.with_store(self.0.frames(), |store| store.batch::<AT_ONCE>(rest, Filter::All));
            let last = found.last()?;
            rest = IndexRange::new(last.range().end(), end);
            let mut slots = found.iter().filter_map(|stored| {
                stored.entry.swap_slot().map(|slot| SwappedPage { index: stored.start, slot })
            });
            if let Some(page) = slots.find(|page| is_wanted(page.slot)) {
                return Some(page);
            }
        }
        None
    }

    /// Gives up a page that cannot be read from a device that is to be removed: an access is an error from
    /// now on.
    pub fn lose(self, file: &CachedFile<P>, page: SwappedPage) {
        let SwappedPage { index, slot } = page;
        let is_cached = file.with_store(self.0.frames(), |store| {
            let has_slot = store
                .get(index)
                .is_some_and(|stored| stored.entry == Entry::Slot(Payload::low_bits(slot.raw())));
            has_slot
                && store.replace(index, Entry::Slot(Payload::LOST)).is_ok()
                && self.0.swap.counts().drop_counts(slot, 1).cached_only
        });
        if is_cached {
            self.0.swap.cache().drop_unnamed(slot, 1, |_| {});
        }
    }
}

impl<P: Platform, V: Mapping> Clone for ShmemPages<'_, P, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform, V: Mapping> Copy for ShmemPages<'_, P, V> {}

impl<P: Platform, V: Mapping> fmt::Debug for ShmemPages<'_, P, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ShmemPages").field(&self.0).finish()
    }
}

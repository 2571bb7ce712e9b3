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
use super::split::{NotSplit, Splitter};
use crate::backing::FileError;
use crate::cached_file::{CachedFile, KeptFolio, SwappedPages, UnusedPages};
use crate::entry::{Entry, Payload};
use crate::error::{PageError, SwappedPage};
use crate::file_core::Mapping;
use crate::index::{IndexRange, PageIndex};
use crate::locked_folio::LockedFolio;
use crate::shmem::ShmemState;
use crate::slabs::NodesOn;
use crate::source::Reserve;
use crate::store::Filter;
use arrayvec::ArrayVec;
use core::fmt;
use quire_arch::{Order, Pfn, Platform};
use quire_frame::{AllocError, FolioCounter, FrameFlags, HeldParts, OwnerWord, VmEvent};
use quire_memcg::UnevictableFolios;
use quire_swap::SlotId;
use quire_sync::atomic::raw::{Ordering, fence};

/// Slots that are freed under one hold of a store's lock.
const AT_ONCE: usize = 16;

/// References to a folio that is paged out: those of the file's cache, the swap cache and the caller.
const ALONE: u32 = 3;

/// References to one that is in no swap cache.
const UNCACHED: u32 = 2;

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
        let stored = file.with_store(self.0.frames(), |store| store.get(index));
        match stored.map(|stored| stored.entry) {
            Some(Entry::Slot(Payload::LOST)) => Err(FileError::Io.into()),
            _ => match stored.and_then(|stored| SwappedPage::of(&stored, index)) {
                Some(page) => Err(PageError::Swapped(page)),
                None => Ok(()),
            },
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

    /// Lists a new folio of this file of shared memory, which the caller has locked.
    pub(super) fn list(self, file: &CachedFile<P>, head: Pfn) {
        let pin = self.0.platform().pin();
        let _section = self.0.frames().epoch().enter(&pin);
        self.0.memcgs.folios().list_new(&pin, head, false);
        KeptFolio::new(file, head).cull(self.0.memcgs, &pin);
    }

    /// Takes folios off the unevictable list that were there only because the file was locked in memory
    /// (Linux's `shmem_unlock_mapping`); stops where that is locked again.
    pub fn rescue(self, file: &CachedFile<P>) {
        // Pairs with that of `KeptFolio::cull`, and of `UnevictableFolios::set_mlocked`.
        fence(Ordering::SeqCst);
        let (frames, folios) = (self.0.frames(), UnevictableFolios::of(self.0.memcgs.folios()));
        let mut rest = IndexRange::new(0, PageIndex::MAX.get() + 1);
        while !rest.is_empty() && !file.shmem().is_some_and(ShmemState::stays_in_memory) {
            let pin = self.0.platform().pin();
            rest = file.with_store(frames, |store| {
                let found = store.batch::<AT_ONCE>(rest, Filter::All);
                let mut scanned = 0;
                for stored in &found {
                    if let Entry::Folio(head) = stored.entry {
                        scanned += stored.order.pages();
                        // The cache has it as long as the store is locked.
                        folios.rescue(&pin, head);
                    }
                }
                frames.events().add(&pin, VmEvent::UnevictablePgsScanned, scanned);
                let end = found.last().map_or(rest.end(), |last| last.range().end());
                IndexRange::new(end, rest.end())
            });
        }
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
            // Pairs with that of a fast pin: it is found here, or finds that the entry is gone.
            fence(Ordering::SeqCst);
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
            // No device has it yet.
            frame.change_flags(FrameFlags::DIRTY, FrameFlags::SHARED_BY_NAME);
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

    /// Takes the folio at `head`, which is zeros, out of the cache of its file, which has a hole there then,
    /// and the owner its pages back. Otherwise as [`page_out`](Self::page_out), for one that is in no swap
    /// cache and not dirty.
    pub fn leave_hole(self, head: Pfn) -> bool {
        let (frames, frame) = (self.0.frames(), self.0.frames().known(head));
        // SAFETY: the caller has the folio lock.
        let Some(file) = (unsafe { CachedFile::of_folio(frames, head) }) else { return false };
        let order = frame.word().order();
        let Some(index) = PageIndex::new(frame.as_folio().index()) else { return false };
        // The file does not end as long as it is held.
        let Some(_shared) = file.invalidate.try_read(self.0.platform()) else { return false };
        let is_gone = file.with_store(frames, |store| {
            // As in `page_out`.
            fence(Ordering::SeqCst);
            let is_dirty = frame.word().flags().contains(FrameFlags::DIRTY);
            if frame.refs() != UNCACHED || frame.as_folio().maps() != 0 || is_dirty {
                return false;
            }
            UnusedPages::of(file).unmark(store, index);
            store.remove(index);
            frame.as_folio().set_owner(OwnerWord::NONE);
            frame.clear_flags(FrameFlags::SHARED_BY_NAME);
            true
        });
        if is_gone {
            file.count_gone(self.0.memcgs, head, order);
            // The cache's. The caller has one.
            let last = frame.put(1);
            debug_assert!(!last, "{head:?} is the caller's");
            file.give_back_pages(order.pages());
        }
        is_gone
    }

    /// Takes the folio at `head`, which the caller has locked, out of the swap cache, if it is there for a
    /// slot that nothing names and is not being written. Returns whether it is in none. The caller has a
    /// reference.
    pub fn leaves_swap_cache(self, head: Pfn) -> bool {
        let flags = self.0.frames().known(head).word().flags();
        if !flags.contains(FrameFlags::SWAP_CACHE) {
            return true;
        }
        let leaves = !flags.contains(FrameFlags::WRITEBACK) && self.0.swap.cache().remove_unnamed(head);
        if leaves {
            // The swap cache's; the caller's is still there.
            self.0.memcgs.folios().release_folio(head);
        }
        leaves
    }

    /// Unlocks a folio that has left its file, and takes it out of the swap cache, too, where its slot has no
    /// name.
    pub(super) fn leave_unnamed(self, folio: LockedFolio<'_, P>) {
        if folio.frame().word().flags().contains(FrameFlags::SWAP_CACHE) {
            // It was being written when it was swapped in again, or was about to be paged out.
            let reference = self.0.hold(folio.unlock_and_keep());
            self.0.swap.cache().leave_if_unnamed(reference.head);
        }
    }

    /// Frees the slots of these pages, and returns whether nothing is left of them, cached or swapped out;
    /// but for a folio that begins before them, which could not be cut. Invalidate is held exclusively.
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
                            debug_assert!(pages.covers(stored.range()), "{stored:?} was not divided");
                            store.remove(stored.start);
                            let pages = stored.order.pages();
                            file.swapped.fetch_sub(pages, Ordering::Relaxed);
                            let slot = stored.entry.swap_slot();
                            let is_cached = slot.filter(|&slot| {
                                self.0.swap.counts().drop_counts(slot, pages as u32).cached_only
                            });
                            freed.push((is_cached, pages));
                        }
                        // One that could not be cut begins before them, and stays.
                        Entry::Folio(_) => is_empty &= stored.start.get() < pages.start(),
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
            let first = PageIndex::new(rest.start())?;
            rest = IndexRange::new(last.range().end(), end);
            let mut pages =
                found.iter().filter_map(|stored| SwappedPage::of(stored, stored.start.max(first)));
            if let Some(page) = pages.find(|page| is_wanted(page.slot)) {
                return Some(page);
            }
        }
        None
    }

    /// Gives up a page that cannot be read from a device that is to be removed: an access is an error from
    /// now on. Those that it was paged out with stay where they are.
    ///
    /// # Errors
    ///
    /// There is no memory to note it apart from these; nothing has changed then.
    pub fn lose(self, file: &CachedFile<P>, page: SwappedPage) -> Result<(), AllocError> {
        let SwappedPage { index, slot, .. } = page;
        let one = SwappedPage { order: Order::ZERO, ..page };
        let is_cached = SwappedPages::of(file).with_slots(self.0.frames(), one, |store| {
            store.replace(index, Entry::Slot(Payload::LOST)).is_ok()
                && self.0.swap.counts().drop_counts(slot, 1).cached_only
        })?;
        if is_cached == Some(true) {
            self.0.swap.cache().drop_unnamed(slot, 1, |_| {});
        }
        Ok(())
    }

    /// Whether the folio at `head` is large, and split where it is paged out, as in Linux: its file ends in
    /// it, and what is behind that was not allocated. The caller has the folio lock.
    pub fn ends_within(self, head: Pfn) -> bool {
        let frame = self.0.frames().known(head);
        // SAFETY: the caller has the folio lock.
        let file = unsafe { CachedFile::of_folio(self.0.frames(), head) };
        file.is_some_and(|file| {
            let (start, pages) = (frame.as_folio().index(), frame.word().order().pages());
            (start + 1..start + pages).contains(&UnusedPages::of(file).kept())
        })
    }

    /// Splits the large folio at `head` into pages, of which those past the end of the file are gone unless
    /// they were allocated there, but for the first. The caller has its lock and a reference, which are to
    /// the first page then; nothing maps it. If the caller has taken it off its list, references to the
    /// others enter `parts`. Returns false, and changes nothing, where others have references, memory is
    /// short, or another thread removes pages of the file.
    pub fn split(self, head: Pfn, parts: Option<&mut HeldParts>) -> bool {
        let frames = self.0.frames();
        // SAFETY: the caller has the folio lock.
        let Some(file) = (unsafe { CachedFile::of_folio(frames, head) }) else { return false };
        // So that no part is removed before it is held here.
        let Some(_shared) = file.invalidate.try_read(self.0.platform()) else { return false };
        let order = frames.known(head).word().order();
        let nodes = file.memory().nodes(frames);
        // SAFETY: the stores of a machine's files are locked with its nodes.
        let mut reserve = unsafe { Reserve::new(&nodes) };
        let split = Splitter { cache: self.0, file };
        let kept = loop {
            // Who writes past the end, or allocates there, has noted that before it unlocks the folio.
            let end = UnusedPages::of(file).kept();
            match split.split_locked((head, Order::ZERO, UNCACHED), end, (&nodes, &mut reserve)) {
                Ok(kept) => break kept,
                Err(NotSplit::NeedsNodes(needs)) if reserve.fill(needs).is_ok() => {}
                Err(_) => return false,
            }
        };
        if let Some(parts) = parts {
            for part in (1..kept).map(|nth| head.offset(nth)) {
                if frames.known(part).get(1) && !parts.add(part) {
                    self.0.memcgs.folios().release_folio(part);
                }
            }
        }
        let pin = self.0.platform().pin();
        frames.events().count_folio(&pin, order, FolioCounter::Split, 1);
        true
    }

    /// Halves what is swapped out as one piece and has page `at` and the one before it, and the half that has
    /// both again, until none has: as a folio is cut. Returns false if a folio has both by now. The nodes are
    /// those of a cut. Invalidate is held exclusively.
    pub(super) fn divide<'n>(
        self,
        file: &CachedFile<P>,
        at: PageIndex,
        (nodes, reserve): (&NodesOn<'n, P>, &mut Reserve<'n, NodesOn<'n, P>>),
    ) -> bool {
        file.with_store_on(nodes, self.0.frames(), |store| {
            while let Some(stored) = store.get(at).filter(|stored| stored.start < at) {
                match stored.entry {
                    Entry::Folio(_) => return false,
                    Entry::Shadow(_) => return true,
                    Entry::Slot(_) => {}
                }
                let Some(half) = stored.order.smaller() else { return true };
                if store.split(stored.start, half, reserve).is_err() {
                    debug_assert!(false, "nodes for a cut were not reserved");
                    return true;
                }
            }
            true
        })
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

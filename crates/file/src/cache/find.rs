//! Finding cached folios, and taking them out.

use super::PageCache;
use crate::backing::FileError;
use crate::cached_file::{CachedFile, Is, Turn, UnusedPages};
use crate::entry::{Entry, Stored};
use crate::file_core::{FileCore, Mapping};
use crate::index::{IndexRange, PageIndex};
use crate::locked_folio::LockedFolio;
use crate::store::{Filter, Tag};
use crate::users::FileUsers;
use arrayvec::ArrayVec;
use quire_arch::{Pfn, Platform};
use quire_frame::{FrameFlags, OwnerWord};
use quire_memcg::Memcgs;

/// Folios that are looked up under one hold of a store's lock.
const AT_ONCE: usize = 16;

impl<'m, P: Platform, V: Mapping> PageCache<'m, P, V> {
    /// Calls `visit` with each folio of these pages that passes the filter, in order, and the page where it
    /// begins, which may be before them. The reference that it comes with is the visit's to drop; while
    /// there is one the folio is not split.
    pub(super) fn for_each_folio(
        self,
        file: &CachedFile<P>,
        pages: IndexRange,
        filter: Filter,
        mut visit: impl FnMut((PageIndex, Pfn)),
    ) {
        let mut rest = pages;
        while !rest.is_empty() {
            let found = file.with_store(self.frames(), |store| {
                let mut found = store.batch::<AT_ONCE>(rest, filter);
                rest = found.last().map_or(IndexRange::default(), |last| after(last, pages));
                // The cache has a reference to each as long as the lock is held.
                found.retain(|stored| match stored.entry {
                    Entry::Folio(head) => self.frames().known(head).get(1),
                    _ => false,
                });
                found
            });
            // Held here until they are visited: a visit may panic, as a backing may.
            let held = found.into_iter().rev().filter_map(|stored| match stored.entry {
                Entry::Folio(head) => Some((stored.start, self.hold(head))),
                _ => None,
            });
            let mut held: ArrayVec<_, AT_ONCE> = held.collect();
            while let Some((index, reference)) = held.pop() {
                visit((index, reference.into_head()));
            }
        }
    }

    /// A reference to the folio at `head`, which is the caller's.
    pub(super) const fn hold(self, head: Pfn) -> FolioReference<'m, P> {
        FolioReference { memcgs: self.memcgs, head }
    }

    /// The folio of page `index`, locked, if the page is cached. Sleeps for the lock.
    ///
    /// # Errors
    ///
    /// Another thread was reading it, and could not. What exactly was wrong is not known any more.
    pub(super) fn lock_cached(
        self,
        file: &CachedFile<P>,
        index: PageIndex,
    ) -> Result<Option<LockedFolio<'m, P>>, FileError> {
        loop {
            let Some(head) = file.get(self.memcgs, index) else { return Ok(None) };
            let Some(guard) = self.frames().folios().lock_folio(head) else {
                debug_assert!(false, "no folio at {head:?}, to which there is a reference");
                return Ok(None);
            };
            match file.recheck(index, LockedFolio::new(self.memcgs, head, guard)) {
                Is::Wanted(folio) => return Ok(Some(folio)),
                Is::Failed => return Err(FileError::Io),
                Is::Gone => {}
            }
        }
    }

    /// Locks the folio at `head`, which was the file's page `index` a moment ago, and to which the caller has
    /// a reference: it goes into the result. Sleeps if it `waits`. `None` if it is that no more, or is
    /// locked.
    pub(super) fn lock_found(
        self,
        file: &CachedFile<P>,
        (index, head): (PageIndex, Pfn),
        waits: bool,
    ) -> Option<LockedFolio<'m, P>> {
        let folios = self.frames().folios();
        let guard = if waits { folios.lock_folio(head) } else { folios.try_lock_folio(head) };
        let Some(guard) = guard else {
            self.memcgs.folios().release_folio(head);
            return None;
        };
        match file.recheck(index, LockedFolio::new(self.memcgs, head, guard)) {
            Is::Wanted(folio) => Some(folio),
            Is::Failed | Is::Gone => None,
        }
    }

    /// Takes a locked folio, which is not being written, out of the cache. What it has is lost.
    pub(super) fn remove(self, file: &CachedFile<P>, folio: &LockedFolio<'m, P>) {
        let (head, index) = (folio.head(), folio.start());
        // Shared memory may be being written to a slot that nothing names any more.
        debug_assert!(
            file.is_shmem() || !folio.frame().word().flags().contains(FrameFlags::WRITEBACK),
            "{head:?} is being written"
        );
        let removed = file.with_store(self.frames(), |store| {
            file.turn(self.frames(), store, (index, head), Tag::Dirty, Turn::Off);
            UnusedPages::of(file).unmark(store, index);
            store.remove(index)
        });
        debug_assert!(removed.is_some_and(|stored| stored.entry == Entry::Folio(head)));
        self.disown(file, folio);
        // An owner may panic.
        file.give_back_pages(folio.order().pages());
    }

    /// A locked folio has left the store of a file: it is counted, and the cache's reference goes.
    pub(super) fn disown(self, file: &CachedFile<P>, folio: &LockedFolio<'m, P>) {
        let head = folio.head();
        folio.frame().as_folio().set_owner(OwnerWord::NONE);
        file.count_gone(self.memcgs, head, folio.order());
        if file.is_shmem() {
            // Others may hold it, a swap device among them.
            folio.frame().clear_flags(FrameFlags::SHARED_BY_NAME);
            self.memcgs.folios().disown_file_page(&self.platform().pin(), folio.frame());
        }
        // The cache's reference; the caller's is still there.
        let last = folio.frame().put(1);
        debug_assert!(!last, "{head:?} had no reference of the cache");
    }

    /// As [`remove`](Self::remove); and out of the swap cache, too, where its slot has no name.
    pub(super) fn remove_everywhere(self, file: &CachedFile<P>, folio: LockedFolio<'m, P>) {
        self.remove(file, &folio);
        self.shmem().leave_unnamed(folio);
    }

    /// Removes the folios that begin in these pages, and frees the slots of those that are swapped out.
    /// Invalidate is held exclusively.
    pub(super) fn remove_range(self, file: &FileCore<P, V>, pages: IndexRange, users: &dyn FileUsers<P, V>) {
        loop {
            self.for_each_folio(file, pages, Filter::All, |at @ (index, head)| {
                let Some(folio) = self.lock_found(file, at, true) else { return };
                if index.get() < pages.start() {
                    return;
                }
                if !file.is_shmem() {
                    self.transfers(file).wait_written(head);
                }
                self.unmap_locked(file, &folio, users);
                self.remove_everywhere(file, folio);
            });
            // A page may have been swapped out, or in, before it was found.
            if !file.is_shmem() || self.shmem().free(file, pages) {
                return;
            }
        }
    }

    /// Unmaps a locked folio everywhere. Invalidate is held exclusively.
    pub(super) fn unmap_locked(
        self,
        file: &FileCore<P, V>,
        folio: &LockedFolio<'m, P>,
        users: &dyn FileUsers<P, V>,
    ) {
        let mut attempt = 0;
        while folio.frame().as_folio().maps() != 0 {
            // A fault was faster, or a mapping is in transit: that needs nothing that is held here.
            users.unmap(file, folio.range(), false);
            P::relax(attempt);
            attempt = attempt.saturating_add(1);
        }
    }
}

/// A reference to a folio, which is dropped with this.
pub(super) struct FolioReference<'m, P: Platform> {
    memcgs: &'m Memcgs<P>,
    pub(super) head: Pfn,
}

impl<P: Platform> FolioReference<'_, P> {
    /// The reference, for the caller.
    pub(super) fn into_head(self) -> Pfn {
        let head = self.head;
        core::mem::forget(self);
        head
    }
}

impl<P: Platform> Drop for FolioReference<'_, P> {
    fn drop(&mut self) {
        self.memcgs.folios().release_folio(self.head);
    }
}

/// What is behind an entry, of these pages.
pub(super) fn after(stored: &Stored, pages: IndexRange) -> IndexRange {
    IndexRange::new(stored.range().end(), pages.end())
}

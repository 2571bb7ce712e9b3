//! Allocating pages of shared memory ahead.

use super::PageCache;
use super::new_folio::{Fill, LargeOrders};
use super::obtain::{Came, Wanted};
use super::seal::check_size;
use crate::cached_file::{CachedFile, MAX_FILE_BYTES, NewFolioOrders, UNUSED, UnusedPages};
use crate::error::PageError;
use crate::file_core::{FileCore, Mapping};
use crate::index::{IndexRange, PageIndex};
use crate::store::Filter;
use crate::users::FileUsers;
use core::fmt;
use core::ops::Range;
use quire_arch::Platform;
use quire_memcg::Membership;

/// Pages of a file that are allocated ahead.
pub struct Allocation<'c, 'm, P: Platform, V: Mapping> {
    cache: PageCache<'m, P, V>,
    file: &'c FileCore<P, V>,
    pages: IndexRange,
    /// How far pages were allocated before.
    before: u64,
}

impl<'c, 'm, P: Platform, V: Mapping> Allocation<'c, 'm, P, V> {
    /// Of the pages that hold these bytes of shared memory, which is to have all of them.
    ///
    /// # Errors
    ///
    /// [`PageError::TooLarge`], [`PageError::Sealed`]; [`PageError::NotSupported`] for any other file.
    pub fn new(
        cache: PageCache<'m, P, V>,
        file: &'c FileCore<P, V>,
        bytes: &Range<u64>,
    ) -> Result<Self, PageError> {
        let Some(shmem) = file.shmem() else { return Err(PageError::NotSupported) };
        if bytes.end > MAX_FILE_BYTES {
            return Err(PageError::TooLarge);
        }
        if bytes.end > file.size() {
            check_size(file, bytes.end)?;
        }
        let pages = CachedFile::<P>::pages_of(bytes.clone());
        Ok(Self { cache, file, pages, before: shmem.allocated.raise(pages.end()) })
    }

    /// Allocates one page after the other. `allocate` is called with the next one, and returns the one behind
    /// what is there then, as [`allocate`](Self::allocate) does.
    ///
    /// # Errors
    ///
    /// Those of `allocate`, which is not called again then.
    pub fn try_for_each(
        &self,
        mut allocate: impl FnMut(PageIndex) -> Result<u64, PageError>,
    ) -> Result<(), PageError> {
        let mut next = self.pages.start();
        while let Some(index) = PageIndex::new(next).filter(|_| next < self.pages.end()) {
            next = allocate(index)?.max(next + 1);
        }
        Ok(())
    }

    /// Makes a page of zeros for page `index`, if it is a hole, and returns the page behind its folio. As in
    /// Linux, what an earlier call has allocated counts as used from now on: else this one, if it fails,
    /// would give it back. May sleep; nothing is held. `program` pays.
    ///
    /// # Errors
    ///
    /// There is no memory, or no space.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn allocate(&self, index: PageIndex, program: &Membership) -> Result<u64, PageError> {
        let Self { cache, file, pages, .. } = *self;
        let unused = UnusedPages::of(file);
        let behind = index.get() + 1;
        if !file.is_hole(cache.frames(), index) && !unused.has(cache.frames(), index) {
            // What was only read would become a hole again where memory is short.
            if let Ok(Some(folio)) = cache.lock_cached(file, index) {
                file.mark_dirty(cache.frames(), folio.head());
            }
            if !file.is_hole(cache.frames(), index) {
                return Ok(behind);
            }
        }
        let orders = NewFolioOrders::of(file).written(index, pages.bytes().end);
        let wanted = Wanted { index, large: LargeOrders::of(orders), fill: Fill::ByCaller };
        let made = cache.obtain(file, wanted, program, |folio, came| {
            file.mark_dirty(cache.frames(), folio.head());
            match came {
                // No thread has used it: the folio is locked.
                Came::Zeros => unused.mark(cache.frames(), folio.start()),
                _ => unused.note_use(cache.frames(), folio.start()),
            }
            Ok(folio.range().end())
        });
        match made {
            // Another thread has used it, and it is on a device now.
            Err(PageError::Swapped(_)) => Ok(behind),
            result => result,
        }
    }

    /// Gives back those of the pages that were allocated ahead, and not used since. May sleep; nothing is
    /// held.
    pub fn give_back(&self, users: &dyn FileUsers<P, V>) {
        let Self { cache, file, pages, before } = *self;
        if let Some(shmem) = file.shmem() {
            shmem.allocated.undo(pages.end(), before);
        }
        let _alone = file.invalidate.write(cache.platform());
        cache.for_each_folio(file, pages, Filter::Tagged(UNUSED), |at @ (index, _)| {
            let Some(folio) = cache.lock_found(file, at, true) else { return };
            // Who maps it, or writes to it, has locked it.
            if UnusedPages::of(file).has(cache.frames(), index) {
                cache.unmap_locked(file, &folio, users);
                cache.remove_everywhere(file, folio);
            }
        });
    }
}

impl<P: Platform, V: Mapping> fmt::Debug for Allocation<'_, '_, P, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocation").field("pages", &self.pages).finish_non_exhaustive()
    }
}

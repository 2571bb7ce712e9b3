//! Allocating pages of shared memory ahead.

use super::PageCache;
use super::new_folio::Fill;
use super::obtain::{Came, Wanted};
use crate::cached_file::{CachedFile, UNUSED};
use crate::error::PageError;
use crate::file_core::{FileCore, Mapping};
use crate::index::{IndexRange, PageIndex};
use crate::store::Filter;
use crate::users::FileUsers;
use core::ops::Range;
use quire_arch::{Order, Platform};
use quire_memcg::Membership;

impl<P: Platform, V: Mapping> PageCache<'_, P, V> {
    /// The pages that hold these bytes of shared memory, which is to have all of them.
    ///
    /// # Errors
    ///
    /// [`PageError::TooLarge`], [`PageError::Sealed`]; [`PageError::NotShmem`] for any other file.
    pub fn to_allocate(self, file: &FileCore<P, V>, bytes: &Range<u64>) -> Result<IndexRange, PageError> {
        if !file.is_shmem() {
            return Err(PageError::NotShmem);
        }
        if CachedFile::<P>::is_too_large(bytes.end) {
            return Err(PageError::TooLarge);
        }
        if bytes.end > file.size() {
            file.check_size(bytes.end)?;
        }
        Ok(CachedFile::<P>::pages_of(bytes.clone()))
    }

    /// Makes a page of zeros for page `index` of shared memory, if it is a hole. May sleep; nothing is held.
    /// `program` pays.
    ///
    /// # Errors
    ///
    /// There is no memory, or no room.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn allocate(
        self,
        file: &FileCore<P, V>,
        index: PageIndex,
        program: &Membership,
    ) -> Result<(), PageError> {
        if !file.is_hole(self.frames(), index) {
            return Ok(());
        }
        let wanted = Wanted { index, order: Order::ZERO, fill: Fill::ByCaller };
        let made = self.obtain(file, wanted, program, |folio, came| {
            if came == Came::Zeros {
                // No thread has used it: the folio is locked.
                file.mark_unused(self.frames(), folio.start());
            }
            Ok(())
        });
        match made {
            // Another thread has used it, and it is on a device now.
            Err(PageError::Swapped(_)) => Ok(()),
            result => result,
        }
    }

    /// Gives back what was allocated of these pages, and not used since. May sleep; nothing is held.
    pub fn free_unused(self, file: &FileCore<P, V>, pages: IndexRange, users: &dyn FileUsers<P, V>) {
        let _alone = file.invalidate.write(self.platform());
        self.for_each_folio(file, pages, Filter::Tagged(UNUSED), |at @ (index, _)| {
            let Some(folio) = self.lock_found(file, at, true) else { return };
            // Who maps it, or writes to it, has locked it.
            if file.is_unused(self.frames(), index) {
                self.unmap_locked(file, &folio, users);
                self.remove(file, &folio);
            }
        });
    }
}

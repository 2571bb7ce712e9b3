//! Finding cached folios, and taking them out.

use super::PageCache;
use crate::backing::FileError;
use crate::cached_file::{CachedFile, Is, Turn};
use crate::entry::Entry;
use crate::file_core::Mapping;
use crate::index::PageIndex;
use crate::locked_folio::LockedFolio;
use crate::store::Tag;
use quire_arch::{Order, Pfn, Platform};
use quire_frame::{FrameFlags, OwnerWord};
use quire_sync::atomic::raw::Ordering;

impl<'m, P: Platform, V: Mapping> PageCache<'m, P, V> {
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
    pub(super) fn remove(self, file: &CachedFile<P>, index: PageIndex, folio: &LockedFolio<'m, P>) {
        let head = folio.head();
        debug_assert!(
            !folio.frame().word().flags().contains(FrameFlags::WRITEBACK),
            "{head:?} is being written"
        );
        let removed = file.with_store(self.frames(), |store| {
            file.turn(self.frames(), store, (index, head), Tag::Dirty, Turn::Off);
            store.remove(index)
        });
        debug_assert!(removed.is_some_and(|stored| stored.entry == Entry::Folio(head)));
        folio.frame().as_folio().set_owner(OwnerWord::NONE);
        file.memory().cached.fetch_sub(Order::ZERO.pages(), Ordering::Relaxed);
        // The cache's reference; the caller's is still there.
        let last = folio.frame().put(1);
        debug_assert!(!last, "{head:?} had no reference of the cache");
    }
}

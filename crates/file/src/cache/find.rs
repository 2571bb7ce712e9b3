//! Finding cached folios.

use super::PageCache;
use crate::backing::FileError;
use crate::cached_file::{CachedFile, Turn};
use crate::entry::Entry;
use crate::file_core::Mapping;
use crate::index::PageIndex;
use crate::locked_folio::LockedFolio;
use crate::store::Tag;
use core::fmt;
use quire_arch::{Order, Pfn, Platform};
use quire_frame::{FolioGuard, FrameFlags, OwnerWord};
use quire_sync::atomic::raw::Ordering;

/// What was found without waiting.
#[must_use = "a folio that was found is locked"]
pub enum Lookup<'m, P: Platform> {
    /// The folio.
    Folio(LockedFolio<'m, P>),
    /// Another thread has locked it: it reads it, writes it, or removes it.
    Busy,
    /// The page is not cached.
    Nothing,
    /// The file ends before it.
    PastEnd,
}

impl<P: Platform> fmt::Debug for Lookup<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folio(folio) => f.debug_tuple("Folio").field(folio).finish(),
            Self::Busy => f.write_str("Busy"),
            Self::Nothing => f.write_str("Nothing"),
            Self::PastEnd => f.write_str("PastEnd"),
        }
    }
}

/// What a folio is that was found and then locked.
enum Is<'m, P: Platform> {
    /// What was looked for.
    Wanted(LockedFolio<'m, P>),
    /// It could not be read, and has left the cache.
    Failed,
    /// It has left the cache.
    Gone,
}

impl<'m, P: Platform, V: Mapping> PageCache<'m, P, V> {
    /// The folio of page `index`, locked, if that is possible at once. For a fault: it may map what it gets,
    /// as a thread that removes the page, or makes the file smaller, waits for the lock.
    pub fn find(self, file: &CachedFile<P>, index: PageIndex) -> Lookup<'m, P> {
        loop {
            let Some(head) = self.get(file, index) else {
                return if file.ends_before(index) { Lookup::PastEnd } else { Lookup::Nothing };
            };
            let Some(guard) = self.frames().folios().try_lock_folio(head) else {
                self.memcgs.folios().release_folio(head);
                return Lookup::Busy;
            };
            match self.recheck(file, index, head, guard) {
                // Only now: the size is stored before folios are removed.
                Is::Wanted(_) if file.ends_before(index) => return Lookup::PastEnd,
                Is::Wanted(folio) => return Lookup::Folio(folio),
                Is::Failed => return Lookup::Nothing,
                Is::Gone => {}
            }
        }
    }

    /// A reference to the folio of page `index`.
    fn get(self, file: &CachedFile<P>, index: PageIndex) -> Option<Pfn> {
        let pin = self.platform().pin();
        let section = self.frames().epoch().enter(&pin);
        let mut attempt = 0;
        loop {
            // SAFETY: nodes are retired through the epoch of this machine's frames, and the file lives while
            // the caller has it.
            let found = unsafe { file.store.find(index, &section) }?;
            let Entry::Folio(head) = found.stored().entry else { return None };
            if self.frames().known(head).try_get_folio() {
                if found.is_current() {
                    return Some(head);
                }
                self.memcgs.folios().release_folio(head);
            }
            P::relax(attempt);
            attempt = attempt.saturating_add(1);
        }
    }

    /// What the folio at `head` is, of which the caller has the lock and a reference.
    fn recheck(
        self,
        file: &CachedFile<P>,
        index: PageIndex,
        head: Pfn,
        guard: FolioGuard<'m, P>,
    ) -> Is<'m, P> {
        let folio = LockedFolio::new(self.memcgs, head, guard);
        if file.has(folio.frame(), index) {
            Is::Wanted(folio)
        } else if folio.frame().word().flags().contains(FrameFlags::READ_FAILED) {
            Is::Failed
        } else {
            Is::Gone
        }
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
            let Some(head) = self.get(file, index) else { return Ok(None) };
            let Some(guard) = self.frames().folios().lock_folio(head) else {
                debug_assert!(false, "no folio at {head:?}, to which there is a reference");
                return Ok(None);
            };
            match self.recheck(file, index, head, guard) {
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
        match self.recheck(file, index, head, guard) {
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

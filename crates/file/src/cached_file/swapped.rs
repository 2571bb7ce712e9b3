//! Pages of shared memory that come back from swap devices.
//!
//! Nothing here waits: a fault may do it pinned.

use super::CachedFile;
use super::unused::UnusedPages;
use crate::entry::{Entry, Payload};
use crate::error::SwappedPage;
use crate::index::PageIndex;
use crate::locked_folio::{Lent, LockedFolio};
use quire_arch::{Order, Pfn, Platform};
use quire_frame::{FolioGuard, FrameFlags, Frames};
use quire_memcg::{MemcgId, Memcgs};
use quire_swap::{Shadow, Swap};
use quire_sync::atomic::raw::Ordering;

/// What of a file of shared memory is on swap devices.
#[derive(Debug)]
pub struct SwappedPages<'f, P: Platform>(&'f CachedFile<P>);

impl<'f, P: Platform> SwappedPages<'f, P> {
    /// Those of this file.
    #[inline]
    pub const fn of(file: &'f CachedFile<P>) -> Self {
        Self(file)
    }

    /// Where page `index` is, if it is on a swap device, at a moment.
    pub fn find(&self, frames: &Frames<P>, index: PageIndex) -> Option<SwappedPage> {
        if self.0.swapped.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let pin = frames.platform().pin();
        let section = frames.epoch().enter(&pin);
        // SAFETY: nodes are retired through the epoch of this machine's frames, and the file lives while the
        // caller has it.
        let found = unsafe { self.0.store.find(index, &section) }?;
        found.stored().entry.swap_slot().map(|slot| SwappedPage { index, slot })
    }

    /// Puts the page that `page` names, which was swapped in to the folio at `head`, in the place of its
    /// slot, and calls `names_gone` when that is not named any more. Returns the folio, or `None` if the file
    /// does not have the slot there, or the folio is not of one page: nothing has changed then.
    ///
    /// # Safety
    ///
    /// The caller has the folio lock and a reference, for as long as the result is used.
    pub unsafe fn adopt<'m>(
        &self,
        memcgs: &'m Memcgs<P>,
        page: SwappedPage,
        head: Pfn,
        names_gone: impl FnOnce(),
    ) -> Option<Lent<'m, P>> {
        let is_adopted = self.replace_slot(memcgs, page, head, || true, names_gone);
        // SAFETY: the caller's promise.
        is_adopted.then(|| unsafe { LockedFolio::lent(memcgs, head) })
    }

    /// The same for a copy of the page: the folio at `head` is new, locked and charged. Its reference goes to
    /// the result, or is dropped where there is none.
    pub fn adopt_copy<'m>(
        &self,
        memcgs: &'m Memcgs<P>,
        page: SwappedPage,
        (head, guard): (Pfn, FolioGuard<'m, P>),
        names_gone: impl FnOnce(),
    ) -> Option<LockedFolio<'m, P>> {
        // Otherwise it is not the lock, and the reference is not given.
        let is_locked = guard.is_of(memcgs.frames(), head);
        let folio = is_locked.then(|| LockedFolio::new(memcgs, head, guard))?;
        self.replace_slot(memcgs, page, head, || true, names_gone).then_some(folio)
    }

    /// The same for a page of zeros: the folio at `head` is new, locked, charged to `memcg` as the slot is,
    /// and filled with zeros. Its reference goes to the result, with the slot's shadow, or is dropped where
    /// there is none: the slot is not the file's, or not as it was.
    pub fn adopt_zeros<'m>(
        &self,
        swap: &'m Swap<P>,
        page: SwappedPage,
        (head, guard): (Pfn, FolioGuard<'m, P>),
        memcg: u16,
    ) -> Option<(LockedFolio<'m, P>, Option<Shadow>)> {
        let memcgs = swap.memcgs();
        let is_locked = guard.is_of(memcgs.frames(), head);
        let folio = is_locked.then(|| LockedFolio::new(memcgs, head, guard))?;
        let mut shadow = None;
        let takes = || {
            let taken = swap.cache().take_zeros(page.slot, memcg);
            shadow = taken.flatten();
            taken.is_some()
        };
        self.replace_slot(memcgs, page, head, takes, || {}).then_some((folio, shadow))
    }

    /// Replaces a slot by a folio of one page that nothing maps, if the file has the slot and `takes` it.
    fn replace_slot(
        &self,
        memcgs: &Memcgs<P>,
        page: SwappedPage,
        head: Pfn,
        takes: impl FnOnce() -> bool,
        names_gone: impl FnOnce(),
    ) -> bool {
        let (frames, frame) = (memcgs.frames(), memcgs.frames().known(head));
        let SwappedPage { index, slot } = page;
        let word = frame.word();
        if word.order() != Order::ZERO || !word.kind().is_swap_backed() || frame.as_folio().maps() != 0 {
            return false;
        }
        let is_replaced = self.0.with_store(frames, |store| {
            let has_slot = store.get(index).is_some_and(|stored| {
                stored.order == Order::ZERO && stored.entry == Entry::Slot(Payload::low_bits(slot.raw()))
            });
            if !has_slot || !frame.get(1) {
                return false;
            }
            if !takes() {
                frame.put(1);
                return false;
            }
            frame.make_shmem();
            frame.as_folio().set_index(index.get());
            frame.as_folio().set_owner(self.0.owner_word());
            frame.set_flags(FrameFlags::SHARED_BY_NAME | FrameFlags::DIRTY);
            let replaced = store.replace(index, Entry::Folio(head));
            debug_assert!(replaced.is_ok(), "{head:?} has no room in a word");
            self.0.swapped.fetch_sub(1, Ordering::Relaxed);
            UnusedPages::of(self.0).unmark(store, index);
            names_gone();
            true
        });
        if is_replaced {
            let memcg = MemcgId::from_bits(frame.as_folio().memcg());
            if !memcg.is_root() {
                memcgs.folios().own_file_page(&frames.platform().pin(), frame, memcg);
            }
            self.0.count_came(memcgs, head, Order::ZERO);
        }
        is_replaced
    }
}

//! Pages of shared memory that come back from swap devices.
//!
//! Nothing here waits: a fault may do it pinned.

use super::CachedFile;
use super::kept::KeptFolio;
use super::unused::UnusedPages;
use crate::entry::Entry;
use crate::error::SwappedPage;
use crate::index::PageIndex;
use crate::locked_folio::{Lent, LockedFolio};
use crate::slabs::NodesOn;
use crate::source::Reserve;
use crate::store::{InsertError, LockedStore};
use quire_arch::{Order, Pfn, Platform};
use quire_frame::{AllocError, FolioCounter, FolioGuard, FrameFlags, Frames};
use quire_memcg::{MemcgId, Memcgs};
use quire_swap::{Shadow, Swap};
use quire_sync::atomic::raw::Ordering;

/// A page of zeros, with the shadow of its slot.
pub type CameAsZeros<'m, P> = (LockedFolio<'m, P>, Option<Shadow>);

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
        SwappedPage::of(&found.stored(), index)
    }

    /// Calls `work` with the store locked, if it has the slots of the aligned block of `page.order` around
    /// the page as they were; those of a larger block are divided before. `None` if it has not.
    ///
    /// # Errors
    ///
    /// There is no memory for the nodes of a division.
    pub(crate) fn with_slots<R>(
        &self,
        frames: &Frames<P>,
        page: SwappedPage,
        work: impl FnOnce(&mut LockedStore<'_, P, NodesOn<'_, P>>) -> R,
    ) -> Result<Option<R>, AllocError> {
        let SwappedPage { index, slot, order } = page;
        let (start, first) = (index.block_start(order), slot.block_start(order));
        let nth = index.get() - start.get();
        if slot.raw() - first.raw() != nth {
            return Ok(None);
        }
        let nodes = self.0.memory().nodes(frames);
        // SAFETY: the stores of a machine's files are locked with its nodes.
        let mut reserve = unsafe { Reserve::new(&nodes) };
        let mut work = Some(work);
        loop {
            let needs = self.0.with_store_on(&nodes, frames, |store| {
                let there = store.get(index).and_then(|stored| SwappedPage::of(&stored, index));
                match there.filter(|there| there.slot == slot && there.order >= order) {
                    Some(there) if there.order > order => match store.split(index, order, &mut reserve) {
                        Err(InsertError::NeedsNodes(needs)) => return Err(needs),
                        Ok(_) => {}
                        Err(_) => return Ok(None),
                    },
                    Some(_) => {}
                    None => return Ok(None),
                }
                Ok(work.take().map(|work| work(store)))
            });
            match needs {
                Ok(done) => return Ok(done),
                Err(needs) => reserve.fill(needs)?,
            }
        }
    }

    /// Puts the folio at `head`, which was swapped in for `page`, in the place of its slots, and calls
    /// `names_gone` when these are not named any more. Returns the folio, or `None` if the file does not have
    /// the slots there: nothing has changed then, but perhaps the file has more pieces of one block.
    ///
    /// # Errors
    ///
    /// There is no memory for nodes.
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
    ) -> Result<Option<Lent<'m, P>>, AllocError> {
        let is_adopted = self.replace_slots(memcgs, page, head, || true, names_gone)?;
        // SAFETY: the caller's promise.
        Ok(is_adopted.then(|| unsafe { LockedFolio::lent(memcgs, head) }))
    }

    /// The same for a copy of the page: the folio at `head` is new, locked and charged. Its reference goes to
    /// the result, or is dropped where there is none.
    ///
    /// # Errors
    ///
    /// As for [`adopt`](Self::adopt).
    pub fn adopt_copy<'m>(
        &self,
        memcgs: &'m Memcgs<P>,
        page: SwappedPage,
        (head, guard): (Pfn, FolioGuard<'m, P>),
        names_gone: impl FnOnce(),
    ) -> Result<Option<LockedFolio<'m, P>>, AllocError> {
        // Otherwise it is not the lock, and the reference is not given.
        let is_locked = guard.is_of(memcgs.frames(), head);
        let Some(folio) = is_locked.then(|| LockedFolio::new(memcgs, head, guard)) else { return Ok(None) };
        Ok(self.replace_slots(memcgs, page, head, || true, names_gone)?.then_some(folio))
    }

    /// The same for a page of zeros: the folio at `head` is new, locked, charged to `memcg` as the slot is,
    /// and filled with zeros. Its reference goes to the result, with the slot's shadow, or is dropped where
    /// there is none: the slot is not the file's, or not as it was.
    ///
    /// # Errors
    ///
    /// As for [`adopt`](Self::adopt).
    pub fn adopt_zeros<'m>(
        &self,
        swap: &'m Swap<P>,
        page: SwappedPage,
        (head, guard): (Pfn, FolioGuard<'m, P>),
        memcg: u16,
    ) -> Result<Option<CameAsZeros<'m, P>>, AllocError> {
        let memcgs = swap.memcgs();
        let is_locked = guard.is_of(memcgs.frames(), head);
        let Some(folio) = is_locked.then(|| LockedFolio::new(memcgs, head, guard)) else { return Ok(None) };
        let mut shadow = None;
        let takes = || {
            let taken = swap.cache().take_zeros(page.slot, memcg);
            shadow = taken.flatten();
            taken.is_some()
        };
        Ok(self.replace_slots(memcgs, page, head, takes, || {})?.then_some((folio, shadow)))
    }

    /// Replaces the slots of the block around `page` by a folio of its order that nothing maps, if the file
    /// has them and `takes` it.
    fn replace_slots(
        &self,
        memcgs: &Memcgs<P>,
        page: SwappedPage,
        head: Pfn,
        takes: impl FnOnce() -> bool,
        names_gone: impl FnOnce(),
    ) -> Result<bool, AllocError> {
        let (frames, frame) = (memcgs.frames(), memcgs.frames().known(head));
        let word = frame.word();
        let order = word.order();
        if !word.kind().is_swap_backed() || frame.as_folio().maps() != 0 {
            return Ok(false);
        }
        let start = page.index.block_start(order);
        let replaced = self.with_slots(frames, SwappedPage { order, ..page }, |store| {
            if !frame.get(1) {
                return false;
            }
            if !takes() {
                frame.put(1);
                return false;
            }
            frame.make_shmem();
            frame.as_folio().set_index(start.get());
            frame.as_folio().set_owner(self.0.owner_word());
            frame.set_flags(FrameFlags::SHARED_BY_NAME | FrameFlags::DIRTY);
            let replaced = store.replace(start, Entry::Folio(head));
            debug_assert!(replaced.is_ok(), "{head:?} has no room in a word");
            self.0.swapped.fetch_sub(order.pages(), Ordering::Relaxed);
            UnusedPages::of(self.0).unmark(store, start);
            names_gone();
            true
        })?;
        let is_replaced = replaced == Some(true);
        if is_replaced {
            if order > Order::ZERO && !word.kind().is_of_file() {
                // It was read as one of private memory.
                let pin = frames.platform().pin();
                frames.events().count_folio(&pin, order, FolioCounter::NrAnon, -1);
            }
            let memcg = MemcgId::from_bits(frame.as_folio().memcg());
            if !memcg.is_root() {
                memcgs.folios().own_file_page(&frames.platform().pin(), frame, memcg);
            }
            self.0.count_came(memcgs, head, order);
            // If it is listed already.
            KeptFolio::new(self.0, head).cull(memcgs, &frames.platform().pin());
        }
        Ok(is_replaced)
    }
}

//! Pages of shared memory that come back from swap devices.
//!
//! Nothing here waits: a fault may do it pinned.

use super::CachedFile;
use super::kept::KeptFolio;
use super::unused::UnusedPages;
use crate::entry::{Entry, Stored};
use crate::error::SwappedPage;
use crate::locked_folio::{Lent, LockedFolio};
use crate::slabs::NodesOn;
use crate::source::Reserve;
use crate::store::{InsertError, LockedStore};
use quire_arch::{Order, Pfn, Pin, Platform};
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
        if !is_aligned(page) {
            return Ok(None);
        }
        let mut work = Some(work);
        loop {
            let done = self.0.with_store(frames, |store| {
                let there = slots_at(page, store.get(page.index)?)?;
                // A division comes first.
                Some(if there.order > page.order { None } else { work.take().map(|work| work(store)) })
            });
            match done {
                Some(None) if self.divide(frames, page)? => {}
                done => return Ok(done.flatten()),
            }
        }
    }

    /// Divides the slots around the page that are one piece, so that those of the block of `page.order` are
    /// one. Returns false if the store does not have these any more.
    ///
    /// # Errors
    ///
    /// There is no memory for the nodes.
    // A frame of its own, with room for nodes: most folios come back as they went.
    #[cold]
    #[inline(never)]
    fn divide(&self, frames: &Frames<P>, page: SwappedPage) -> Result<bool, AllocError> {
        let nodes = self.0.memory().nodes(frames);
        // SAFETY: the stores of a machine's files are locked with its nodes.
        let mut reserve = unsafe { Reserve::new(&nodes) };
        loop {
            let needs = self.0.with_store_on(&nodes, frames, |store| {
                match store.get(page.index).and_then(|stored| slots_at(page, stored)) {
                    Some(there) if there.order > page.order => {
                        match store.split(page.index, page.order, &mut reserve) {
                            Err(InsertError::NeedsNodes(needs)) => Err(needs),
                            split => Ok(split.is_ok()),
                        }
                    }
                    there => Ok(there.is_some()),
                }
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
        (pin, swap): (&Pin<'_, P>, &'m Swap<P>),
        page: SwappedPage,
        (head, guard): (Pfn, FolioGuard<'m, P>),
        memcg: u16,
    ) -> Result<Option<CameAsZeros<'m, P>>, AllocError> {
        let memcgs = swap.memcgs();
        let is_locked = guard.is_of(memcgs.frames(), head);
        let Some(folio) = is_locked.then(|| LockedFolio::new(memcgs, head, guard)) else { return Ok(None) };
        let mut shadow = None;
        let takes = || {
            let taken = swap.cache().take_zeros(pin, page.slot, memcg);
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
        let (page, start) = (SwappedPage { order, ..page }, page.index.block_start(order));
        if !is_aligned(page) {
            return Ok(false);
        }
        let (mut takes, mut names_gone) = (Some(takes), Some(names_gone));
        let is_replaced = loop {
            let mut is_divided = true;
            let is_replaced = self.0.with_store(frames, |store| {
                let replaced = store.replace_by(page.index, |there| {
                    let there = slots_at(page, *there)?;
                    is_divided = there.order == order;
                    if !is_divided || !frame.get(1) {
                        return None;
                    }
                    if !takes.take().is_some_and(|takes| takes()) {
                        frame.put(1);
                        return None;
                    }
                    frame.make_shmem();
                    frame.as_folio().set_index(start.get());
                    frame.as_folio().set_owner(self.0.owner_word());
                    frame.set_flags(FrameFlags::SHARED_BY_NAME | FrameFlags::DIRTY);
                    Some(Entry::Folio(head))
                });
                debug_assert!(replaced.is_ok(), "{head:?} has no room in a word");
                let is_replaced = matches!(replaced, Ok(Some(_)));
                if is_replaced {
                    self.0.swapped.fetch_sub(order.pages(), Ordering::Relaxed);
                    UnusedPages::of(self.0).unmark(store, start);
                    names_gone.take().into_iter().for_each(|names_gone| names_gone());
                }
                is_replaced
            });
            if is_divided || !self.divide(frames, page)? {
                break is_replaced;
            }
        };
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

/// Whether the page lies in the block of its order as its slot does among the slots.
fn is_aligned(page: SwappedPage) -> bool {
    let SwappedPage { index, slot, order } = page;
    slot.raw() - slot.block_start(order).raw() == index.get() - index.block_start(order).get()
}

/// What is stored, if it is the slots of `page`, as one piece of its order or a larger one.
fn slots_at(page: SwappedPage, stored: Stored) -> Option<SwappedPage> {
    SwappedPage::of(&stored, page.index).filter(|there| there.slot == page.slot && there.order >= page.order)
}

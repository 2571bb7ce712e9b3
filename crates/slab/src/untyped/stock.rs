//! Where batches of slots come from, and where they go.
//!
//! All of it happens under the cache's lock, a batch under each hold. Returned batches wait whole in the
//! depot for the next CPU that needs one; only a surplus is put back on slabs, and only a shortage taken from
//! them.

use super::CacheCore;
use crate::geometry::{Shape, SlabState};
use crate::slabs::Slabs;
use crate::slot::{Slot, SlotList};
use core::ptr::{self, NonNull};
use quire_arch::{Pfn, Pin, Platform};
use quire_frame::{AllocError, AllocRequest, FolioList, Frames, Kind, MemoryMap, VmEvent};
use quire_sync::SpinGuard;

/// Slabs without an object in use that a cache keeps.
const KEEP_EMPTY: u32 = 2;
/// Slabs that are freed under one hold of the cache's lock.
const RELEASE_CHUNK: u32 = 32;

impl<P: Platform> CacheCore<P> {
    /// Slots for a front that has none, at least one. No lock is held while frames are allocated.
    pub(crate) fn refill(&self, frames: &Frames<P>, pin: &Pin<'_, P>) -> Result<SlotList, AllocError> {
        let batch = self.take(frames, None);
        if !batch.is_empty() {
            return Ok(batch);
        }
        match self.grow(frames, pin) {
            Ok(fresh) => Ok(self.take(frames, Some(fresh))),
            Err(error) => {
                // Making room may have freed objects of this cache.
                let batch = self.take(frames, None);
                if batch.is_empty() { Err(error) } else { Ok(batch) }
            }
        }
    }

    /// A new slab: of the best order if a block of that is readily free, else of the least order, draining if
    /// needed.
    fn grow(&self, frames: &Frames<P>, pin: &Pin<'_, P>) -> Result<(Pfn, Shape), AllocError> {
        let (best, least) = (self.geometry.best, self.geometry.least);
        let mut shape = best;
        loop {
            let mut request = AllocRequest::slab(shape.order);
            if shape.order > least.order {
                request = request.without_drain();
            }
            match frames.allocate(pin, request) {
                Ok(pfn) => {
                    frames.events().add(pin, VmEvent::SlabGrow, 1);
                    self.make_slab(frames, pfn, shape);
                    return Ok((pfn, shape));
                }
                Err(AllocError::OutOfMemory) if shape.order > least.order => shape = least,
                Err(error) => return Err(error),
            }
        }
    }

    /// Turns a block that was just allocated into a slab of free slots.
    fn make_slab(&self, frames: &Frames<P>, pfn: Pfn, shape: Shape) {
        let frame = frames.known(pfn);
        let (size, link) = (self.geometry.slot, self.link());
        let base = frames.platform().direct_map(pfn);
        let mut next = None;
        for number in (0..shape.objects).rev() {
            // SAFETY: `objects` slots of `size` bytes fit into the block, which this call owns, and each has
            // room for an aligned link word at `link`.
            let slot = unsafe { Slot::make(base, number as usize * size + link) };
            slot.set_next(next.as_ref());
            next = Some(slot);
        }
        frame.as_slab().set_cache(ptr::from_ref(self).addr() as u64);
        frame.as_slab().set_first_free(self.place_of(base, next.as_ref()));
        frame.as_slab().set_free(shape.objects);
        // SAFETY: the block was allocated to this call.
        let classified = unsafe { frame.classify_slab(Kind::Slab) };
        debug_assert!(classified.is_ok(), "a block that was just allocated can become a slab");
    }

    /// A batch of slots: from the depot, else off the fullest slabs, as many as it takes. `fresh` joins the
    /// cache before that.
    fn take(&self, frames: &Frames<P>, fresh: Option<(Pfn, Shape)>) -> SlotList {
        let map = frames.map();
        let mut slabs = self.slabs.lock();
        if let Some((slab, shape)) = fresh {
            slabs.add(map, slab, shape);
        }
        if let Some(batch) = slabs.depot.pop() {
            return batch;
        }
        let mut batch = SlotList::EMPTY;
        while batch.count() < self.batch
            && let Some(slab) = slabs.fullest(map)
        {
            self.take_from(frames, &mut slabs, slab, &mut batch);
        }
        batch
    }

    /// Moves slots off one slab's free list until the batch is complete, under the cache's lock.
    fn take_from(&self, frames: &Frames<P>, slabs: &mut Slabs, slab: Pfn, batch: &mut SlotList) {
        let frame = frames.known(slab);
        let (base, shape) = (frames.platform().direct_map(slab), self.shape_of(frames.map(), slab));
        let free = frame.as_slab().free();
        let before = batch.count();
        let next = batch.fill(self.slot_at(base, shape, frame.as_slab().first_free()), self.batch);
        let left = free.saturating_sub(batch.count() - before);
        frame.as_slab().set_first_free(self.place_of(base, next.as_ref()));
        // A list that ends too early is broken; its slab must not be tried again.
        frame.as_slab().set_free(if next.is_none() { 0 } else { left });
        debug_assert!(next.is_some() || left == 0, "a slab of {} has lost slots", self.name);
        self.relist(frames, slabs, slab, shape.state(free));
    }

    /// Takes a CPU's surplus batch, if any.
    pub(crate) fn store(&self, frames: &Frames<P>, pin: &Pin<'_, P>, batch: SlotList) {
        if batch.is_empty() {
            return;
        }
        let mut slabs = self.slabs.lock();
        if let Err(batch) = slabs.depot.push(batch) {
            self.put_back(frames, pin, slabs, batch);
        }
    }

    /// Puts a batch of free slots back on their slabs and frees surplus slabs. Returns the number of
    /// frames.
    pub(crate) fn put_back(
        &self,
        frames: &Frames<P>,
        pin: &Pin<'_, P>,
        mut slabs: SpinGuard<'_, Slabs, P>,
        mut batch: SlotList,
    ) -> u64 {
        while let Some(slot) = batch.pop() {
            self.put_slot(frames, &mut slabs, &slot);
        }
        let surplus = self.surplus(frames.map(), &mut slabs, KEEP_EMPTY);
        drop(slabs);
        self.release(frames, pin, surplus)
    }

    /// Puts one slot on its slab's free list, under the cache's lock.
    fn put_slot(&self, frames: &Frames<P>, slabs: &mut Slabs, slot: &Slot) {
        let map = frames.map();
        let Some(pfn) = map.pfn_of_address(slot.address()) else {
            debug_assert!(false, "a slot of {} lies outside RAM", self.name);
            return;
        };
        let slab = self.home(map, pfn);
        let frame = map.known(slab);
        let (base, shape) = (frames.platform().direct_map(slab), self.shape_of(map, slab));
        let free = frame.as_slab().free();
        let first = self.slot_at(base, shape, frame.as_slab().first_free());
        slot.set_next(first.as_ref());
        frame.as_slab().set_first_free(self.place_of(base, Some(slot)));
        frame.as_slab().set_free(free + 1);
        self.relist(frames, slabs, slab, shape.state(free));
    }

    /// Moves a slab that was on the list of `before` to the one that it belongs on now.
    fn relist(&self, frames: &Frames<P>, slabs: &mut Slabs, slab: Pfn, before: SlabState) {
        let map = frames.map();
        let free = map.known(slab).as_slab().free();
        let now = self.shape_of(map, slab).state(free);
        if now != before {
            slabs.list(before).remove(map, slab);
            slabs.list(now).push_front(map, slab);
        }
    }

    /// Takes empty slabs off their list until `keep` are left or there are enough for one hold of the lock.
    fn surplus(&self, map: &MemoryMap, slabs: &mut Slabs, keep: u32) -> FolioList {
        let mut surplus = FolioList::new();
        while surplus.folios() < RELEASE_CHUNK
            && let Some(slab) = slabs.take_empty(map, keep, |slab| self.shape_of(map, slab))
        {
            surplus.push_back(map, slab);
        }
        surplus
    }

    /// Gives back slabs that are on no list and whose slots are all free. Returns the number of frames.
    fn release(&self, frames: &Frames<P>, pin: &Pin<'_, P>, mut slabs: FolioList) -> u64 {
        let mut pages = 0;
        while let Some(slab) = slabs.pop_back(frames.map()) {
            let frame = frames.known(slab);
            let order = frame.word().order();
            frames.events().add(pin, VmEvent::SlabShrink, 1);
            // SAFETY: the slab is this cache's, and no slot of it is in use or on another list.
            let classified = unsafe { frame.classify_slab(Kind::Allocated) };
            let freed = frames.free(pin, slab, order);
            debug_assert!(classified.is_ok() && freed.is_ok(), "a slab of {}: {freed:?}", self.name);
            pages += order.pages();
        }
        pages
    }

    /// Gives back every slab that is not needed, after the depot was emptied. Returns the number of frames.
    pub(crate) fn shrink_slabs(&self, frames: &Frames<P>, pin: &Pin<'_, P>) -> u64 {
        let mut pages = 0;
        loop {
            let mut slabs = self.slabs.lock();
            let Some(batch) = slabs.depot.pop() else { break };
            pages += self.put_back(frames, pin, slabs, batch);
        }
        loop {
            let surplus = self.surplus(frames.map(), &mut self.slabs.lock(), 0);
            match self.release(frames, pin, surplus) {
                0 => return pages,
                released => pages += released,
            }
        }
    }

    /// The first frame of the slab that a slot in frame `pfn` is on. Slabs have one of two orders: only if a
    /// slab of the best order lies there does it cover the frame.
    pub(crate) fn home(&self, map: &MemoryMap, pfn: Pfn) -> Pfn {
        let head = pfn.block_start(self.geometry.best.order);
        let word = map.known(head).word();
        if word.kind() == Kind::Slab && word.order() == self.geometry.best.order {
            head
        } else {
            pfn.block_start(self.geometry.least.order)
        }
    }

    /// The shape of one of the cache's slabs.
    pub(crate) fn shape_of(&self, map: &MemoryMap, slab: Pfn) -> Shape {
        let order = map.known(slab).word().order();
        if order == self.geometry.best.order { self.geometry.best } else { self.geometry.least }
    }

    /// The slot at `place` of a slab of this cache at `base`, as the slab's descriptor names the first of its
    /// free list: none for 0 or behind its last slot. The caller holds the cache's lock.
    pub(crate) fn slot_at(&self, base: NonNull<u8>, shape: Shape, place: u64) -> Option<Slot> {
        let end = u64::from(shape.objects) * self.geometry.slot as u64;
        let offset = place.checked_sub(1).filter(|&offset| offset < end)?;
        // SAFETY: a slot begins there, and the slab's free list is the caller's by the lock.
        Some(unsafe { Slot::at(base, offset as usize + self.link()) })
    }

    /// The value for a slot in the descriptor of the slab at `base`: its offset plus one, 0 for none.
    fn place_of(&self, base: NonNull<u8>, slot: Option<&Slot>) -> u64 {
        slot.map_or(0, |slot| (slot.address() - self.link() - base.addr().get()) as u64 + 1)
    }
}

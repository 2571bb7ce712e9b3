//! A cache without its type: slots in, slots out.
//!
//! A slot is in one of four places: in use; on a CPU's front (free or retired); on the free list of its slab. A
//! slab's descriptor holds its state while its kind is [`Kind::Slab`]: `owner` the cache, `private` the first free
//! slot's number plus one, `live` the number of free slots. Slabs are on one of three lists by how full they are.

use super::front::Front;
use super::geometry::Geometry;
use super::slot::{self, SlotList, SlotPtr};
use crate::chain::FrameStack;
use crate::counters::VmEvent;
use crate::error::AllocError;
use crate::faults::{FaultClass, FaultSite};
use crate::frames::Frames;
use crate::map::{FrameIndex, Kind};
use crate::request::AllocRequest;
use crate::zone::FrameList;
use core::ptr;
use quire_arch::{Order, Pfn, Pin, Platform};
use quire_sync::atomic::raw::{AtomicPtr, Ordering};
use quire_sync::{PerCpu, SpinLock};

/// Slabs without an object in use that a cache keeps.
const KEEP_EMPTY: u64 = 2;
/// Bytes of free objects that a CPU keeps, and bounds on their number.
const FRONT_BYTES: usize = 8 << 10;
const FRONT_OBJECTS: (usize, usize) = (8, 64);
/// Slots that go back to their slabs under one hold of the cache's lock.
const PUT_CHUNK: u32 = 32;
/// Retired objects that each retiring call frees: more than it adds.
const REAP_PORTION: u32 = 4;

/// The slabs of a cache, by how full they are; behind a lock of class `Slab`.
#[derive(Debug)]
pub(super) struct Slabs {
    pub(super) partial: FrameList,
    pub(super) full: FrameList,
    pub(super) empty: FrameList,
}

/// What a slab's descriptor says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlabState {
    /// No slot is free.
    Full,
    /// Some are.
    Partial,
    /// All are.
    Empty,
}

/// One cache. Lies in frames of its own and stays there as long as the machine.
pub(crate) struct CacheCore<P> {
    pub(super) name: &'static str,
    site: FaultSite,
    pub(super) geometry: Geometry,
    /// Ends the object in a slot, if its type needs that.
    drop: Option<unsafe fn(SlotPtr)>,
    /// Free slots that a CPU keeps at most.
    limit: u32,
    area: (Pfn, Order),
    pub(super) fronts: PerCpu<SpinLock<Front, P>>,
    pub(super) slabs: SpinLock<Slabs, P>,
    pub(super) next: AtomicPtr<Self>,
}

/// What a cache is made from.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheSpec {
    pub(super) name: &'static str,
    pub(super) geometry: Geometry,
    pub(super) drop: Option<unsafe fn(SlotPtr)>,
}

impl<P: Platform> CacheCore<P> {
    pub(super) fn new(spec: CacheSpec, area: (Pfn, Order), fronts: PerCpu<SpinLock<Front, P>>) -> Self {
        let limit = (FRONT_BYTES / spec.geometry.slot).clamp(FRONT_OBJECTS.0, FRONT_OBJECTS.1);
        let slabs = Slabs { partial: FrameList::EMPTY, full: FrameList::EMPTY, empty: FrameList::EMPTY };
        Self {
            name: spec.name,
            site: FaultSite::new(spec.name),
            geometry: spec.geometry,
            drop: spec.drop,
            limit: limit as u32,
            area,
            fronts,
            slabs: SpinLock::new(quire_arch::LockClass::Slab, slabs),
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// The frames that the cache itself lies in.
    pub(crate) fn area(&self) -> (Pfn, Order) {
        self.area
    }

    pub(super) fn link(&self) -> usize {
        self.geometry.link
    }

    /// A free slot, marked as in use.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(super) fn allocate(&self, frames: &Frames<P>, pin: &Pin<'_, P>) -> Result<SlotPtr, AllocError> {
        if frames.faults().strikes(FaultClass::Object, self.site) {
            return Err(AllocError::Injected);
        }
        let lock = self.fronts.mine(pin);
        let mut front = lock.lock();
        // SAFETY: the front holds slots of this cache.
        if let Some(slot) = unsafe { front.free.pop(self.link()) } {
            front.in_use += 1;
            drop(front);
            // SAFETY: the slot was just taken off the list, so it is ours.
            unsafe { slot::mark_live(slot, self.link()) };
            return Ok(slot);
        }
        drop(front);
        self.allocate_slow(frames, pin)
    }

    #[cold]
    fn allocate_slow(&self, frames: &Frames<P>, pin: &Pin<'_, P>) -> Result<SlotPtr, AllocError> {
        let mut list = self.refill(frames, pin)?;
        // SAFETY: `refill` hands over slots of this cache.
        let slot = unsafe { list.pop(self.link()) }.ok_or(AllocError::OutOfMemory)?;
        let mut front = self.fronts.mine(pin).lock();
        // SAFETY: as above.
        unsafe { front.free.prepend(&mut list, self.link()) };
        front.in_use += 1;
        drop(front);
        // SAFETY: the slot was taken off its list, so it is ours.
        unsafe { slot::mark_live(slot, self.link()) };
        Ok(slot)
    }

    /// Slots for a front that has none: from a slab that has free ones, else from a new one. No lock is held while
    /// frames are allocated.
    fn refill(&self, frames: &Frames<P>, pin: &Pin<'_, P>) -> Result<SlotList, AllocError> {
        let list = self.take(frames, None);
        if !list.is_empty() {
            return Ok(list);
        }
        match frames.allocate(pin, AllocRequest::slab(self.geometry.order)) {
            Ok(pfn) => {
                frames.events().add(pin, VmEvent::SlabGrow, 1);
                Ok(self.take(frames, Some(self.make_slab(frames, pfn))))
            }
            Err(error) => {
                // Making room may have brought objects of this very cache home.
                let list = self.take(frames, None);
                if list.is_empty() { Err(error) } else { Ok(list) }
            }
        }
    }

    /// Turns a block that was just allocated into a slab of free slots.
    fn make_slab(&self, frames: &Frames<P>, pfn: Pfn) -> FrameIndex {
        let index = frames.map().index(pfn);
        let frame = frames.map().at(index);
        let Geometry { slot: size, objects, link, .. } = self.geometry;
        let base = frames.platform().direct_map(pfn);
        for number in (0..objects).rev() {
            // SAFETY: `objects` slots of `size` bytes fit into the block, which this call owns, and each has room for
            // an aligned link word at `link`.
            unsafe {
                let slot = base.add(number as usize * size);
                slot.add(link).cast::<AtomicPtr<u8>>().write(AtomicPtr::new(ptr::null_mut()));
                let next = (number + 1 < objects).then(|| slot.add(size));
                slot::set_next(slot, link, next);
            }
        }
        frame.owner().store(ptr::from_ref(self).addr() as u64, Ordering::Relaxed);
        frame.private().store(1, Ordering::Relaxed);
        frame.live().store(objects, Ordering::Relaxed);
        let classified = frame.classify_internal(Kind::Slab);
        debug_assert!(classified.is_ok(), "a block that was just allocated can become a slab");
        index
    }

    /// Takes slots from one slab: from `fresh`, which joins the cache, else from the fullest that has any.
    fn take(&self, frames: &Frames<P>, fresh: Option<FrameIndex>) -> SlotList {
        let map = frames.map();
        let mut slabs = self.slabs.lock();
        if let Some(index) = fresh {
            slabs.empty.push(map, index);
        }
        let found = slabs.partial.first().map(|index| (index, SlabState::Partial));
        let Some((index, state)) = found.or(slabs.empty.first().map(|index| (index, SlabState::Empty)))
        else {
            return SlotList::default();
        };
        let list = self.take_from(frames, index, self.limit / 2);
        self.relist(frames, &mut slabs, index, state);
        list
    }

    /// Takes up to `limit` slots off one slab's free list, under the cache's lock.
    fn take_from(&self, frames: &Frames<P>, index: FrameIndex, limit: u32) -> SlotList {
        let frame = frames.map().at(index);
        let base = frames.platform().direct_map(frames.map().pfn(index));
        let mut list = SlotList::default();
        let mut next = self.slot_of(base, frame.private().load(Ordering::Relaxed));
        while let Some(slot) = next.filter(|_| list.count() < limit) {
            // SAFETY: the slot is on its slab's free list, which the caller's lock guards; it moves to ours.
            unsafe {
                next = slot::next(slot, self.link());
                list.push(slot, self.link());
            }
        }
        frame.private().store(self.number_of(base, next), Ordering::Relaxed);
        frame.live().store(frame.live().load(Ordering::Relaxed) - list.count(), Ordering::Relaxed);
        list
    }

    /// The slot whose number plus one is `number`; none for 0 or a number that the slab does not have.
    pub(super) fn slot_of(&self, base: SlotPtr, number: u64) -> Option<SlotPtr> {
        let slot = number.checked_sub(1).filter(|&slot| slot < u64::from(self.geometry.objects))?;
        // SAFETY: the slab has that many slots.
        Some(unsafe { base.add(slot as usize * self.geometry.slot) })
    }

    fn number_of(&self, base: SlotPtr, slot: Option<SlotPtr>) -> u64 {
        slot.map_or(0, |slot| ((slot.addr().get() - base.addr().get()) / self.geometry.slot + 1) as u64)
    }

    pub(super) fn state(&self, free: u32) -> SlabState {
        match free {
            0 => SlabState::Full,
            free if free == self.geometry.objects => SlabState::Empty,
            _ => SlabState::Partial,
        }
    }

    /// Moves a slab that was on the list of `before` to the one that it belongs on now.
    fn relist(&self, frames: &Frames<P>, slabs: &mut Slabs, index: FrameIndex, before: SlabState) {
        let now = self.state(frames.map().at(index).live().load(Ordering::Relaxed));
        if now != before {
            slabs.list(before).remove(frames.map(), index);
            slabs.list(now).push(frames.map(), index);
        }
    }

    /// Gives a slot back whose object is gone.
    ///
    /// # Safety
    ///
    /// The slot was allocated from this cache and is given back once.
    #[inline]
    pub(super) unsafe fn free(&self, frames: &Frames<P>, pin: &Pin<'_, P>, slot: SlotPtr) {
        // SAFETY: the caller owns the slot.
        let live = unsafe { slot::is_live(slot, self.link()) };
        debug_assert!(live, "an object of {} is freed twice", self.name);
        let mut front = self.fronts.mine(pin).lock();
        front.in_use -= 1;
        // SAFETY: the caller hands the slot over.
        unsafe { front.free.push(slot, self.link()) };
        if front.free.count() > self.limit {
            // SAFETY: the front holds slots of this cache.
            let surplus = unsafe { front.free.split(self.limit / 2, self.link()) };
            drop(front);
            self.put_back(frames, pin, surplus);
        }
    }

    /// Gives a slot back whose object lock-free readers may still look at. The object is ended when they are gone.
    ///
    /// # Safety
    ///
    /// As for [`free`](Self::free); nobody can find the object any more.
    pub(super) unsafe fn retire(&self, frames: &Frames<P>, pin: &Pin<'_, P>, slot: SlotPtr) {
        // SAFETY: the caller owns the slot.
        let live = unsafe { slot::is_live(slot, self.link()) };
        debug_assert!(live, "an object of {} is retired twice", self.name);
        let mut front = self.fronts.mine(pin).lock();
        front.in_use -= 1;
        // SAFETY: the caller hands the slot over.
        let passed = unsafe {
            front.retire(frames.epoch(), slot, self.link());
            front.collect(frames.epoch(), REAP_PORTION, self.link())
        };
        drop(front);
        if passed.is_empty() {
            // Nothing has passed: help the epoch on, so that something will.
            frames.epoch().advance();
        } else {
            self.end(frames, pin, passed);
        }
    }

    /// Ends retired objects whose readers are gone, with no lock held, and frees their slots.
    fn end(&self, frames: &Frames<P>, pin: &Pin<'_, P>, mut passed: SlotList) {
        let mut free = SlotList::default();
        // SAFETY: the list owns its slots; each holds an object that was retired and that nobody can reach any more.
        while let Some(slot) = unsafe { passed.pop(self.link()) } {
            // SAFETY: as above; the slot then belongs to nobody.
            unsafe {
                if let Some(drop) = self.drop {
                    drop(slot);
                }
                free.push(slot, self.link());
            }
        }
        let mut front = self.fronts.mine(pin).lock();
        // SAFETY: both lists hold slots of this cache.
        unsafe { front.free.prepend(&mut free, self.link()) };
        if front.free.count() > self.limit {
            let surplus = front.free.count() - self.limit / 2;
            // SAFETY: as above.
            let surplus = unsafe { front.free.split(surplus, self.link()) };
            drop(front);
            self.put_back(frames, pin, surplus);
        }
    }

    /// Frees what the fronts retired, as far as the readers are gone.
    pub(crate) fn reap(&self, frames: &Frames<P>, pin: &Pin<'_, P>) {
        frames.push_epoch();
        for lock in self.fronts.iter() {
            loop {
                // SAFETY: the front holds slots of this cache.
                let passed = unsafe { lock.lock().collect(frames.epoch(), PUT_CHUNK, self.link()) };
                if passed.is_empty() {
                    break;
                }
                self.end(frames, pin, passed);
            }
        }
    }

    /// Gives back every slab that is not needed: empties all fronts first. Returns the number of frames.
    pub(crate) fn shrink(&self, frames: &Frames<P>, pin: &Pin<'_, P>) -> u64 {
        self.reap(frames, pin);
        for lock in self.fronts.iter() {
            let free = core::mem::take(&mut lock.lock().free);
            self.put_back(frames, pin, free);
        }
        let mut freed = 0;
        loop {
            let mut slabs = self.slabs.lock();
            let Some(index) = slabs.empty.first() else { return freed };
            slabs.empty.remove(frames.map(), index);
            drop(slabs);
            freed += self.release_slab(frames, pin, index);
        }
    }

    /// Puts free slots back on their slabs, a chunk under each hold of the lock, and gives surplus slabs back.
    fn put_back(&self, frames: &Frames<P>, pin: &Pin<'_, P>, mut list: SlotList) {
        let map = frames.map();
        while !list.is_empty() {
            let mut surplus = FrameStack::EMPTY;
            let mut slabs = self.slabs.lock();
            for _ in 0..PUT_CHUNK {
                // SAFETY: the list owns its slots, which are of this cache.
                let Some(slot) = (unsafe { list.pop(self.link()) }) else { break };
                self.put_slot(frames, &mut slabs, slot);
            }
            while slabs.empty.count() > KEEP_EMPTY
                && let Some(index) = slabs.empty.first()
            {
                slabs.empty.remove(map, index);
                surplus.push(map, index);
            }
            drop(slabs);
            while let Some(index) = surplus.pop(map) {
                self.release_slab(frames, pin, index);
            }
        }
    }

    /// Puts one slot on its slab's free list, under the cache's lock.
    fn put_slot(&self, frames: &Frames<P>, slabs: &mut Slabs, slot: SlotPtr) {
        let map = frames.map();
        let Some(pfn) = map.pfn_of_address(slot.addr().get()) else {
            debug_assert!(false, "a slot of {} lies outside RAM", self.name);
            return;
        };
        let pfn = pfn.block_start(self.geometry.order);
        let index = map.index(pfn);
        let frame = map.at(index);
        let base = frames.platform().direct_map(pfn);
        let free = frame.live().load(Ordering::Relaxed);
        let first = self.slot_of(base, frame.private().load(Ordering::Relaxed));
        // SAFETY: the caller took the slot off a list, so it belongs to nobody.
        unsafe { slot::set_next(slot, self.link(), first) };
        frame.private().store(self.number_of(base, Some(slot)), Ordering::Relaxed);
        frame.live().store(free + 1, Ordering::Relaxed);
        self.relist(frames, slabs, index, self.state(free));
    }

    /// Gives back a slab that is on no list and whose slots are all free.
    fn release_slab(&self, frames: &Frames<P>, pin: &Pin<'_, P>, index: FrameIndex) -> u64 {
        frames.events().add(pin, VmEvent::SlabShrink, 1);
        let classified = frames.map().at(index).classify_internal(Kind::Allocated);
        let freed = frames.free(pin, frames.map().pfn(index), self.geometry.order);
        debug_assert!(classified.is_ok() && freed.is_ok(), "a slab of {}: {freed:?}", self.name);
        self.geometry.order.pages()
    }
}

impl Slabs {
    fn list(&mut self, state: SlabState) -> &mut FrameList {
        match state {
            SlabState::Full => &mut self.full,
            SlabState::Partial => &mut self.partial,
            SlabState::Empty => &mut self.empty,
        }
    }
}

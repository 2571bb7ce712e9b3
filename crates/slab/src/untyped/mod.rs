//! A cache without its type: slots in, slots out.
//!
//! A slot is in one of five places: in use; on a CPU's front (free or retired); in the depot; on the free
//! list of its slab. A slab's descriptor holds its state while its kind is
//! [`Kind::Slab`](quire_frame::Kind::Slab): `owner` the cache, `private` the first free slot's offset plus
//! one, `live` the number of free slots.

mod census;
mod report;
mod stock;

pub use report::{CacheReport, cache_reports};

use crate::front::Front;
use crate::geometry::Geometry;
use crate::slabs::Slabs;
use crate::slot::{Slot, SlotList, SlotPtr};
use core::ptr::NonNull;
use quire_arch::{LockClass, Order, Pfn, Pin, Platform};
use quire_frame::{
    AllocError, AllocRequest, CacheNode, FailClass, FailSite, FrameCache, FrameViolation, Frames, Kind, Turn,
};
use quire_sync::{CachePadded, PerCpu, SpinGuard, SpinLock};

/// Bytes in a batch, and bounds on its number of slots. A CPU keeps two.
const BATCH_BYTES: usize = 4 << 10;
const BATCH_SLOTS: (usize, usize) = (4, 32);
/// Retired objects that each retiring call frees: more than it adds.
const REAP_PORTION: u32 = 4;
/// Retired objects that leave a front at most under one hold of its lock.
const REAP_SLOTS: u32 = 32;

/// One cache. Lies in frames of its own and stays there as long as the machine.
pub(crate) struct CacheCore<P> {
    pub(crate) name: &'static str,
    site: FailSite,
    pub(crate) geometry: Geometry,
    /// Ends the object in a slot, if its type needs that.
    drop: Option<unsafe fn(SlotPtr)>,
    /// Slots that go from a front or to it at once.
    pub(crate) batch: u32,
    /// The frames that the cache itself lies in, unless another cache has them.
    area: Option<(Pfn, Order)>,
    pub(crate) fronts: PerCpu<SpinLock<Front, P>>,
    pub(crate) slabs: SpinLock<Slabs, P>,
    node: CacheNode<P>,
}

/// What a cache is made from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheSpec {
    pub(crate) name: &'static str,
    pub(crate) geometry: Geometry,
    pub(crate) drop: Option<unsafe fn(SlotPtr)>,
    /// The block that the cache lies in, unless it is another cache's.
    pub(crate) area: Option<(Pfn, Order)>,
}

impl<P: Platform> CacheCore<P> {
    /// Bytes of a cache for `cpus` CPUs.
    pub(crate) const fn bytes(cpus: usize) -> usize {
        size_of::<CachePadded<Self>>() + PerCpu::<SpinLock<Front, P>>::bytes(cpus)
    }

    /// A block for `count` caches.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn allocate_area(
        frames: &Frames<P>,
        pin: &Pin<'_, P>,
        count: usize,
    ) -> Result<(Pfn, Order), AllocError> {
        let bytes = Self::bytes(frames.platform().cpu_count()) * count;
        let order = Order::for_bytes(bytes as u64).ok_or(AllocError::OutOfMemory)?;
        let pfn = frames.allocate(pin, AllocRequest::slab(order))?;
        // SAFETY: the block is this call's.
        let classified = unsafe { frames.known(pfn).classify_slab(Kind::CacheArea) };
        debug_assert!(classified.is_ok(), "a block that was just allocated can become a cache's");
        Ok((pfn, order))
    }

    /// Makes a cache at `base`, and adds it to the machine's.
    ///
    /// # Safety
    ///
    /// [`bytes`](Self::bytes) bytes at `base`, aligned for [`CachePadded`], lie on the machine of `frames`
    /// and are the cache's as long as that is there.
    pub(crate) unsafe fn install(frames: &Frames<P>, base: NonNull<u8>, spec: CacheSpec) -> NonNull<Self> {
        let batch = (BATCH_BYTES / spec.geometry.slot).clamp(BATCH_SLOTS.0, BATCH_SLOTS.1);
        let cpus = frames.platform().cpu_count();
        let new_front = |_| SpinLock::new(LockClass::Slab, Front::default());
        let core = base.cast::<Self>();
        // SAFETY: the core, padded, and the fronts behind it are the bytes that the caller hands over. The
        // node is added once, when the cache is complete.
        unsafe {
            core.write(Self {
                name: spec.name,
                site: FailSite::new(spec.name),
                geometry: spec.geometry,
                drop: spec.drop,
                batch: batch as u32,
                area: spec.area,
                fronts: PerCpu::init(base.add(size_of::<CachePadded<Self>>()), cpus, new_front),
                slabs: SpinLock::new(LockClass::Slab, Slabs::EMPTY),
                node: CacheNode::new(core),
            });
            frames.caches().add(&core.as_ref().node);
        }
        core
    }

    #[inline]
    pub(crate) fn link(&self) -> usize {
        self.geometry.link
    }

    /// A free slot.
    // Always inlined, as `free`: each user has one call, and a result that is returned goes through memory.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn allocate(&self, frames: &Frames<P>, pin: &Pin<'_, P>) -> Result<Slot, AllocError> {
        if frames.fail_points().strikes(FailClass::Object, self.site) {
            return Err(AllocError::Injected);
        }
        let mut front = self.fronts.mine(pin).lock();
        if let Some(slot) = front.loaded.pop() {
            front.in_use += 1;
            return Ok(slot);
        }
        self.allocate_slow(frames, pin, front)
    }

    /// A slot from the spare batch, or from a new one.
    #[cold]
    #[inline(never)]
    fn allocate_slow(
        &self,
        frames: &Frames<P>,
        pin: &Pin<'_, P>,
        mut front: SpinGuard<'_, Front, P>,
    ) -> Result<Slot, AllocError> {
        front.load_spare();
        if let Some(slot) = front.loaded.pop() {
            front.in_use += 1;
            return Ok(slot);
        }
        drop(front);
        let mut batch = self.refill(frames, pin)?;
        let slot = batch.pop().ok_or(AllocError::OutOfMemory)?;
        let mut front = self.fronts.mine(pin).lock();
        front.in_use += 1;
        // Making room for the refill may have freed objects to this front.
        let surplus = if batch.is_empty() { batch } else { front.add(batch) };
        drop(front);
        self.store(frames, pin, surplus);
        Ok(slot)
    }

    /// Gives a slot of this cache back whose object is gone.
    #[inline(always)]
    pub(crate) fn free(&self, frames: &Frames<P>, pin: &Pin<'_, P>, slot: Slot) {
        let mut front = self.fronts.mine(pin).lock();
        front.in_use -= 1;
        if front.loaded.count() >= self.batch {
            front = self.make_room(frames, pin, front);
        }
        front.loaded.push(slot);
    }

    /// Makes room on a front whose loaded batch is complete.
    #[cold]
    #[inline(never)]
    fn make_room<'c>(
        &'c self,
        frames: &Frames<P>,
        pin: &Pin<'_, P>,
        mut front: SpinGuard<'c, Front, P>,
    ) -> SpinGuard<'c, Front, P> {
        let surplus = front.change();
        drop(front);
        self.store(frames, pin, surplus);
        self.fronts.mine(pin).lock()
    }

    /// Whether a slot can be freed: it is one of this cache's, and not among those that the CPU has at
    /// hand. For assertions.
    pub(crate) fn can_free(&self, frames: &Frames<P>, pin: &Pin<'_, P>, slot: &Slot) -> bool {
        self.has(frames, slot.address()) && !self.fronts.mine(pin).lock().holds(slot)
    }

    /// Gives a slot of this cache back whose object lock-free readers may still look at, but that no thread
    /// can find any more. The object is ended when they are gone.
    pub(crate) fn retire(&self, frames: &Frames<P>, pin: &Pin<'_, P>, slot: Slot) {
        let mut front = self.fronts.mine(pin).lock();
        front.in_use -= 1;
        front.retire(frames.epoch(), slot);
        let mut passed = front.collect(frames.epoch(), REAP_PORTION);
        if passed.is_empty() {
            drop(front);
            // Nothing has passed: help the epoch on, so that something will.
            frames.epoch().advance();
            return;
        }
        if self.drop.is_none() {
            // There is nothing to end, so the lock is kept as long as there is room.
            while front.loaded.count() < self.batch
                && let Some(slot) = passed.pop()
            {
                front.loaded.push(slot);
            }
        }
        drop(front);
        if !passed.is_empty() {
            self.end(frames, pin, passed);
        }
    }

    /// Ends retired objects whose readers are gone, with no lock held, and frees their slots.
    #[inline(never)]
    fn end(&self, frames: &Frames<P>, pin: &Pin<'_, P>, mut passed: SlotList) {
        let mut free = SlotList::EMPTY;
        while let Some(slot) = passed.pop() {
            if let Some(drop) = self.drop {
                // SAFETY: the slot is of this cache and holds an object that was retired and that no thread
                // can reach any more.
                unsafe { drop(slot.start(self.link())) };
            }
            free.push(slot);
        }
        self.put_all(frames, pin, free);
    }

    /// Puts free slots on the caller's front.
    fn put_all(&self, frames: &Frames<P>, pin: &Pin<'_, P>, mut free: SlotList) {
        let mut front = self.fronts.mine(pin).lock();
        while let Some(slot) = free.pop() {
            if front.loaded.count() >= self.batch {
                front = self.make_room(frames, pin, front);
            }
            front.loaded.push(slot);
        }
    }
}

impl<P: Platform> FrameCache<P> for CacheCore<P> {
    fn reap(&self, frames: &Frames<P>, pin: &Pin<'_, P>, cpus: Turn, most: u64) {
        frames.limbo().push_epoch();
        cpus.deal(&self.fronts, most, |lock, part| {
            // What is there at first: a CPU that retires meanwhile does not keep the caller busy.
            let first = lock.lock().retired().min(part);
            let mut left = first;
            while left > 0 {
                let passed = lock.lock().collect(frames.epoch(), u64::from(REAP_SLOTS).min(left) as u32);
                if passed.is_empty() {
                    break;
                }
                left -= u64::from(passed.count());
                self.end(frames, pin, passed);
            }
            first - left
        });
    }

    fn shrink(&self, frames: &Frames<P>, pin: &Pin<'_, P>) -> u64 {
        self.reap(frames, pin, Turn::ALL, u64::MAX);
        let mut pages = 0;
        for lock in self.fronts.iter() {
            let free = lock.lock().empty();
            for batch in free.into_iter().filter(|batch| !batch.is_empty()) {
                pages += self.put_back(frames, pin, self.slabs.lock(), batch);
            }
        }
        pages + self.shrink_slabs(frames, pin)
    }

    fn audit(&self, frames: &Frames<P>, report: &mut dyn FnMut(FrameViolation)) {
        self.recount(frames, report);
    }
}

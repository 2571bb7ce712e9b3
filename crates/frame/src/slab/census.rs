//! Looking at a whole cache: its numbers, its slabs, and a recount of every slot.

use super::core::CacheCore;
use super::geometry::SlabState;
use super::slabs::DEPOT_BATCHES;
use super::slot::{self, SlotList, SlotPtr};
use crate::frames::Frames;
use crate::map::{FrameIndex, Kind};
use core::ptr;
use core::sync::atomic::Ordering;
use quire_arch::{Order, Platform};
use quire_sync::SpinStatistics;

/// A cache in numbers, for slabinfo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CacheReport {
    /// The cache's name.
    pub name: &'static str,
    /// Bytes from one object to the next.
    pub object_bytes: usize,
    /// Objects in use.
    pub in_use: u64,
    /// Objects that wait for lock-free readers.
    pub retired: u64,
    /// Room for objects on all slabs.
    pub objects: u64,
    /// Room for objects on a slab of the order below.
    pub objects_per_slab: u32,
    /// Slabs.
    pub slabs: u64,
    /// Slabs with an object in use, or one that a CPU or the depot keeps.
    pub active_slabs: u64,
    /// Order of a slab. Where memory is broken up, slabs may be smaller.
    pub order: Order,
    /// Base pages of all slabs.
    pub pages: u64,
    /// Free objects that each CPU keeps at most.
    pub front_limit: u32,
    /// Objects that come to a CPU or leave it at once.
    pub batch: u32,
    /// Batches that the depot, which all CPUs share, keeps at most.
    pub depot_limit: u32,
    /// Objects in the depot.
    pub in_depot: u64,
    /// What the cache's lock has seen.
    pub lock: SpinStatistics,
    /// What the locks of its CPUs' fronts have seen, together.
    pub front_locks: SpinStatistics,
}

/// What was found by walking every slab and every list of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Census {
    pub(crate) slots: u64,
    /// Slots marked as in use; in caches without marks, those that are on no list.
    pub(crate) live: u64,
    /// Slots on the free lists of slabs, by walking.
    pub(crate) in_slabs: u64,
    /// The same by the slabs' counts.
    pub(crate) counted: u64,
    /// Slots on fronts, free or retired, and in the depot.
    pub(crate) kept: u64,
    /// Slots in use by the fronts' counts.
    pub(crate) in_use: i64,
}

impl<P: Platform> CacheCore<P> {
    /// The cache in numbers.
    pub(crate) fn report(&self) -> CacheReport {
        let (mut in_use, mut retired, mut front_locks) = (0, 0, SpinStatistics::default());
        for lock in self.fronts.iter() {
            let SpinStatistics { takes, contended, .. } = lock.statistics();
            front_locks.takes += takes;
            front_locks.contended += contended;
            let front = lock.lock();
            in_use += front.in_use;
            retired += front.retired();
        }
        let lock = self.slabs.statistics();
        let slabs = self.slabs.lock();
        let count = |active: bool| {
            let lists = slabs.lists().filter(move |&(state, _)| (state != SlabState::Empty) == active);
            lists.map(|(_, list)| list.count()).sum::<u64>()
        };
        let active_slabs = count(true);
        CacheReport {
            name: self.name,
            object_bytes: self.geometry.slot,
            in_use: in_use.max(0) as u64,
            retired,
            objects: slabs.slots,
            objects_per_slab: self.geometry.best.objects,
            slabs: active_slabs + count(false),
            active_slabs,
            order: self.geometry.best.order,
            pages: slabs.pages,
            front_limit: 2 * self.batch,
            batch: self.batch,
            depot_limit: DEPOT_BATCHES as u32,
            in_depot: slabs.depot.lists().map(|batch| u64::from(batch.count())).sum(),
            lock,
            front_locks,
        }
    }

    /// Calls `visit` with every slab and the list that it is on, under the cache's lock.
    pub(crate) fn for_each_slab(&self, frames: &Frames<P>, mut visit: impl FnMut(FrameIndex, SlabState)) {
        let slabs = self.slabs.lock();
        for (state, list) in slabs.lists() {
            for index in list.iter(frames.map()) {
                visit(index, state);
            }
        }
    }

    /// Whether the descriptor of a slab on the list of `state` agrees.
    pub(crate) fn agrees(&self, frames: &Frames<P>, index: FrameIndex, state: SlabState) -> bool {
        let frame = frames.map().at(index);
        let word = frame.word();
        word.kind() == Kind::Slab
            && frame.owner().load(Ordering::Relaxed) == ptr::from_ref(self).addr() as u64
            && self
                .geometry
                .shape(word.order())
                .is_some_and(|shape| shape.state(frame.live().load(Ordering::Relaxed)) == state)
    }

    /// Counts every slot, on a quiet machine.
    pub(crate) fn census(&self, frames: &Frames<P>) -> Census {
        let mut census = Census::default();
        self.for_each_slab(frames, |index, _| {
            let frame = frames.map().at(index);
            let base = frames.platform().direct_map(frames.map().pfn(index));
            let shape = self.shape_of(frames.map(), index);
            census.slots += u64::from(shape.objects);
            census.counted += u64::from(frame.live().load(Ordering::Relaxed));
            if self.geometry.marked {
                for number in 0..shape.objects as usize {
                    // SAFETY: the slab is this cache's, has that many slots, and the machine is quiet.
                    let live = unsafe { slot::is_live(base.add(number * self.geometry.slot), self.link()) };
                    census.live += u64::from(live);
                }
            }
            let first = self.slot_at(base, shape, frame.private().load(Ordering::Relaxed));
            census.in_slabs += self.walk(frames, first, shape.objects);
        });
        let walk = |list: &SlotList| self.walk(frames, list.first(), list.count());
        for lock in self.fronts.iter() {
            let front = lock.lock();
            census.in_use += front.in_use;
            census.kept += front.lists().map(walk).sum::<u64>();
        }
        census.kept += self.slabs.lock().depot.lists().map(walk).sum::<u64>();
        if !self.geometry.marked {
            census.live = census.slots.saturating_sub(census.in_slabs + census.kept);
        }
        census
    }

    /// The length of a list of slots that should have `count`; at most one more, so that a broken list ends.
    /// A list also ends where it leads to anything but a slot of this cache.
    fn walk(&self, frames: &Frames<P>, first: Option<SlotPtr>, count: u32) -> u64 {
        let (mut found, mut next) = (0, first);
        while let Some(slot) = next.filter(|&slot| found <= u64::from(count) && self.has(frames, slot)) {
            found += 1;
            // SAFETY: there is a slot of this cache, and the machine is quiet.
            next = unsafe { slot::next(slot, self.link()) };
        }
        found
    }

    /// Whether a slot of this cache begins at `slot`.
    pub(super) fn has(&self, frames: &Frames<P>, slot: SlotPtr) -> bool {
        let Some(pfn) = frames.map().pfn_of_address(slot.addr().get()) else { return false };
        let pfn = self.home(frames.map(), pfn);
        let Some(frame) = frames.frame(pfn) else { return false };
        let ours = frame.kind() == Kind::Slab
            && frame.owner().load(Ordering::Relaxed) == ptr::from_ref(self).addr() as u64;
        ours && {
            let offset = slot.addr().get() - frames.platform().direct_map(pfn).addr().get();
            let objects = self.shape_of(frames.map(), frames.map().index(pfn)).objects as usize;
            offset.is_multiple_of(self.geometry.slot) && offset / self.geometry.slot < objects
        }
    }
}

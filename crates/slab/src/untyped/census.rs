//! A recount of a whole cache: its slabs, and every slot.

use super::CacheCore;
use crate::geometry::SlabState;
use crate::slot::{self, Slot, SlotList};
use core::ptr;
use quire_arch::{Pfn, Platform};
use quire_frame::{Counted, FrameViolation, Frames, Kind, ListDemand, ListName};

/// What was found by walking every slab and every list of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Census {
    slots: u64,
    /// Slots marked as in use; in caches without marks, those that are on no list.
    live: u64,
    /// Slots on the free lists of slabs, by walking.
    in_slabs: u64,
    /// The same by the slabs' counts.
    counted: u64,
    /// Slots on fronts, free or retired, and in the depot.
    kept: u64,
    /// Slots in use by the fronts' counts.
    in_use: i64,
}

impl<P: Platform> CacheCore<P> {
    /// Checks the cache for the auditor, on a quiet machine.
    pub(super) fn recount(&self, frames: &Frames<P>, report: &mut dyn FnMut(FrameViolation)) {
        let name = self.name;
        if let Some((area, order)) = self.area {
            let list = ListName::CacheArea(name);
            ListDemand { list, kind: Kind::CacheArea, order: Some(order) }.check(frames, area, report);
        }
        let (mut slabs, mut sound) = (0, true);
        let list = ListName::Slabs(name);
        let demand = ListDemand { list, kind: Kind::Slab, order: None };
        self.for_each_slab(frames, |slab, state| {
            slabs += 1;
            if demand.check(frames, slab, report).is_none() || !self.agrees(frames, slab, state) {
                sound = false;
                report(FrameViolation::BadSlab { cache: name, pfn: slab });
            }
        });
        Counted::Blocks(list).check(self.report(frames).slabs, slabs, report);
        // The slots of a slab whose descriptor is wrong cannot be followed.
        if sound {
            let census = self.census(frames);
            Counted::SlabFree(name).check(census.counted, census.in_slabs, report);
            Counted::SlabInUse(name).check(census.in_use.max(0) as u64, census.live, report);
            let placed = census.live + census.in_slabs + census.kept;
            Counted::SlabSlots(name).check(census.slots, placed, report);
        }
    }

    /// Calls `visit` with every slab and the list that it is on, pinned, under the cache's lock.
    pub(crate) fn for_each_slab(&self, frames: &Frames<P>, mut visit: impl FnMut(Pfn, SlabState)) {
        let _pin = frames.platform().pin();
        let slabs = self.slabs.lock();
        for (state, list) in slabs.lists() {
            for slab in list.iter(frames.map()) {
                visit(slab, state);
            }
        }
    }

    /// Whether the descriptor of a slab on the list of `state` agrees.
    fn agrees(&self, frames: &Frames<P>, slab: Pfn, state: SlabState) -> bool {
        let frame = frames.known(slab);
        let word = frame.word();
        word.kind() == Kind::Slab
            && frame.as_slab().cache() == ptr::from_ref(self).addr() as u64
            && self
                .geometry
                .shape(word.order())
                .is_some_and(|shape| shape.state(frame.as_slab().free()) == state)
    }

    /// Counts every slot, on a quiet machine.
    fn census(&self, frames: &Frames<P>) -> Census {
        let mut census = Census::default();
        self.for_each_slab(frames, |slab, _| {
            let frame = frames.known(slab);
            let base = frames.platform().direct_map(slab);
            let shape = self.shape_of(frames.map(), slab);
            census.slots += u64::from(shape.objects);
            census.counted += u64::from(frame.as_slab().free());
            if self.geometry.marked {
                for number in 0..shape.objects as usize {
                    // SAFETY: the slab is this cache's, has that many slots, and the machine is quiet.
                    let slot = unsafe { Slot::at(base, number * self.geometry.slot + self.link()) };
                    census.live += u64::from(slot.is_live());
                }
            }
            let first = self.slot_at(base, shape, frame.as_slab().first_free());
            census.in_slabs += self.walk(frames, first.as_ref(), shape.objects);
        });
        let walk = |list: &SlotList| self.walk(frames, list.first(), list.count());
        for lock in self.fronts.iter() {
            let _pin = frames.platform().pin();
            let front = lock.lock();
            census.in_use += front.in_use;
            census.kept += front.lists().map(walk).sum::<u64>();
        }
        let _pin = frames.platform().pin();
        census.kept += self.slabs.lock().depot.lists().map(walk).sum::<u64>();
        if !self.geometry.marked {
            census.live = census.slots.saturating_sub(census.in_slabs + census.kept);
        }
        census
    }

    /// The length of a list of slots that should have `count`; at most one more, so that a broken list ends.
    /// A list also ends where it leads to anything but a slot of this cache.
    fn walk(&self, frames: &Frames<P>, first: Option<&Slot>, count: u32) -> u64 {
        slot::follow(first, |link| self.has(frames, link)).take(count as usize + 1).count() as u64
    }

    /// Whether the link word of a slot of this cache lies at `link`.
    pub(crate) fn has(&self, frames: &Frames<P>, link: usize) -> bool {
        let start = link.wrapping_sub(self.link());
        let Some(pfn) = frames.map().pfn_of_address(start) else { return false };
        let slab = self.home(frames.map(), pfn);
        let Some(frame) = frames.frame(slab) else { return false };
        let ours = frame.kind() == Kind::Slab && frame.as_slab().cache() == ptr::from_ref(self).addr() as u64;
        ours && {
            let offset = start - frames.platform().direct_map(slab).addr().get();
            let objects = self.shape_of(frames.map(), slab).objects as usize;
            offset.is_multiple_of(self.geometry.slot) && offset / self.geometry.slot < objects
        }
    }
}

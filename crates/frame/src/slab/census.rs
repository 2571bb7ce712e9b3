//! Looking at a whole cache: its numbers, its slabs, and a recount of every slot.

use super::core::{CacheCore, SlabState};
use super::slot::{self, SlotPtr};
use crate::frames::Frames;
use crate::map::{FrameIndex, Kind};
use core::ptr;
use core::sync::atomic::Ordering;
use quire_arch::{Order, Platform};

/// A cache in numbers, for slabinfo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
    /// Room for objects on one slab.
    pub objects_per_slab: u32,
    /// Slabs.
    pub slabs: u64,
    /// Order of a slab.
    pub order: Order,
}

/// What was found by walking every slab and every list of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Census {
    pub(crate) slots: u64,
    /// Slots marked as in use.
    pub(crate) live: u64,
    /// Slots on the free lists of slabs, by walking.
    pub(crate) in_slabs: u64,
    /// The same by the slabs' counts.
    pub(crate) counted: u64,
    /// Slots on fronts, free or retired.
    pub(crate) on_fronts: u64,
    /// Slots in use by the fronts' counts.
    pub(crate) in_use: i64,
}

impl<P: Platform> CacheCore<P> {
    /// The cache in numbers.
    pub(crate) fn report(&self) -> CacheReport {
        let (mut in_use, mut retired) = (0, 0);
        for lock in self.fronts.iter() {
            let front = lock.lock();
            in_use += front.in_use;
            retired += front.retired();
        }
        let slabs = self.slabs.lock();
        let count = slabs.partial.count() + slabs.full.count() + slabs.empty.count();
        CacheReport {
            name: self.name,
            object_bytes: self.geometry.slot,
            in_use: in_use.max(0) as u64,
            retired,
            objects: count * u64::from(self.geometry.objects),
            objects_per_slab: self.geometry.objects,
            slabs: count,
            order: self.geometry.order,
        }
    }

    /// Calls `visit` with every slab and the list that it is on, under the cache's lock.
    pub(crate) fn for_each_slab(&self, frames: &Frames<P>, mut visit: impl FnMut(FrameIndex, SlabState)) {
        let slabs = self.slabs.lock();
        let lists = [
            (&slabs.full, SlabState::Full),
            (&slabs.partial, SlabState::Partial),
            (&slabs.empty, SlabState::Empty),
        ];
        for (list, state) in lists {
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
            && word.order() == self.geometry.order
            && frame.owner().load(Ordering::Relaxed) == ptr::from_ref(self).addr() as u64
            && self.state(frame.live().load(Ordering::Relaxed)) == state
    }

    /// Counts every slot, on a quiet machine.
    pub(crate) fn census(&self, frames: &Frames<P>) -> Census {
        let mut census = Census::default();
        self.for_each_slab(frames, |index, _| {
            let frame = frames.map().at(index);
            let base = frames.platform().direct_map(frames.map().pfn(index));
            census.slots += u64::from(self.geometry.objects);
            census.counted += u64::from(frame.live().load(Ordering::Relaxed));
            for number in 1..=u64::from(self.geometry.objects) {
                let Some(slot) = self.slot_of(base, number) else { continue };
                // SAFETY: the slab is this cache's and the machine is quiet.
                census.live += u64::from(unsafe { slot::is_live(slot, self.link()) });
            }
            let first = self.slot_of(base, frame.private().load(Ordering::Relaxed));
            census.in_slabs += self.walk(frames, first, self.geometry.objects);
        });
        for lock in self.fronts.iter() {
            let front = lock.lock();
            census.in_use += front.in_use;
            for list in front.retired_lists().chain(core::iter::once(&front.free)) {
                census.on_fronts += self.walk(frames, list.first(), list.count());
            }
        }
        census
    }

    /// The length of a list of slots that should have `count`; at most one more, so that a broken list ends. A list
    /// also ends where it leads to anything but a slot of this cache.
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
    fn has(&self, frames: &Frames<P>, slot: SlotPtr) -> bool {
        let Some(pfn) = frames.map().pfn_of_address(slot.addr().get()) else { return false };
        let pfn = pfn.block_start(self.geometry.order);
        let frame = frames.known(pfn);
        let ours = frame.kind() == Kind::Slab
            && frame.owner().load(Ordering::Relaxed) == ptr::from_ref(self).addr() as u64;
        ours && {
            let offset = slot.addr().get() - frames.platform().direct_map(pfn).addr().get();
            offset.is_multiple_of(self.geometry.slot)
                && offset / self.geometry.slot < self.geometry.objects as usize
        }
    }
}

//! A cache in numbers.

use super::CacheCore;
use crate::geometry::SlabState;
use crate::slabs::DEPOT_BATCHES;
use core::any::Any;
use quire_arch::{Order, Platform};
use quire_frame::Frames;
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
    /// Objects that move to or from a CPU at once.
    pub batch: u32,
    /// Batches that the depot, which all CPUs share, keeps at most.
    pub depot_limit: u32,
    /// Objects in the depot.
    pub in_depot: u64,
    /// Statistics of the cache's lock.
    pub lock: SpinStatistics,
    /// Statistics of the locks of its CPUs' fronts, summed.
    pub front_locks: SpinStatistics,
}

/// Every slab cache of a machine in numbers, the newest first.
pub fn cache_reports<P: Platform>(frames: &Frames<P>) -> impl Iterator<Item = CacheReport> {
    let caches = frames.caches().iter().filter_map(|cache| <dyn Any>::downcast_ref::<CacheCore<P>>(cache));
    caches.map(|cache| cache.report(frames))
}

impl<P: Platform> CacheCore<P> {
    /// The cache in numbers. Pinned for each lock only.
    pub(crate) fn report(&self, frames: &Frames<P>) -> CacheReport {
        let (mut in_use, mut retired, mut front_locks) = (0, 0, SpinStatistics::default());
        for lock in self.fronts.iter() {
            let SpinStatistics { takes, contended, .. } = lock.statistics();
            front_locks.takes += takes;
            front_locks.contended += contended;
            let _pin = frames.platform().pin();
            let front = lock.lock();
            in_use += front.in_use;
            retired += front.retired();
        }
        let lock = self.slabs.statistics();
        let _pin = frames.platform().pin();
        let slabs = self.slabs.lock();
        let count = |active: bool| {
            let lists = slabs.lists().filter(move |&(state, _)| (state != SlabState::Empty) == active);
            lists.map(|(_, list)| u64::from(list.folios())).sum::<u64>()
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
}

//! [`Frames`]: one machine's memory, put together.

mod allocate;
mod audit;
mod boot;
mod caches;
mod claimed;
mod folios;
mod hotplug;
mod kernel;
mod limbo;
#[cfg(all(test, loom))]
#[allow(clippy::unwrap_used, reason = "models are tests")]
mod models;
mod pcp;
mod refill;
mod release;
mod reports;
mod surplus;
#[cfg(not(loom))]
#[cfg(test)]
mod tests;
mod watermarks;
mod zeros;
mod zone_blocks;

pub use audit::{FrameAudit, ListDemand};
pub use caches::{CacheNode, FrameCache, FrameCaches, Turn};
pub use folios::{FolioGuard, FolioSplit, FrameFolios, HeldParts, PartIs, Pinned, SinglePages, SplitError};
pub use hotplug::FrameHotplug;
pub use kernel::KernelFrames;
pub use limbo::FrameLimbo;
pub use pcp::FramePcp;
pub use reports::{FrameReports, FrameTotals, PcpReport};
pub use watermarks::FrameWatermarks;

use crate::counters::VmEvents;
use crate::fail_points::FailPoints;
use crate::limbo::LimboLists;
use crate::map::{Frame, MemoryMap, Migratetype};
use crate::pcp::{PcpSwitch, PcpTechnique};
use crate::zone::{Zone, Zonelist, Zones};
use crate::zone_id::ZoneId;
use caches::CacheList;
use claimed::Claimed;
use core::fmt;
use quire_arch::{MAX_NODES, Pfn, PfnRange, Platform};
use quire_sync::atomic::AtomicU32;
use quire_sync::atomic::raw::AtomicU64;
use quire_sync::{Epoch, PerCpu, SpinLock};

/// How a machine's frames are managed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrameConfig {
    /// Which orders the per-CPU lists hold.
    pub pcp: PcpTechnique,
    /// KiB that stay free for reclaim, over all zones (Linux's `vm.min_free_kbytes`). `None` computes them
    /// from the size of memory.
    pub min_free_kib: Option<u64>,
    /// Treats all memory as of one mobility, to measure the benefit of grouping.
    pub ignore_mobility: bool,
    /// Measures how long the zones' locks are held, at the cost of two clock reads each time.
    pub time_locks: bool,
    /// Checks every frame of each freed block, whether its user used inner frames or not. Debug builds always
    /// do.
    pub check_tails: bool,
}

/// Distinguishes machines of one process, so that a cache is not used with another machine's frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MachineId(u64);

/// The frames of one machine. Owns the platform. It allocates and frees; all else is done by the parts that
/// it gives out, e.g. [`folios`](Self::folios).
///
/// Methods that take a [`Pin`](quire_arch::Pin) want one of this machine's [`platform`](Self::platform).
pub struct Frames<P: Platform> {
    id: MachineId,
    map: MemoryMap,
    zones: Zones<P>,
    zonelists: [Zonelist; MAX_NODES],
    reserved: PfnRange,
    technique: PcpSwitch,
    /// The type used for every request, if mobility is ignored.
    only_type: Option<Migratetype>,
    checks_tails: bool,
    min_free_kib: Option<u64>,
    events: VmEvents,
    limbo: PerCpu<SpinLock<LimboLists, P>>,
    /// The CPUs that the next bounded reap, and the next tick of the lists, begin with, modulo their number.
    reap_turn: AtomicU32,
    age_turn: AtomicU32,
    /// Not 0 if ticks may have left on the lists what CPUs have to give back. A hint, which orders nothing.
    due: AtomicU32,
    epoch: Epoch,
    /// Held while a range of frames comes into use or goes out of it.
    hotplug: SpinLock<(), P>,
    caches: CacheList<P>,
    fail_points: FailPoints,
    /// The last field: it gives the RAM back, in which the others lie, when it is dropped.
    platform: Claimed<P>,
}

impl<P: Platform> Frames<P> {
    /// The machine.
    #[inline]
    pub fn platform(&self) -> &P {
        &self.platform
    }

    /// The descriptors.
    #[inline]
    pub fn map(&self) -> &MemoryMap {
        &self.map
    }

    /// The descriptor of `pfn`, or `None` where no RAM is.
    #[inline]
    pub fn frame(&self, pfn: Pfn) -> Option<&Frame> {
        self.map.frame(pfn)
    }

    /// The descriptor of a frame that is known to be RAM; see [`MemoryMap::known`].
    #[inline]
    pub fn known(&self, pfn: Pfn) -> &Frame {
        self.map.known(pfn)
    }

    /// The entries of the page table in frame `pfn`, through the direct map.
    ///
    /// # Safety
    ///
    /// `pfn` is a frame of RAM that is a page table for as long as the result is used: the caller owns it,
    /// holds its lock, or found it linked and is inside a section of [`epoch`](Self::epoch). No thread
    /// accesses it meanwhile otherwise than by atomics.
    #[inline]
    pub unsafe fn table(&self, pfn: Pfn) -> &[AtomicU64; 512] {
        // SAFETY: the direct map of a frame in RAM is one valid, page-aligned page (contract of `Platform`,
        // checked at boot); the caller keeps it a table, and entries are only accessed atomically.
        unsafe { self.platform.direct_map(pfn).cast().as_ref() }
    }

    /// The epochs under which lock-free readers look at tables and slab objects.
    #[inline]
    pub fn epoch(&self) -> &Epoch {
        &self.epoch
    }

    /// The event counters.
    #[inline]
    pub fn events(&self) -> &VmEvents {
        &self.events
    }

    /// The fail points.
    #[inline]
    pub fn fail_points(&self) -> &FailPoints {
        &self.fail_points
    }

    /// The frames that hold the memory map and the per-CPU areas.
    pub fn reserved(&self) -> PfnRange {
        self.reserved
    }

    /// Which machine this is.
    #[inline]
    pub fn id(&self) -> MachineId {
        self.id
    }

    /// Pins, locks, puts and splits folios.
    #[inline]
    pub fn folios(&self) -> FrameFolios<'_, P> {
        FrameFolios::new(self)
    }

    /// Frees what lock-free readers may still access.
    #[inline]
    pub fn limbo(&self) -> FrameLimbo<'_, P> {
        FrameLimbo::new(self)
    }

    /// The lists of free blocks that each CPU keeps for itself.
    #[inline]
    pub fn pcp(&self) -> FramePcp<'_, P> {
        FramePcp::new(self)
    }

    /// The slab caches on these frames.
    #[inline]
    pub fn caches(&self) -> FrameCaches<'_, P> {
        FrameCaches::new(self)
    }

    /// What the watermarks ask of background reclaim.
    #[inline]
    pub fn watermarks(&self) -> FrameWatermarks<'_, P> {
        FrameWatermarks::new(self)
    }

    /// Takes frames out of use and back into it.
    #[inline]
    pub fn hotplug(&self) -> FrameHotplug<'_, P> {
        FrameHotplug::new(self)
    }

    /// The numbers.
    #[inline]
    pub fn reports(&self) -> FrameReports<'_, P> {
        FrameReports::new(self)
    }

    /// The audit.
    #[inline]
    pub fn audit(&self) -> FrameAudit<'_, P> {
        FrameAudit::new(self)
    }

    #[inline]
    pub(crate) fn zones(&self) -> &Zones<P> {
        &self.zones
    }

    /// The zone `id`, which the machine has.
    #[inline]
    pub(crate) fn zone(&self, id: ZoneId) -> &Zone<P> {
        &self.zones.all()[id.index()]
    }
}

impl<P: Platform> fmt::Debug for Frames<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frames")
            .field("span", &self.map.span())
            .field("zones", &self.zones.all())
            .field("technique", &self.technique)
            .finish_non_exhaustive()
    }
}

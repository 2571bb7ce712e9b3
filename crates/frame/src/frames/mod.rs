//! [`Frames`]: one machine's memory, put together.

mod allocate;
mod boot;
mod release;
mod report;

pub use report::{FrameTotals, ZoneReport};

use crate::counters::VmEvents;
use crate::faults::Faults;
use crate::limbo::LimboLists;
use crate::map::{Frame, MemoryMap};
use crate::pcp::{PcpSet, PcpTechnique};
use crate::slab::CacheRegistry;
use crate::zone::{Zone, ZoneKind};
use core::fmt;
use quire_arch::{Pfn, PfnRange, Platform};
use quire_sync::atomic::raw::AtomicU64;
use quire_sync::{Epoch, PerCpu, SpinLock};

/// How a machine's frames are managed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrameConfig {
    /// Which orders the per-CPU lists hold.
    pub pcp: PcpTechnique,
    /// KiB that stay free for reclaim, over all zones (Linux's `vm.min_free_kbytes`). `None` computes them from the
    /// size of memory.
    pub min_free_kib: Option<u64>,
}

/// Tells machines of one process apart, so that a slab cache is not used with another machine's frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MachineId(u64);

/// The frames of one machine. Owns the platform.
///
/// Methods that take a [`Pin`](quire_arch::Pin) want one of this machine's [`platform`](Self::platform).
pub struct Frames<P: Platform> {
    platform: P,
    id: MachineId,
    map: MemoryMap,
    zones: [Zone<P>; ZoneKind::COUNT],
    reserved: PfnRange,
    technique: PcpTechnique,
    pcp: PerCpu<PcpSet<P>>,
    events: VmEvents,
    limbo: PerCpu<SpinLock<LimboLists, P>>,
    epoch: Epoch,
    caches: CacheRegistry<P>,
    faults: Faults,
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
    /// `pfn` is a frame of RAM that is a page table for as long as the result is used: the caller owns it, holds its
    /// lock, or found it hooked in and is inside a section of [`epoch`](Self::epoch). Nobody accesses it meanwhile
    /// otherwise than by atomics.
    #[inline]
    pub unsafe fn table(&self, pfn: Pfn) -> &[AtomicU64; 512] {
        // SAFETY: the direct map of a frame in RAM is one valid, page-aligned page (contract of `Platform`, checked
        // at boot); the caller keeps it a table, and entries are only accessed atomically.
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

    /// The fault plan.
    #[inline]
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// The frames that hold the memory map and the per-CPU areas.
    pub fn reserved(&self) -> PfnRange {
        self.reserved
    }

    #[inline]
    pub(crate) fn id(&self) -> MachineId {
        self.id
    }

    #[inline]
    pub(crate) fn caches(&self) -> &CacheRegistry<P> {
        &self.caches
    }

    #[inline]
    pub(crate) fn pcp(&self) -> &PerCpu<PcpSet<P>> {
        &self.pcp
    }

    #[inline]
    pub(crate) fn limbo(&self) -> &PerCpu<SpinLock<LimboLists, P>> {
        &self.limbo
    }

    #[inline]
    pub(crate) fn zone(&self, kind: ZoneKind) -> &Zone<P> {
        &self.zones[kind.index()]
    }
}

impl<P: Platform> fmt::Debug for Frames<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frames")
            .field("span", &self.map.span())
            .field("zones", &self.zones)
            .field("technique", &self.technique)
            .finish_non_exhaustive()
    }
}

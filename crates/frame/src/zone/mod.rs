//! Zones: the ranges of frames that are allocated from apart, each with its buddy lists and watermarks.

mod buddy;
mod fallback;
mod frame_list;
mod watermark;

pub(crate) use buddy::Buddy;
pub use buddy::BuddyCounts;
pub(crate) use frame_list::FrameList;
pub use watermark::Watermarks;
pub(crate) use watermark::default_min_free_kib;

use core::fmt;
use quire_arch::{LockClass, PAGE_SHIFT, Pfn, Platform};
use quire_sync::atomic::raw::{AtomicU64, Ordering};
use quire_sync::{SpinLock, SpinStatistics};

/// Which frames a zone holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum ZoneKind {
    /// Frames below 4 GiB, for devices with 32 address bits.
    Dma32 = 0,
    /// All others.
    Normal = 1,
}

/// First frame past [`ZoneKind::Dma32`].
const DMA32_END: Pfn = Pfn(1 << (32 - PAGE_SHIFT));

impl ZoneKind {
    /// Number of zones.
    pub const COUNT: usize = 2;
    /// Every zone, lowest first.
    pub const ALL: [Self; Self::COUNT] = [Self::Dma32, Self::Normal];

    /// The zone that `pfn` belongs to.
    #[inline]
    pub const fn of(pfn: Pfn) -> Self {
        if pfn.0 < DMA32_END.0 { Self::Dma32 } else { Self::Normal }
    }

    /// The zone as an index into per-zone arrays.
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Name as in Linux's zoneinfo.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dma32 => "DMA32",
            Self::Normal => "Normal",
        }
    }
}

impl fmt::Display for ZoneKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One zone.
pub(crate) struct Zone<P> {
    pub(crate) kind: ZoneKind,
    /// Frames that the zone gives out, free or not.
    pub(crate) managed: u64,
    /// All frames of RAM in the zone, boot memory included.
    pub(crate) present: u64,
    pub(crate) watermarks: Watermarks,
    /// Frames that a request which could use a higher zone must leave here, on top of the watermark.
    pub(crate) lowmem_reserve: u64,
    /// Frames on the buddy lists. Written under the lock.
    free: AtomicU64,
    pub(crate) buddy: SpinLock<Buddy, P>,
}

impl<P: Platform> Zone<P> {
    pub(crate) fn new(kind: ZoneKind) -> Self {
        Self {
            kind,
            managed: 0,
            present: 0,
            watermarks: Watermarks::default(),
            lowmem_reserve: 0,
            free: AtomicU64::new(0),
            buddy: SpinLock::new(LockClass::Zone, Buddy::new(kind)),
        }
    }

    /// Frames on the buddy lists just now.
    #[inline]
    pub(crate) fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// Publishes the number of free frames. The caller holds the zone's lock.
    #[inline]
    pub(crate) fn publish_free(&self, buddy: &Buddy) {
        self.free.store(buddy.free(), Ordering::Relaxed);
    }

    pub(crate) fn lock_statistics(&self) -> SpinStatistics {
        self.buddy.statistics()
    }
}

impl<P> fmt::Debug for Zone<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Zone")
            .field("kind", &self.kind)
            .field("managed", &self.managed)
            .field("free", &self.free)
            .finish_non_exhaustive()
    }
}

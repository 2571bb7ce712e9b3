//! Zones: ranges of frames with their own buddy lists and watermarks.

mod buddy;
mod report;
mod watermark;
mod zonelist;

pub use buddy::BuddyCounts;
pub(crate) use buddy::{Buddy, page_blocks};
pub use report::ZoneReport;
pub use watermark::Watermarks;
pub(crate) use watermark::{Levels, default_min_free_kib};
pub(crate) use zonelist::{Zonelist, Zones};

use crate::map::PAGEBLOCK_ORDER;
use crate::pcp::{PcpLimits, PcpSet};
use crate::zone_id::ZoneId;
use core::fmt;
use core::ops::{Deref, DerefMut};
use quire_arch::{LockClass, Pfn, PfnRange, Platform};
use quire_sync::atomic::raw::{AtomicU64, Ordering};
use quire_sync::{PerCpu, SpinGuard, SpinLock, SpinStatistics};

/// One zone.
pub(crate) struct Zone<P> {
    pub(crate) id: ZoneId,
    /// All frames of RAM in the zone, boot memory included.
    present: AtomicU64,
    /// From the lowest frame to the highest, holes included.
    pub(crate) span: PfnRange,
    pub(crate) levels: Levels,
    /// Managed frames, free or not. Written under the lock, as parts of the range can go offline and online.
    managed: AtomicU64,
    /// Frames on the buddy lists that requests can get. Written under the lock.
    free: AtomicU64,
    /// Of these, what is not in the high-order atomic reserve. Written under the lock.
    available: AtomicU64,
    /// Nanoseconds that the lock was held; stays zero unless statistics are on.
    held: AtomicU64,
    timed: bool,
    buddy: SpinLock<Buddy, P>,
    /// The CPUs' lists; none in a zone without frames.
    pub(crate) pcp: PerCpu<PcpSet<P>>,
}

impl<P: Platform> Zone<P> {
    pub(crate) fn new(id: ZoneId, timed: bool) -> Self {
        Self {
            id,
            present: AtomicU64::new(0),
            span: PfnRange::default(),
            levels: Levels::default(),
            managed: AtomicU64::new(0),
            free: AtomicU64::new(0),
            available: AtomicU64::new(0),
            held: AtomicU64::new(0),
            timed,
            buddy: SpinLock::new(LockClass::Zone, Buddy::new(id)),
            pcp: PerCpu::none(),
        }
    }

    /// Notes a frame of RAM.
    pub(crate) fn add_present(&mut self, pfn: Pfn) {
        let start = if self.is_empty() { pfn } else { self.span.start().min(pfn) };
        self.span = PfnRange::new(start, pfn.offset(1).max(self.span.end()));
        self.present.store(self.present() + 1, Ordering::Relaxed);
    }

    /// Whether the machine has no frames for this zone, not even some that are out of use.
    pub(crate) fn is_empty(&self) -> bool {
        self.span.is_empty()
    }

    /// Takes the zone's lock.
    #[inline]
    pub(crate) fn lock<'z>(&'z self, platform: &'z P) -> ZoneGuard<'z, P> {
        let buddy = self.buddy.lock();
        ZoneGuard { zone: self, platform, since: self.timed.then(|| platform.now()), buddy }
    }

    /// Takes the zone's lock if it is free now.
    #[inline]
    pub(crate) fn try_lock<'z>(&'z self, platform: &'z P) -> Option<ZoneGuard<'z, P>> {
        let buddy = self.buddy.try_lock()?;
        Some(ZoneGuard { zone: self, platform, since: self.timed.then(|| platform.now()), buddy })
    }

    /// Frames on the buddy lists now, those of a range that is being taken out of use not counted.
    #[inline]
    pub(crate) fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// As [`free`](Self::free), those of the high-order atomic reserve not counted: what an ordinary request
    /// may get.
    #[inline]
    pub(crate) fn available(&self) -> u64 {
        self.available.load(Ordering::Relaxed)
    }

    /// Frames in use by the zone: those it gives out, and boot memory.
    #[inline]
    pub(crate) fn present(&self) -> u64 {
        self.present.load(Ordering::Relaxed)
    }

    /// Managed frames, free or not.
    #[inline]
    pub(crate) fn managed(&self) -> u64 {
        self.managed.load(Ordering::Relaxed)
    }

    /// What each CPU may keep of the zone at most, as far as that depends on what is free.
    pub(crate) fn lists_bound(&self) -> u64 {
        PcpLimits::bound(self.free(), self.pcp.iter().count() as u64)
    }

    /// Statistics of the lock.
    pub(crate) fn lock_statistics(&self) -> SpinStatistics {
        SpinStatistics { held_ns: self.held.load(Ordering::Relaxed), ..self.buddy.statistics() }
    }
}

impl<P> fmt::Debug for Zone<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Zone")
            .field("id", &self.id)
            .field("managed", &self.managed)
            .field("free", &self.free)
            .finish_non_exhaustive()
    }
}

/// Page blocks of the smallest zone whose watermarks are boosted.
const BOOSTED_BLOCKS: u64 = 4;

/// The lists of a zone, until dropped. Dropping it publishes how much is free.
pub(crate) struct ZoneGuard<'z, P: Platform> {
    zone: &'z Zone<P>,
    platform: &'z P,
    since: Option<u64>,
    buddy: SpinGuard<'z, Buddy, P>,
}

impl<P: Platform> ZoneGuard<'_, P> {
    /// Reclaim did what the boost was set for.
    pub(crate) fn clear_boost(&mut self) {
        self.zone.levels.clear_boost();
    }

    /// Adds frames that are present from boot.
    pub(crate) fn add_managed(&mut self, frames: u64) {
        self.zone.managed.store(self.zone.managed() + frames, Ordering::Relaxed);
    }

    /// Adds frames that came online.
    pub(crate) fn add_frames(&mut self, frames: u64) {
        self.add_managed(frames);
        self.zone.present.store(self.zone.present() + frames, Ordering::Relaxed);
    }

    /// Removes frames that went offline.
    pub(crate) fn remove_frames(&mut self, frames: u64) {
        self.zone.managed.store(self.zone.managed() - frames, Ordering::Relaxed);
        self.zone.present.store(self.zone.present() - frames, Ordering::Relaxed);
    }
}

impl<P: Platform> Deref for ZoneGuard<'_, P> {
    type Target = Buddy;

    #[inline]
    fn deref(&self) -> &Buddy {
        &self.buddy
    }
}

impl<P: Platform> DerefMut for ZoneGuard<'_, P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Buddy {
        &mut self.buddy
    }
}

impl<P: Platform> Drop for ZoneGuard<'_, P> {
    #[inline]
    fn drop(&mut self) {
        let mixed = self.buddy.take_mixed();
        // Without effect in a zone of so few page blocks.
        if mixed > 0 && self.zone.managed() >= BOOSTED_BLOCKS << PAGEBLOCK_ORDER.get() {
            self.zone.levels.raise_boost(mixed);
        }
        // Plain stores: all are written only under the lock, which is dropped after this.
        self.zone.free.store(self.buddy.free(), Ordering::Relaxed);
        self.zone.available.store(self.buddy.available(), Ordering::Relaxed);
        if let Some(since) = self.since {
            let held = self.platform.now().saturating_sub(since);
            self.zone.held.store(self.zone.held.load(Ordering::Relaxed) + held, Ordering::Relaxed);
        }
    }
}

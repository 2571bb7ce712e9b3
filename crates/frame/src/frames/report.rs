//! Numbers about frames.

use super::Frames;
use crate::map::Migratetype;
use crate::zone::{BuddyCounts, Watermarks, ZoneKind};
use quire_arch::Platform;
use quire_sync::SpinStatistics;

/// A zone in numbers; frames throughout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneReport {
    /// Which.
    pub kind: ZoneKind,
    /// RAM in the zone, boot memory included.
    pub present: u64,
    /// What the zone gives out.
    pub managed: u64,
    /// On the zone's own lists.
    pub free: u64,
    /// On the CPUs' lists; free as well.
    pub pcp: u64,
    /// The watermarks.
    pub watermarks: Watermarks,
    /// Left here by requests that could use a higher zone, on top of the watermark.
    pub lowmem_reserve: u64,
    /// Free blocks by order and migratetype.
    pub blocks: BuddyCounts,
    /// Page blocks by migratetype.
    pub pageblocks: [u64; Migratetype::COUNT],
    /// What the zone's lock has seen.
    pub lock: SpinStatistics,
}

/// The machine in numbers; frames throughout.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrameTotals {
    /// RAM, boot memory included.
    pub present: u64,
    /// What can be given out.
    pub managed: u64,
    /// Free, on whatever list.
    pub free: u64,
    /// Given back, waiting for readers, in blocks.
    pub limbo_blocks: u64,
}

impl<P: Platform> Frames<P> {
    /// Frames that are free, those on the CPUs' lists included.
    pub fn free_frames(&self) -> u64 {
        ZoneKind::ALL.into_iter().map(|kind| self.zone(kind).free() + self.pcp_pages(kind)).sum()
    }

    fn pcp_pages(&self, kind: ZoneKind) -> u64 {
        self.pcp.iter().map(|set| set.zone(kind).lock().pages()).sum()
    }

    /// One zone in numbers. Takes its locks one after another.
    pub fn zone_report(&self, kind: ZoneKind) -> ZoneReport {
        let zone = self.zone(kind);
        let lock = zone.lock_statistics();
        let pcp = self.pcp_pages(kind);
        let buddy = zone.buddy.lock();
        ZoneReport {
            kind,
            present: zone.present,
            managed: zone.managed,
            free: buddy.free(),
            pcp,
            watermarks: zone.watermarks,
            lowmem_reserve: zone.lowmem_reserve,
            blocks: buddy.counts(),
            pageblocks: buddy.block_counts(),
            lock,
        }
    }

    /// Every zone in numbers.
    pub fn zone_reports(&self) -> impl Iterator<Item = ZoneReport> {
        ZoneKind::ALL.into_iter().map(|kind| self.zone_report(kind))
    }

    /// The machine in numbers.
    pub fn totals(&self) -> FrameTotals {
        FrameTotals {
            present: self.zones.iter().map(|zone| zone.present).sum(),
            managed: self.zones.iter().map(|zone| zone.managed).sum(),
            free: self.free_frames(),
            limbo_blocks: self.limbo.iter().map(|limbo| limbo.lock().blocks()).sum(),
        }
    }
}

//! Numbers about frames.

use super::Frames;
use crate::kind::Kind;
use crate::limbo::LimboLists;
use crate::map::Migratetype;
use crate::pcp::PcpSet;
use crate::zone::{Zone, ZoneReport};
use crate::zone_id::ZoneId;
use quire_arch::{CpuId, Platform};
use quire_sync::{SpinLock, SpinStatistics};

/// The machine in numbers; frames throughout.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrameTotals {
    /// RAM in use, boot memory included: without what was taken out of use.
    pub present: u64,
    /// What can be allocated.
    pub managed: u64,
    /// Free, on whatever list.
    pub free: u64,
    /// Freed, waiting for readers, in blocks.
    pub limbo_blocks: u64,
}

/// A CPU's lists for one zone in numbers; frames throughout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PcpReport {
    /// Whose.
    pub cpu: CpuId,
    /// On the lists.
    pub count: u64,
    /// Returned by other CPUs and not fetched yet; not in `count`.
    pub returned: u64,
    /// The budget as it is now.
    pub high: u64,
    /// The budget's bounds.
    pub high_bounds: (u64, u64),
    /// The least number moved at once.
    pub batch: u64,
}

/// Frames on the CPUs' lists for `zone`. Pinned for each list only.
pub(super) fn listed_pages<P: Platform>(platform: &P, zone: &Zone<P>) -> u64 {
    let of = |set: &PcpSet<P>| {
        let _pin = platform.pin();
        set.lists.lock().pages() + set.returned.pages()
    };
    zone.pcp.iter().map(of).sum::<u64>()
}

quire_arch::part_of! {
    /// The numbers of a machine's frames.
    pub struct FrameReports { pub(super) frames: Frames }
}

impl<P: Platform> FrameReports<'_, P> {
    /// Frames that are free, those on the CPUs' lists included.
    pub fn free_frames(self) -> u64 {
        self.frames
            .zones
            .populated()
            .map(|zone| zone.free() + listed_pages(self.frames.platform(), zone))
            .sum()
    }

    /// One zone in numbers. Takes its locks one after another. A zone that the machine does not have is
    /// empty.
    pub fn zone_report(self, id: impl Into<ZoneId>) -> ZoneReport {
        let id = id.into();
        match self.frames.zones.all().get(id.index()) {
            Some(zone) => self.report(zone),
            None => self.report(&Zone::new(id, false)),
        }
    }

    /// Statistics of each zone's lock. Takes no lock itself.
    pub fn zone_locks(self) -> impl Iterator<Item = SpinStatistics> {
        self.frames.zones.populated().map(Zone::lock_statistics)
    }

    /// Every zone with frames in numbers.
    pub fn zone_reports(self) -> impl Iterator<Item = ZoneReport> {
        self.frames.zones.populated().map(move |zone| self.report(zone))
    }

    fn report(self, zone: &Zone<P>) -> ZoneReport {
        let lock = zone.lock_statistics();
        let pcp = listed_pages(self.frames.platform(), zone);
        let peak = |set: &PcpSet<P>| {
            let _pin = self.frames.platform().pin();
            set.lists.lock().peak() + set.returned.peak()
        };
        let pcp_peak = zone.pcp.iter().map(peak).sum();
        let _pin = self.frames.platform().pin();
        let (watermarks, lowmem_reserve) = (zone.levels.get(), zone.levels.lowmem_reserve());
        let buddy = zone.lock(&self.frames.platform);
        ZoneReport {
            kind: zone.id.kind(),
            node: zone.id.node(),
            span: zone.span,
            present: zone.present(),
            managed: zone.managed(),
            free: buddy.free(),
            free_reserved: buddy.free_of(Migratetype::HighAtomic),
            pcp,
            pcp_peak,
            watermarks,
            lowmem_reserve,
            blocks: buddy.counts(),
            pageblocks: buddy.block_counts(),
            lock,
        }
    }

    /// The CPUs' lists for one zone in numbers.
    pub fn pcp_reports(self, id: impl Into<ZoneId>) -> impl Iterator<Item = PcpReport> {
        let zone = self.frames.zones.all().get(id.into().index());
        let sets = zone.into_iter().flat_map(|zone| zone.pcp.iter().enumerate());
        sets.filter_map(|(cpu, set)| {
            let _pin = self.frames.platform().pin();
            let lists = set.lists.lock();
            let limits = lists.limits();
            Some(PcpReport {
                cpu: CpuId::new(cpu)?,
                count: lists.pages(),
                returned: set.returned.pages(),
                high: lists.high(),
                high_bounds: (
                    limits.high_min,
                    if self.frames.technique.tunes() { limits.high_max } else { limits.high_min },
                ),
                batch: limits.batch,
            })
        })
    }

    /// The machine in numbers.
    pub fn totals(self) -> FrameTotals {
        let waiting = |limbo: &SpinLock<LimboLists, P>| {
            let _pin = self.frames.platform().pin();
            limbo.lock().blocks()
        };
        FrameTotals {
            present: self.frames.zones.populated().map(Zone::present).sum(),
            managed: self.frames.zones.populated().map(Zone::managed).sum(),
            free: self.free_frames(),
            limbo_blocks: self.frames.limbo.iter().map(waiting).sum(),
        }
    }

    /// Frames of each kind, by reading every one: on a busy machine not a consistent snapshot.
    pub fn count_kinds(self) -> [u64; Kind::ALL.len()] {
        let mut counts = [0; Kind::ALL.len()];
        let mut left = 0;
        let mut inside = Kind::Tail;
        self.frames.audit().for_each_frame(|_, frame| {
            let word = frame.word();
            // A block's inner frames count as what its first one is.
            if word.kind() != Kind::Tail {
                inside = word.kind();
                left = if word.kind().is_head() { word.order().pages() } else { 1 };
            }
            let kind = if left > 0 { inside } else { word.kind() };
            left = left.saturating_sub(1);
            counts[kind as usize] += 1;
        });
        counts
    }
}

//! The first pass: every list.

use super::Report;
use crate::chain::walk;
use crate::frames::Frames;
use crate::kind::Kind;
use crate::map::{FrameIndex, Migratetype, PAGEBLOCK_ORDER};
use crate::pcp::PcpSet;
use crate::violation::{Counted, FrameViolation, ListName};
use crate::zone::Zone;
use crate::zone_id::ZoneId;
use core::sync::atomic::Ordering;
use quire_arch::{CpuId, Order, Pfn, Platform};

/// Walks every list of frames and marks what is on it.
pub(super) fn walk_all<P: Platform>(frames: &Frames<P>, report: Report<'_>) {
    for zone in frames.zones().populated() {
        buddy(frames, zone, report);
        for (cpu, set) in zone.pcp.iter().enumerate() {
            let Some(cpu) = CpuId::new(cpu) else { continue };
            pcp(frames, zone.id, cpu, set, report);
        }
    }
    limbo(frames, report);
    for cache in frames.caches().iter() {
        cache.audit(frames, report);
    }
}

/// What a list demands of the blocks on it.
#[derive(Clone, Copy, Debug)]
pub struct ListDemand {
    /// The list.
    pub list: ListName,
    /// What its blocks are.
    pub kind: Kind,
    /// Their order, if it is one for all.
    pub order: Option<Order>,
}

impl ListDemand {
    /// Marks the block at `pfn` as reached and checks it against its list. Returns its pages, or `None` if
    /// the list cannot be followed further.
    pub fn check<P: Platform>(&self, frames: &Frames<P>, pfn: Pfn, report: Report<'_>) -> Option<u64> {
        let Self { list, kind, order } = *self;
        let Some(frame) = frames.frame(pfn) else {
            report(FrameViolation::BadLink { list, pfn });
            return None;
        };
        frame.audit().store(frame.audit().load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let word = frame.word();
        if word.kind() != kind {
            report(FrameViolation::WrongKind { list, pfn, expected: kind, found: word.kind() });
        }
        if let Some(expected) = order.filter(|&order| order != word.order()) {
            report(FrameViolation::WrongOrder { list, pfn, expected, found: word.order() });
        }
        Some(word.order().pages())
    }
}

fn buddy<P: Platform>(frames: &Frames<P>, zone: &Zone<P>, report: Report<'_>) {
    let map = frames.map();
    let kind = zone.id;
    let published = zone.free();
    let _pin = frames.platform().pin();
    let buddy = zone.lock(frames.platform());
    let mut free = [0; Migratetype::COUNT];
    for order in Order::ALL {
        for migratetype in Migratetype::ALL {
            let list = ListName::Buddy(kind, order, migratetype);
            let demand = ListDemand { list, kind: Kind::Free, order: Some(order) };
            let (mut blocks, mut before) = (0, FrameIndex::NONE);
            for index in buddy.list(order, migratetype).iter(map) {
                let Some(_) = demand.check(frames, map.pfn(index), report) else { break };
                let pfn = map.pfn(index);
                if map.at(index).prev() != before {
                    report(FrameViolation::BrokenBackLink { list, pfn });
                }
                if map.at(index).zone() != kind {
                    report(FrameViolation::WrongZone { list, pfn });
                }
                let types = (map.at(index).word().migratetype(), block_type(frames, pfn, order, migratetype));
                for found in [types.0, types.1] {
                    if found != migratetype {
                        report(FrameViolation::WrongMigratetype { list, pfn, expected: migratetype, found });
                    }
                }
                let lower = pfn < pfn.buddy(order);
                if lower && order < Order::MAX {
                    let other = buddy.free_buddy(map, pfn.buddy(order), order);
                    let other = other.map(|other| map.at(other).word().migratetype());
                    if other.is_some_and(|other| migratetype.joins(other)) {
                        report(FrameViolation::UnmergedBuddies { pfn, order });
                    }
                }
                blocks += 1;
                free[migratetype.index()] += order.pages();
                before = index;
            }
            Counted::Blocks(list).check(buddy.list(order, migratetype).count(), blocks, report);
        }
    }
    for migratetype in Migratetype::ALL {
        let what = Counted::ZoneFreeOf(kind, migratetype);
        what.check(buddy.free_of(migratetype), free[migratetype.index()], report);
    }
    let free = free.iter().sum::<u64>() - free[Migratetype::Isolate.index()];
    Counted::ZoneFree(kind).check(buddy.free(), free, report);
    Counted::ZoneFreePublished(kind).check(published, free, report);
}

/// The type of the page blocks that a free block covers: `expected`, or the first other one.
fn block_type<P: Platform>(frames: &Frames<P>, pfn: Pfn, order: Order, expected: Migratetype) -> Migratetype {
    (0..order.pages())
        .step_by(PAGEBLOCK_ORDER.pages() as usize)
        .map(|offset| frames.map().block_migratetype(pfn.offset(offset)))
        .find(|&found| found != expected)
        .unwrap_or(expected)
}

/// Checks that a block which a CPU keeps lies in a page block that is in use.
///
/// A block may have entered a list before its page block was isolated, but a machine on which a range is just
/// leaving is not quiet: when [`take_offline`](crate::FrameHotplug::take_offline) has ended, its frames are
/// out of use or its page blocks as they were. That the page block has another type than the list, the
/// reserve's included, is no damage: it may have changed while the block lay here, and a thread that drains
/// the list asks again.
fn not_isolated<P: Platform>(frames: &Frames<P>, list: ListName, index: FrameIndex, report: Report<'_>) {
    let pfn = frames.map().pfn(index);
    let found = frames.map().block_migratetype(pfn);
    if found == Migratetype::Isolate {
        let expected = frames.map().at(index).word().migratetype();
        report(FrameViolation::WrongMigratetype { list, pfn, expected, found });
    }
}

fn pcp<P: Platform>(frames: &Frames<P>, zone: ZoneId, cpu: CpuId, set: &PcpSet<P>, report: Report<'_>) {
    let map = frames.map();
    let _pin = frames.platform().pin();
    let lists = set.lists.lock();
    let mut pages = 0;
    for order in Order::ALL {
        for migratetype in Migratetype::ALL {
            let Some(blocks) = lists.list(order, migratetype) else { continue };
            let list = ListName::Pcp(cpu, zone, order, migratetype);
            let demand = ListDemand { list, kind: Kind::Pcp, order: Some(order) };
            let (mut found, mut before) = (0, FrameIndex::NONE);
            for index in blocks.iter(map) {
                let Some(block) = demand.check(frames, map.pfn(index), report) else { break };
                let pfn = map.pfn(index);
                if map.at(index).prev() != before {
                    report(FrameViolation::BrokenBackLink { list, pfn });
                }
                if map.at(index).zone() != zone {
                    report(FrameViolation::WrongZone { list, pfn });
                }
                not_isolated(frames, list, index, report);
                found += 1;
                pages += block;
                before = index;
            }
            Counted::Blocks(list).check(blocks.count(), found, report);
        }
    }
    let (first, incoming) = lists.incoming();
    pages += returned(frames, (cpu, zone), (first, incoming), report);
    Counted::PcpPages(cpu, zone).check(lists.pages(), pages, report);
    returned(frames, (cpu, zone), (set.returned.first(), set.returned.pages()), report);
}

/// Walks blocks that other CPUs returned, of `pages` base pages, and returns how many there are.
fn returned<P: Platform>(
    frames: &Frames<P>,
    (cpu, zone): (CpuId, ZoneId),
    (first, pages): (FrameIndex, u64),
    report: Report<'_>,
) -> u64 {
    let list = ListName::Returned(cpu, zone);
    let demand = ListDemand { list, kind: Kind::Pcp, order: None };
    let mut found = 0;
    // No more blocks than pages, so that a broken list ends.
    for index in walk(frames.map(), first, pages) {
        let Some(block) = demand.check(frames, frames.map().pfn(index), report) else { break };
        let frame = frames.map().at(index);
        if frame.zone() != zone {
            report(FrameViolation::WrongZone { list, pfn: frames.map().pfn(index) });
        }
        not_isolated(frames, list, index, report);
        found += block;
    }
    Counted::Pages(list).check(pages, found, report);
    found
}

fn limbo<P: Platform>(frames: &Frames<P>, report: Report<'_>) {
    for (cpu, lock) in frames.limbo.iter().enumerate() {
        let Some(cpu) = CpuId::new(cpu) else { continue };
        let list = ListName::Limbo(cpu);
        let demand = ListDemand { list, kind: Kind::Limbo, order: None };
        let _pin = frames.platform().pin();
        let limbo = lock.lock();
        for chain in limbo.chains() {
            let (mut blocks, mut pages) = (0, 0);
            for index in chain.iter(frames.map()) {
                let Some(block) = demand.check(frames, frames.map().pfn(index), report) else { break };
                blocks += 1;
                pages += block;
            }
            Counted::Blocks(list).check(u64::from(chain.blocks()), blocks, report);
            Counted::Pages(list).check(chain.pages(), pages, report);
        }
    }
}

//! The second pass: every frame.

use super::Report;
use crate::frames::Frames;
use crate::frames::boot::zone_of_block;
use crate::kind::Kind;
use crate::map::{Frame, Migratetype, PAGEBLOCK_ORDER};
use crate::violation::{Counted, FrameViolation};
use crate::zone_id::ZoneId;
use core::sync::atomic::Ordering;
use quire_arch::{Pfn, Platform};

/// Checks every frame against its kind and counts.
pub(super) fn sweep<P: Platform>(frames: &Frames<P>, report: Report<'_>) {
    let map = frames.map();
    let mut managed = [0; ZoneId::COUNT];
    let mut reserved = 0;
    // The block that covers the frame, if it lies inside one: where that starts and ends.
    let mut block: Option<(Pfn, Pfn)> = None;
    for (pfn, frame) in map.iter() {
        let kind = frame.kind();
        let inside = block.filter(|&(_, end)| pfn < end);
        if let Some((head, _)) = inside {
            if !frame.is_clean_tail() {
                report(FrameViolation::BadTail { head, pfn, found: kind });
            }
        } else if kind == Kind::Tail {
            report(FrameViolation::StrayTail { pfn });
        }
        if kind.is_head() {
            let order = frame.word().order();
            if !pfn.is_aligned(order) {
                report(FrameViolation::Misaligned { pfn, order });
            }
            if inside.is_none() {
                block = Some((pfn, pfn.offset(order.pages())));
            }
        }
        reserved += u64::from(kind == Kind::Reserved);
        if !matches!(kind, Kind::Reserved | Kind::Hole | Kind::Offline) {
            managed[frame.zone().index()] += 1;
        }
        check(pfn, frame, report);
    }
    Counted::Reserved.check(frames.reserved().len(), reserved, report);
    for zone in frames.zones().all() {
        Counted::ZoneManaged(zone.id).check(zone.managed(), managed[zone.id.index()], report);
    }
    pageblocks(frames, report);
}

/// Checks one frame by itself.
fn check(pfn: Pfn, frame: &Frame, report: Report<'_>) {
    let kind = frame.kind();
    let found = frame.audit().load(Ordering::Relaxed);
    let expected = match kind {
        Kind::Free | Kind::Pcp | Kind::Limbo | Kind::Slab | Kind::CacheArea | Kind::Gathered => 1,
        Kind::Hole
        | Kind::Reserved
        | Kind::Tail
        | Kind::Offline
        | Kind::Allocated
        | Kind::Table
        | Kind::Anonymous
        | Kind::ZeroPage
        | Kind::File
        | Kind::Shmem
        | Kind::Swap
        | Kind::Memcg
        | Kind::Kernel => 0,
    };
    if found < expected {
        report(FrameViolation::Lost { pfn, kind });
    } else if found > expected {
        report(FrameViolation::Reached { pfn, kind, expected, found });
    }
    // A tail was checked with its block. The lock of a frame in the limbo may still be a reader's.
    let idle = matches!(kind, Kind::Free | Kind::Pcp | Kind::Limbo | Kind::Gathered | Kind::Offline);
    let maps = frame.map_count().load(Ordering::Relaxed);
    let locked = frame.lock_word().is_locked() && kind != Kind::Limbo;
    if idle && (frame.refs() != 0 || maps != 0 || locked) {
        report(FrameViolation::FreeButInUse { pfn, kind, refs: frame.refs(), maps });
    }
}

/// Recounts the page blocks of each type.
fn pageblocks<P: Platform>(frames: &Frames<P>, report: Report<'_>) {
    let map = frames.map();
    let mut found = [[0; Migratetype::COUNT]; ZoneId::COUNT];
    let mut block = map.span().start().block_start(PAGEBLOCK_ORDER);
    while block < map.span().end() {
        if let Some(zone) = zone_of_block(map, block) {
            found[zone.index()][map.block_migratetype(block).index()] += 1;
        }
        block = block.offset(PAGEBLOCK_ORDER.pages());
    }
    for zone in frames.zones().populated() {
        let _pin = frames.platform().pin();
        let kept = zone.lock(frames.platform()).block_counts();
        for kind in Migratetype::ALL {
            let what = Counted::Pageblocks(zone.id, kind);
            what.check(kept[kind.index()], found[zone.id.index()][kind.index()], report);
        }
    }
}

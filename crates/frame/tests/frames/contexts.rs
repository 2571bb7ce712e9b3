//! What an allocation may do to succeed: watermarks, the high-order atomic reserve, and what mixed page
//! blocks ask of background reclaim.

use crate::common::{Machine, TEST, assert_sound, frames, frames_with_watermarks, make_low, order};
use quire_arch::{Order, Pfn, Platform};
use quire_frame::{AllocRequest, FrameConfig, Frames, Migratetype, PcpTechnique, ZoneKind};
use std::cell::Cell;

const ONE: AllocRequest = AllocRequest::new(Order::ZERO, TEST);

/// 128 MiB, of which 8 MiB are kept back.
fn machine() -> Frames<Machine> {
    frames_with_watermarks(Machine::new(&[(0, 1 << 15)], 1), 8 << 10)
}

fn exhaust(frames: &Frames<Machine>, request: AllocRequest) -> Vec<Pfn> {
    let pin = frames.platform().pin();
    std::iter::from_fn(|| frames.allocate(&pin, request).ok()).collect()
}

#[test]
fn who_cannot_wait_goes_deeper_below_the_watermark() {
    let frames = machine();
    let min = frames.zone_report(ZoneKind::Dma32).watermarks.min;
    exhaust(&frames, ONE);
    assert_eq!(frames.free_frames(), min, "ordinary requests end at the watermark");
    exhaust(&frames, ONE.atomic());
    assert_eq!(frames.free_frames(), min - min / 2 - (min - min / 2) / 4);
    exhaust(&frames, ONE.below_min());
    assert_eq!(frames.free_frames(), 0);
    assert_sound(&frames);
}

/// A hazard of docs/locking.md: "high-order atomic reserves are skipped because the pcp path serves first".
/// The lists hold blocks of the order, then none; the reserve serves when nothing else can.
#[test]
fn the_reserve_serves_when_the_lists_and_the_zone_cannot() {
    let frames = machine();
    let pin = frames.platform().pin();
    let atomic = AllocRequest::new(order(3), TEST).atomic();
    let ordinary = exhaust(&frames, ONE);
    let first = frames.allocate(&pin, atomic).unwrap();
    let blocks = |kind: Migratetype| frames.zone_report(ZoneKind::Dma32).pageblocks[kind.index()];
    assert_eq!(blocks(Migratetype::HighAtomic), 1, "a low zone keeps the block for the next one");
    assert_sound(&frames);
    // What is freed in that block stays in the reserve.
    let around = first.block_start(order(9));
    let inside = ordinary.iter().filter(|pfn| pfn.block_start(order(9)) == around);
    inside.for_each(|&pfn| frames.free(&pin, pfn, Order::ZERO).unwrap());
    let reserved = frames.zone_report(ZoneKind::Dma32).free_reserved;
    assert!(reserved >= 64, "{reserved}");
    // Ordinary requests do not get it, atomic ones do.
    let urgent = exhaust(&frames, ONE.atomic());
    assert_eq!(frames.zone_report(ZoneKind::Dma32).free_reserved, reserved);
    // A block of the reserve goes back to the reserve, not to a CPU's list.
    frames.drain_all(&pin);
    let mut held = vec![first];
    while let Ok(pfn) = frames.allocate(&pin, atomic.without_drain()) {
        held.push(pfn);
    }
    assert!(frames.zone_report(ZoneKind::Dma32).free_reserved < reserved);
    for pfn in held {
        frames.free(&pin, pfn, order(3)).unwrap();
    }
    assert_eq!(frames.zone_report(ZoneKind::Dma32).free_reserved % 8, 0);
    assert_sound(&frames);
    // Before an ordinary request fails the reserve is opened.
    for pfn in urgent {
        frames.free(&pin, pfn, Order::ZERO).unwrap();
    }
    let rest = exhaust(&frames, ONE);
    assert!(!rest.is_empty());
    assert_eq!(blocks(Migratetype::HighAtomic), 0);
    assert_sound(&frames);
}

#[test]
fn the_reserve_stays_small() {
    let frames = machine();
    let pin = frames.platform().pin();
    exhaust(&frames, ONE);
    let atomic = AllocRequest::new(order(2), TEST).atomic();
    while frames.allocate(&pin, atomic.without_drain()).is_ok() {}
    let report = frames.zone_report(ZoneKind::Dma32);
    let blocks = report.pageblocks[Migratetype::HighAtomic.index()];
    assert!((1..=1 + report.managed / 100 / 512).contains(&blocks), "{blocks}");
    assert_sound(&frames);
}

/// Mixing types in a page block calls background reclaim earlier, for a while.
#[test]
fn mixed_page_blocks_boost_the_watermarks() {
    let frames = machine();
    let pin = frames.platform().pin();
    let movable = ONE.movability(Migratetype::Movable);
    // Nothing but single frames here and there is free, more than the low watermark.
    let all = exhaust(&frames, movable.below_min());
    for &pfn in all.iter().step_by(11) {
        frames.free(&pin, pfn, Order::ZERO).unwrap();
    }
    frames.drain_all(&pin);
    assert_eq!(frames.background_target(), 0);
    frames.allocate(&pin, ONE).unwrap();
    let boost = frames.zone_report(ZoneKind::Dma32).watermarks.boost;
    assert!(boost > 0, "a small piece was taken from another type");
    let zone = frames.zone_report(ZoneKind::Dma32);
    let lacking = zone.watermarks.high + boost - (zone.free + zone.pcp);
    assert_eq!(frames.background_target(), lacking, "the boost calls reclaim though more than low is free");
    frames.end_boost();
    assert_eq!(frames.zone_report(ZoneKind::Dma32).watermarks.boost, 0);
    assert_sound(&frames);
}

#[test]
fn without_mobility_every_request_is_of_one_type() {
    let config = FrameConfig { ignore_mobility: true, min_free_kib: Some(0), ..FrameConfig::default() };
    let frames = Frames::new(Machine::new(&[(0, 4096)], 1), config).unwrap();
    let pin = frames.platform().pin();
    for kind in Migratetype::PCP_TYPES {
        let pfn = frames.allocate(&pin, ONE.movability(kind)).unwrap();
        assert_eq!(frames.known(pfn).word().migratetype(), Migratetype::Movable);
    }
    assert_eq!(frames.zone_report(ZoneKind::Dma32).pageblocks[Migratetype::Unmovable.index()], 0);
    assert_eq!(ONE.movability(Migratetype::Isolate), ONE, "a block's type is no request's");
}

#[test]
fn the_indices_tell_lack_of_memory_from_fragments() {
    let frames = frames(&[(0, 4096)], 1, PcpTechnique::None);
    let pin = frames.platform().pin();
    let report = || frames.zone_report(ZoneKind::Dma32);
    assert_eq!(
        (report().fragmentation_index(Order::PMD), report().unusable_free_index(Order::PMD) < 200),
        (None, true)
    );
    let all = exhaust(&frames, ONE);
    assert_eq!(report().fragmentation_index(Order::PMD), Some(0), "nothing is free at all");
    for &pfn in all.iter().step_by(2) {
        frames.free(&pin, pfn, Order::ZERO).unwrap();
    }
    let index = report().fragmentation_index(Order::PMD).unwrap();
    assert!(index > 950, "{index}: only pieces are free");
    assert_eq!(report().unusable_free_index(order(1)), 1000);
    assert_eq!(report().unusable_free_index(Order::ZERO), 0);
}

#[test]
fn the_lock_is_timed_where_that_is_wished() {
    let held = Cell::new(0);
    for time_locks in [false, true] {
        let config = FrameConfig { time_locks, pcp: PcpTechnique::None, ..FrameConfig::default() };
        let frames = Frames::new(Machine::new(&[(0, 4096)], 1), config).unwrap();
        drop(exhaust(&frames, ONE));
        held.set(frames.zone_locks().map(|lock| lock.held_ns).sum());
        assert_eq!(held.get() > 0, time_locks);
    }
}

/// A block counts as a whole: a large one is not given out where it would take the zone below its watermark.
#[test]
fn a_large_block_does_not_reach_below_the_watermark() {
    for pcp in PcpTechnique::ALL {
        let config = FrameConfig { pcp, min_free_kib: Some(8 << 10), ..FrameConfig::default() };
        let frames = Frames::new(Machine::new(&[(0, 1 << 15)], 1), config).unwrap();
        let min = frames.zone_report(ZoneKind::Dma32).watermarks.min;
        for number in [10, 9, 6, 3, 1] {
            exhaust(&frames, AllocRequest::new(order(number), TEST));
            let left = frames.free_frames();
            assert!(left >= min, "{pcp:?}, order {number}: {left} of {min} frames are left");
        }
        exhaust(&frames, ONE);
        assert_eq!(frames.free_frames(), min, "{pcp:?}");
        assert_sound(&frames);
    }
}

/// A block of two page blocks that makes the reserve grow puts both into it, and comes back to it whole.
#[test]
fn a_request_for_two_page_blocks_reserves_both() {
    let frames = frames_with_watermarks(Machine::new(&[(0, 16384)], 1), 48 << 10);
    let pin = frames.platform().pin();
    let pfn = frames.allocate(&pin, AllocRequest::new(order(10), TEST).atomic()).unwrap();
    for half in [pfn, pfn.offset(512)] {
        assert_eq!(frames.map().block_migratetype(half), Migratetype::HighAtomic);
    }
    frames.free(&pin, pfn, order(10)).unwrap();
    assert_sound(&frames);
}

/// The frames beside a block that was given out of a new page block of the reserve are on no CPU's list, from
/// where ordinary requests would get them.
#[test]
fn what_lies_beside_a_reserved_block_is_on_no_list() {
    let frames = frames_with_watermarks(Machine::new(&[(0, 1 << 17)], 1), 384 << 10);
    let pin = frames.platform().pin();
    make_low(&frames);
    frames.drain_all(&pin);
    let pfn = frames.allocate(&pin, AllocRequest::new(order(1), TEST).atomic()).unwrap();
    assert_eq!(frames.map().block_migratetype(pfn), Migratetype::HighAtomic);
    assert_eq!(frames.zone_report(ZoneKind::Dma32).pcp, 0);
    let other = frames.allocate(&pin, AllocRequest::new(order(1), TEST).below_min()).unwrap();
    assert_ne!(frames.map().block_migratetype(other), Migratetype::HighAtomic);
}

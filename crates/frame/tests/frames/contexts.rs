//! What an allocation may do to succeed: watermarks, the high-order atomic reserve, and what mixed page
//! blocks ask of background reclaim.

use crate::support::*;
use std::cell::Cell;

fn eight() -> AllocRequest {
    AllocRequest::new(order(3), TEST)
}

/// 128 MiB, of which 8 MiB are kept back.
fn machine() -> Audited {
    frames_with_watermarks(Machine::new(&[(0, 1 << 15)], 1), 8 << 10)
}

#[test]
fn who_cannot_wait_goes_deeper_below_the_watermark() {
    let frames = machine();
    let min = zone(&frames).watermarks.min;
    exhaust(&frames, ONE);
    assert_eq!(frames.reports().free_frames(), min, "ordinary requests end at the watermark");
    exhaust(&frames, ONE.atomic());
    assert_eq!(frames.reports().free_frames(), min - min / 2 - (min - min / 2) / 4);
    exhaust(&frames, ONE.below_min());
    assert_eq!(frames.reports().free_frames(), 0);
}

/// A low machine with a block of eight frames in the reserve, and how many frames are free beside it there.
fn with_reserve(frames: &Audited) -> (Pfn, u64) {
    let pin = frames.platform().pin();
    let ordinary = exhaust(frames, ONE);
    let first = frames.allocate(&pin, eight().atomic()).unwrap();
    assert_eq!(reserved_blocks(frames), 1, "a low zone keeps the block for the next one");
    assert_sound(frames);
    // What is freed in that block stays in the reserve.
    let around = first.block_start(order(9));
    let inside = ordinary.iter().filter(|pfn| pfn.block_start(order(9)) == around);
    inside.for_each(|&pfn| frames.free(&pin, pfn, Order::ZERO).unwrap());
    let reserved = zone(frames).free_reserved;
    assert!(reserved >= 64, "{reserved}");
    (first, reserved)
}

fn reserved_blocks(frames: &Audited) -> u64 {
    zone(frames).pageblocks[Migratetype::HighAtomic.index()]
}

/// A hazard of docs/hazards.md: "high-order atomic reserves are skipped because the pcp path serves first".
/// The lists hold blocks of the order, then none; the reserve serves when nothing else can.
#[test]
fn the_reserve_serves_when_the_lists_and_the_zone_cannot() {
    let frames = machine();
    let pin = frames.platform().pin();
    let (first, reserved) = with_reserve(&frames);
    // Ordinary requests do not get it, atomic ones do.
    assert!(frames.allocate(&pin, ONE.without_drain()).is_err());
    assert_eq!(zone(&frames).free_reserved, reserved);
    // A block of the reserve goes back to the reserve, not to a CPU's list.
    let mut held = vec![first];
    while let Ok(pfn) = frames.allocate(&pin, eight().atomic().without_drain()) {
        held.push(pfn);
    }
    assert!(zone(&frames).free_reserved < reserved);
    put_all(&frames, held, order(3));
    assert_eq!(zone(&frames).free_reserved % 8, 0);
    assert_sound(&frames);
    // Before an ordinary request fails the reserve is opened.
    let rest = exhaust(&frames, ONE);
    assert!(!rest.is_empty());
    assert_eq!(reserved_blocks(&frames), 0);
}

/// That one frame cannot be had now is worse than that eight may be missing later.
#[test]
fn a_frame_for_a_caller_that_cannot_wait_comes_from_the_reserve_at_last() {
    let frames = machine();
    let pin = frames.platform().pin();
    let (_, reserved) = with_reserve(&frames);
    let free = || (zone(&frames).free_reserved, frames.reports().free_frames());
    let min = zone(&frames).watermarks.min;
    let deepest = min - min / 2 - (min - min / 2) / 4;
    let mut held = Vec::new();
    while free().0 == reserved {
        held.push(frames.allocate(&pin, ONE.atomic()).unwrap());
    }
    assert_eq!(free(), (reserved - 1, deepest + reserved - 1), "first what is not kept for others");
    held.extend(exhaust(&frames, ONE.atomic()));
    assert_eq!(free(), (0, deepest), "the watermark holds");
    assert_sound(&frames);
    put_all(&frames, held, Order::ZERO);
    frames.pcp().drain_all(&pin);
    assert_eq!((zone(&frames).free_reserved, reserved_blocks(&frames)), (reserved, 1), "a reserve again");
    assert_sound(&frames);
}

#[test]
fn the_reserve_stays_small() {
    let frames = machine();
    exhaust(&frames, ONE);
    let atomic = AllocRequest::new(order(2), TEST).atomic();
    exhaust(&frames, atomic.without_drain());
    let report = zone(&frames);
    let blocks = report.pageblocks[Migratetype::HighAtomic.index()];
    assert!((1..=1 + report.managed / 100 / 512).contains(&blocks), "{blocks}");
}

/// Mixing types in a page block calls background reclaim earlier, for a while.
#[test]
fn mixed_page_blocks_boost_the_watermarks() {
    let frames = machine();
    let pin = frames.platform().pin();
    let movable = ONE.movability(Migratetype::Movable);
    // Nothing but single frames here and there is free, more than the low watermark.
    let all = exhaust(&frames, movable.below_min());
    put_all(&frames, all.iter().step_by(11), Order::ZERO);
    frames.pcp().drain_all(&pin);
    assert_eq!(frames.watermarks().background_target(), 0);
    frames.allocate(&pin, ONE).unwrap();
    let boost = zone(&frames).watermarks.boost;
    assert!(boost > 0, "a small piece was taken from another type");
    let now = zone(&frames);
    let lacking = now.watermarks.high + boost - (now.free + now.pcp);
    assert_eq!(frames.watermarks().background_target(), lacking, "the boost calls reclaim above low");
    frames.watermarks().end_boost();
    assert_eq!(zone(&frames).watermarks.boost, 0);
}

#[test]
fn without_mobility_every_request_is_of_one_type() {
    let config = FrameConfig { ignore_mobility: true, min_free_kib: Some(0), ..FrameConfig::default() };
    let frames = frames_by(Machine::new(&[(0, 4096)], 1), config);
    let pin = frames.platform().pin();
    for kind in Migratetype::PCP_TYPES {
        let pfn = frames.allocate(&pin, ONE.movability(kind)).unwrap();
        assert_eq!(frames.known(pfn).word().migratetype(), Migratetype::Movable);
    }
    assert_eq!(zone(&frames).pageblocks[Migratetype::Unmovable.index()], 0);
    assert_eq!(ONE.movability(Migratetype::Isolate), ONE, "a block's type is no request's");
}

#[test]
fn the_indices_tell_lack_of_memory_from_fragments() {
    let frames = frames(&[(0, 4096)], 1, PcpTechnique::None);
    let report = || zone(&frames);
    assert_eq!(
        (report().fragmentation_index(Order::PMD), report().unusable_free_index(Order::PMD) < 200),
        (None, true)
    );
    let all = exhaust(&frames, ONE);
    assert_eq!(report().fragmentation_index(Order::PMD), Some(0), "nothing is free at all");
    put_all(&frames, all.iter().step_by(2), Order::ZERO);
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
        let frames = frames_by(Machine::new(&[(0, 4096)], 1), config);
        drop(exhaust(&frames, ONE));
        held.set(frames.reports().zone_locks().map(|lock| lock.held_ns).sum());
        assert_eq!(held.get() > 0, time_locks);
    }
}

/// A block counts as a whole: a large one is not given out where it would take the zone below its watermark.
#[test]
fn a_large_block_does_not_reach_below_the_watermark() {
    for pcp in PcpTechnique::ALL {
        let config = FrameConfig { pcp, min_free_kib: Some(8 << 10), ..FrameConfig::default() };
        let frames = frames_by(Machine::new(&[(0, 1 << 15)], 1), config);
        let min = zone(&frames).watermarks.min;
        for number in [10, 9, 6, 3, 1] {
            exhaust(&frames, AllocRequest::new(order(number), TEST));
            let left = frames.reports().free_frames();
            assert!(left >= min, "{pcp:?}, order {number}: {left} of {min} frames are left");
        }
        exhaust(&frames, ONE);
        assert_eq!(frames.reports().free_frames(), min, "{pcp:?}");
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
}

/// The frames beside a block that was given out of a new page block of the reserve are on no CPU's list, from
/// where ordinary requests would get them.
#[test]
fn what_lies_beside_a_reserved_block_is_on_no_list() {
    let frames = frames_with_watermarks(Machine::new(&[(0, 1 << 17)], 1), 384 << 10);
    let pin = frames.platform().pin();
    make_low(&frames);
    frames.pcp().drain_all(&pin);
    let pfn = frames.allocate(&pin, AllocRequest::new(order(1), TEST).atomic()).unwrap();
    assert_eq!(frames.map().block_migratetype(pfn), Migratetype::HighAtomic);
    assert_eq!(zone(&frames).pcp, 0);
    let other = frames.allocate(&pin, AllocRequest::new(order(1), TEST).below_min()).unwrap();
    assert_ne!(frames.map().block_migratetype(other), Migratetype::HighAtomic);
}

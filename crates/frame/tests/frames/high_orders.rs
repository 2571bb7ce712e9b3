//! Blocks of every order on the CPUs' lists, and the budget that they share.

use crate::support::*;

/// 512 MiB.
const FRAMES: u64 = 1 << 17;

#[test]
fn pairs_of_listed_orders_take_no_zone_lock() {
    for (pcp, listed) in PcpTechnique::ALL.into_iter().zip([0, 1, 4, 10]) {
        for number in 0..=10 {
            let frames = frames(&[(0, 1 << 14)], 1, pcp);
            let order = order(number);
            put(&frames, get(&frames, order), order);
            let before = zone_takes(&frames);
            for _ in 0..1000 {
                put(&frames, get(&frames, order), order);
            }
            let takes = zone_takes(&frames) - before;
            assert_eq!(takes, if number < listed { 0 } else { 2000 }, "{pcp:?}, order {number}");
        }
    }
}

/// What one CPU may keep is counted in base pages, whatever the orders are.
#[test]
fn all_orders_share_one_budget() {
    let frames = frames(&[(0, FRAMES)], 2, PcpTechnique::All);
    run_on(0);
    let mut held: Vec<(Pfn, Order)> = Vec::new();
    for round in 0..3 {
        for number in [0, 3, 9, 1, 6, 9, 4] {
            let order = order(number);
            held.extend((0..24).map(|_| (get(&frames, order), order)));
        }
        let budget = lists(&frames, 0).high_bounds.1;
        for (pfn, order) in held.drain(..) {
            put(&frames, pfn, order);
            let now = lists(&frames, 0);
            assert!(now.count <= now.high && now.high <= budget, "round {round}: {now:?}");
        }
        assert_sound(&frames);
    }
    let kept = lists(&frames, 0);
    assert!(kept.count > kept.high / 2, "{kept:?}: what fits is kept");
    assert_eq!(lists(&frames, 1).count, 0);
    assert_eq!(frames.reports().free_frames(), frames.reports().totals().managed, "listed ones are free");
}

/// "Thousands of pages freed under one zone-lock hold": a hold moves so many blocks at most, whatever their
/// order is.
#[test]
fn refills_and_spills_move_bounded_numbers_of_blocks() {
    for number in [0, 3] {
        let frames = frames(&[(0, FRAMES)], 2, PcpTechnique::All);
        let order = order(number);
        let count = 24_000 >> number;
        let before = zone_takes(&frames);
        let all: Vec<Pfn> = (0..count).map(|_| get(&frames, order)).collect();
        assert!(zone_takes(&frames) - before >= count / 64, "order {number}");
        let before = zone_takes(&frames);
        put_all(&frames, &all, order);
        let went = count - (lists(&frames, 0).count >> number);
        assert!(went > 1000, "order {number}: {went}");
        assert!(zone_takes(&frames) - before >= went / 64, "order {number}: {went} blocks went home");
    }
}

/// A drain of a part takes what was not used for the longest time.
#[test]
fn a_spill_keeps_what_was_used_last() {
    for pcp in [PcpTechnique::OrderZero, PcpTechnique::All] {
        let frames = frames(&[(0, 1 << 14)], 1, pcp);
        let high = lists(&frames, 0).high_bounds.1;
        let all: Vec<Pfn> = (0..2 * high).map(|_| get(&frames, Order::ZERO)).collect();
        frames.pcp().drain_all(&frames.platform().pin());
        put_all(&frames, &all, Order::ZERO);
        assert!(lists(&frames, 0).count < 2 * high, "something was spilled");
        for &pfn in all.iter().rev().take(8) {
            assert_eq!(get(&frames, Order::ZERO), pfn, "{pcp:?}");
        }
    }
}

/// Memory held by the lists of an idle CPU returns to the zones within a bounded number of ticks, also while
/// others work and while another thread looks at the figures.
#[test]
fn idle_lists_are_empty_after_a_few_ticks() {
    let frames = frames(&[(0, FRAMES)], 2, PcpTechnique::All);
    run_on(1);
    for number in [0, 3, 9] {
        let order = order(number);
        let all: Vec<Pfn> = (0..12).map(|_| get(&frames, order)).collect();
        put_all(&frames, all, order);
    }
    let held = lists(&frames, 1).count;
    assert!(held > 6000, "{held}");
    run_on(0);
    let pin = frames.platform().pin();
    // The first tick only learns that the lists were used since it last looked.
    frames.pcp().age_lists(&pin);
    let mut before = lists(&frames, 1).count;
    for tick in 0..FramePcp::<Machine>::TICKS_TO_EMPTY {
        put(&frames, get(&frames, Order::ZERO), Order::ZERO);
        let _ = zone(&frames);
        frames.pcp().age_lists(&pin);
        let now = lists(&frames, 1).count;
        assert!(now <= before / 2 + 512, "tick {tick}: {before} pages, then {now}");
        before = now;
    }
    assert_eq!(lists(&frames, 1).count, 0);
    assert_eq!(lists(&frames, 1).high, lists(&frames, 1).high_bounds.0);
    assert!(lists(&frames, 0).count > 0, "a CPU that works keeps its lists");
}

#[test]
fn the_budget_grows_with_misses_and_shrinks_without() {
    let frames = frames(&[(0, FRAMES)], 2, PcpTechnique::All);
    let (least, most) = lists(&frames, 0).high_bounds;
    assert_eq!((lists(&frames, 0).high, most), (least, FRAMES / 8 / 2 - most.abs_diff(FRAMES / 16)));
    let all: Vec<Pfn> = (0..most + 1000).map(|_| get(&frames, Order::ZERO)).collect();
    assert_eq!(lists(&frames, 0).high, most, "misses raise the budget to its bound");
    put_all(&frames, all, Order::ZERO);
    let pin = frames.platform().pin();
    frames.pcp().age_lists(&pin);
    let mut before = most;
    for _ in 0..3 {
        put(&frames, get(&frames, Order::ZERO), Order::ZERO);
        frames.pcp().age_lists(&pin);
        let now = lists(&frames, 0);
        assert_eq!(now.high, before - before / 8, "hits alone let it shrink");
        assert!(now.count <= now.high);
        before = now.high;
    }
}

/// A zone that is short of memory keeps no large budgets.
#[test]
fn a_short_zone_sets_budgets_to_their_least() {
    let frames = frames_with_watermarks(Machine::new(&[(0, FRAMES)], 1), 16 << 10);
    let (least, most) = lists(&frames, 0).high_bounds;
    assert!(most > least);
    let high = zone(&frames).watermarks.high;
    let mut all: Vec<Pfn> = (0..most).map(|_| get(&frames, Order::ZERO)).collect();
    assert!(lists(&frames, 0).high > least);
    while frames.reports().free_frames() > high - 100 {
        all.push(get(&frames, Order::ZERO));
    }
    frames.pcp().age_lists(&frames.platform().pin());
    assert_eq!(lists(&frames, 0).high, least);
    for pfn in all.drain(all.len() - 200..) {
        put(&frames, pfn, Order::ZERO);
        assert!(lists(&frames, 0).count <= least);
    }
}

/// An order-9 request finds what lies in pieces on the lists of two CPUs, returned blocks included.
#[test]
fn a_huge_block_is_formed_from_what_all_cpus_keep() {
    let frames = frames(&[(0, 1024)], 2, PcpTechnique::All);
    run_on(0);
    let huge = get(&frames, Order::PMD);
    put(&frames, huge, Order::PMD);
    let mut all: Vec<(Pfn, Order)> = Vec::new();
    let pin = frames.platform().pin();
    'take: loop {
        for number in [0, 2, 1, 3, 0] {
            let request = AllocRequest::new(order(number), TEST).movability(Migratetype::Movable);
            match frames.allocate(&pin, request) {
                Ok(pfn) => all.push((pfn, order(number))),
                Err(_) if number == 0 => break 'take,
                Err(_) => {}
            }
        }
    }
    drop(pin);
    for (turn, (pfn, order)) in all.into_iter().enumerate() {
        run_on(turn % 2);
        put(&frames, pfn, order);
    }
    assert_sound(&frames);
    run_on(1);
    assert_eq!(get(&frames, Order::PMD), huge);
}

/// What a request has to take from another type's block is one block for itself and none to keep.
#[test]
fn a_list_keeps_nothing_of_another_types_block() {
    let frames = frames(&[(0, 512)], 1, PcpTechnique::All);
    let pin = frames.platform().pin();
    let movable = ONE.movability(Migratetype::Movable);
    while frames.reports().free_frames() > 200 {
        frames.allocate(&pin, movable).unwrap();
    }
    frames.pcp().drain_all(&pin);
    // Most of the only block is in use by what can move, so that it keeps its type.
    let piece = frames.allocate(&pin, ONE).unwrap();
    assert_eq!(frames.map().block_migratetype(piece), Migratetype::Movable);
    assert_eq!(lists(&frames, 0).count, 0);
}

/// Hazard: requests for large blocks, of which a fragmented zone has none, count as traffic. The CPU's budget
/// grows to its bound, and what it frees stays on its lists, where no buddies join.
#[test]
fn requests_that_find_nothing_raise_no_budget() {
    let frames = frames(&[(0, 1 << 16)], 1, PcpTechnique::All);
    let pin = frames.platform().pin();
    let large = exhaust(&frames, ONE.order(Order::PMD));
    let (first, rest) = large.split_at(large.len() / 2);
    put_all(&frames, rest, Order::PMD);
    let all = exhaust(&frames, ONE.below_min());
    // Every other page is free.
    put_all(&frames, all.iter().step_by(2), Order::ZERO);
    frames.pcp().drain_all(&pin);
    (0..=FramePcp::<Machine>::TICKS_TO_EMPTY).for_each(|_| _ = frames.pcp().age_lists(&pin));
    let before = lists(&frames, 0).high;
    for _ in 0..100 {
        let found = frames.allocate(&pin, ONE.order(Order::PMD).without_drain());
        assert_eq!(found, Err(AllocError::OutOfMemory));
    }
    assert_eq!(lists(&frames, 0).high, before);
    assert_eq!(before, lists(&frames, 0).high_bounds.0);
    put_all(&frames, all.iter().skip(1).step_by(2), Order::ZERO);
    put_all(&frames, first, Order::PMD);
}

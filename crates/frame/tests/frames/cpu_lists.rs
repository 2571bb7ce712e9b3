//! A hazard of docs/hazards.md: what went wrong in other kernels' per-CPU lists.

use crate::support::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

fn take(frames: &Frames<Machine>, count: usize) -> Vec<Pfn> {
    let pin = frames.platform().pin();
    (0..count).map(|_| frames.allocate(&pin, ONE).unwrap()).collect()
}

/// "Draining a remote CPU samples its count once and races a refill: the drain never ends or leaves pages."
#[test]
fn a_remote_drain_that_races_refills_ends_and_loses_nothing() {
    for pcp in [PcpTechnique::OrderZero, PcpTechnique::All] {
        remote_drain_against_refills(pcp);
    }
}

fn remote_drain_against_refills(pcp: PcpTechnique) {
    let frames = frames(&[(0, 16384)], 2, pcp);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            run_on(0);
            let mut held = Vec::new();
            for round in 0..200_000 {
                let pin = frames.platform().pin();
                if round % 7 < 4 {
                    held.push(frames.allocate(&pin, ONE).unwrap());
                } else if let Some(pfn) = held.pop() {
                    frames.free(&pin, pfn, Order::ZERO).unwrap();
                }
                if held.len() > 500 {
                    put_all(&frames, held.drain(..), Order::ZERO);
                }
            }
            put_all(&frames, held, Order::ZERO);
            stop.store(true, Ordering::Relaxed);
        });
        scope.spawn(|| {
            run_on(1);
            let victim = CpuId::new(0).unwrap();
            while !stop.load(Ordering::Relaxed) {
                let pin = frames.platform().pin();
                // A drain is bounded by what was there when it began, one batch of slack each zone.
                assert!(frames.pcp().drain(&pin, victim) <= 4096);
            }
        });
    });
    let pin = frames.platform().pin();
    frames.pcp().drain_all(&pin);
    assert_eq!(zone(&frames).pcp, 0, "a quiet drain leaves nothing");
    assert_eq!(frames.reports().free_frames(), frames.reports().totals().managed);
}

/// "One CPU only: a trylock inside a drain 'succeeds' (the lock is a no-op) and corrupts the list." Locks
/// here are the same on one CPU, and no drain uses a trylock. Nothing is returned here: that takes two CPUs,
/// see `returned.rs`.
#[test]
fn on_one_cpu_a_drain_and_its_victim_do_not_meet_inside_the_list() {
    for pcp in PcpTechnique::ALL {
        let frames = frames_of(Machine::new(&[(0, 8192)], 1).shared(), pcp);
        thread::scope(|scope| {
            for thread in 0..2 {
                let frames = &frames;
                scope.spawn(move || {
                    for round in 0..10_000 {
                        let pin = frames.platform().pin();
                        if (round + thread) % 5 == 0 {
                            frames.pcp().drain_all(&pin);
                        }
                        let order = order([0, 3, 9][round / 2 % 3]);
                        let pfn = frames.allocate(&pin, AllocRequest::new(order, TEST)).unwrap();
                        drop(pin);
                        frames.free(&frames.platform().pin(), pfn, order).unwrap();
                    }
                });
            }
        });
        assert_eq!(frames.reports().free_frames(), frames.reports().totals().managed, "{pcp:?}");
    }
}

/// "A page's migratetype changed (its block was stolen) between entering the list and being drained." Blocks
/// as large as a page block, and those on a stack of returned ones: `frames/tests.rs`.
#[test]
fn a_page_whose_block_was_stolen_goes_home_to_the_new_type() {
    for pcp in PcpTechnique::ALL {
        for number in [0, 3] {
            let frames = frames(&[(0, 512)], 1, pcp);
            let pin = frames.platform().pin();
            let order = order(number);
            let movable = AllocRequest::new(order, TEST).movability(Migratetype::Movable);
            let pfn = frames.allocate(&pin, movable).unwrap();
            frames.free(&pin, pfn, order).unwrap();
            assert_eq!(frames.map().block_migratetype(pfn), Migratetype::Movable);
            // The block is nearly all free, so an unmovable request takes it over.
            let large = Order::ALL[5];
            let stolen = frames.allocate(&pin, AllocRequest::new(large, TEST)).unwrap();
            assert_eq!(frames.map().block_migratetype(pfn), Migratetype::Unmovable, "{pcp:?}, order {order}");
            assert_eq!(frames.events().sum(VmEvent::PageblockSteal), 1);
            frames.pcp().drain_all(&pin);
            assert_sound(&frames);
            let blocks = zone(&frames).blocks;
            assert!(blocks.iter().all(|types| types[Migratetype::Movable.index()] == 0), "{blocks:?}");
            frames.free(&pin, stolen, large).unwrap();
        }
    }
}

/// "Pages held in pcp lists make an allocation fail while memory is free: drain before failing." Here on all
/// CPUs.
#[test]
fn pages_held_by_any_cpu_are_drained_before_an_allocation_fails() {
    for pcp in [PcpTechnique::OrderZero, PcpTechnique::Posted, PcpTechnique::All] {
        held_pages_are_drained(pcp);
    }
}

fn held_pages_are_drained(pcp: PcpTechnique) {
    let frames = frames(&[(0, 4096)], 2, pcp);
    run_on(0);
    let all = take(&frames, frames.reports().totals().managed as usize);
    {
        run_on(1);
        put_all(&frames, &all[..4], Order::ZERO);
    }
    run_on(0);
    assert_eq!(zone(&frames).free, 0);
    let pin = frames.platform().pin();
    assert!(frames.allocate(&pin, ONE.without_drain()).is_err());
    for _ in 0..4 {
        frames.allocate(&pin, ONE).unwrap();
    }
    assert!(frames.allocate(&pin, ONE).is_err());
    assert!(frames.events().sum(VmEvent::AllocstallNormal) >= 1);
}

/// The lists are drained before an allocation fails whose block only their joined pages can form.
#[test]
fn a_large_block_is_formed_from_pages_that_the_lists_hold() {
    let frames = frames(&[(0, 1024)], 1, PcpTechnique::OrderZero);
    let pin = frames.platform().pin();
    let largest = AllocRequest::new(Order::PMD, TEST);
    let pfn = frames.allocate(&pin, largest).unwrap();
    frames.free(&pin, pfn, Order::PMD).unwrap();
    let one = frames.allocate(&pin, ONE).unwrap();
    assert!(pfn <= one && one < pfn.offset(512), "the only whole block was split");
    let half = frames.reports().free_frames() / 2;
    put_all(&frames, take(&frames, half as usize), Order::ZERO);
    frames.free(&pin, one, Order::ZERO).unwrap();
    assert_eq!(frames.allocate(&pin, largest), Ok(pfn));
}

/// "Thousands of pages freed under one zone-lock hold: free in chunks, drop the lock between."
#[test]
fn a_long_chain_is_freed_in_chunks() {
    for pcp in PcpTechnique::ALL {
        let frames = frames(&[(0, 8192)], 1, pcp);
        let all = take(&frames, 4000);
        let pin = frames.platform().pin();
        let chain = chain(&frames, &all, Order::ZERO);
        assert_eq!((chain.blocks(), chain.pages()), (4000, 4000));
        let before = zone_takes(&frames);
        frames.free_chain(&pin, chain);
        let takes = zone_takes(&frames) - before;
        // What fits into the lists takes no lock of the zone.
        let listed = zone(&frames).pcp;
        let least = (4000 - listed) / 64;
        assert!((least..4000 / 32).contains(&takes), "{takes} takes for 4000 pages, {listed} listed");
        assert_eq!(frames.reports().free_frames(), frames.reports().totals().managed);
    }
}

/// The same for a drain.
#[test]
fn a_drain_moves_bounded_chunks() {
    let frames = frames(&[(0, 1 << 18)], 1, PcpTechnique::OrderZero);
    let all = take(&frames, 4000);
    let pin = frames.platform().pin();
    put_all(&frames, all, Order::ZERO);
    let held = zone(&frames).pcp;
    assert!(held > 3 * 64, "{held}");
    let before = zone_takes(&frames);
    assert_eq!(frames.pcp().drain_all(&pin), held);
    assert_eq!(zone_takes(&frames) - before, held.div_ceil(64));
}

/// A zone's lists are easily passed over where another zone has all the traffic.
#[test]
fn a_drain_empties_the_lists_of_every_zone() {
    const NORMAL: u64 = 1 << 20;
    let frames = frames(&[(NORMAL - 4096, NORMAL + 4096)], 2, PcpTechnique::OrderZero);
    run_on(1);
    let pin = frames.platform().pin();
    for zone in ZoneKind::ALL {
        let pfn = frames.allocate(&pin, ONE.from_zone(zone)).unwrap();
        assert_eq!(ZoneKind::of(pfn), zone);
        frames.free(&pin, pfn, Order::ZERO).unwrap();
        assert!(frames.reports().zone_report(zone).pcp > 0, "{zone}");
    }
    drop(pin);
    run_on(0);
    let pin = frames.platform().pin();
    frames.pcp().drain(&pin, CpuId::new(1).unwrap());
    assert_eq!(ZoneKind::ALL.map(|zone| frames.reports().zone_report(zone).pcp), [0, 0]);
}

/// What is found only after the lists were drained is zeroed like everything else.
#[test]
fn a_frame_that_was_drained_from_another_cpu_is_zeroed() {
    let frames = frames(&[(0, 1024)], 2, PcpTechnique::OrderZero);
    run_on(0);
    let pin = frames.platform().pin();
    let mut last = None;
    while let Ok(pfn) = frames.allocate(&pin, ONE.below_min()) {
        last = Some(pfn);
    }
    drop(pin);
    let last = last.unwrap();
    run_on(1);
    let pin = frames.platform().pin();
    let bytes = frames.platform().direct_map(last);
    // SAFETY: the frame was allocated here, and no other thread knows it.
    unsafe { bytes.write_bytes(0x5a, 4096) };
    frames.free(&pin, last, Order::ZERO).unwrap();
    drop(pin);
    run_on(0);
    let pin = frames.platform().pin();
    assert!(frames.allocate(&pin, ONE.below_min().without_drain()).is_err());
    assert_eq!(frames.allocate(&pin, ONE.below_min().zeroed()), Ok(last));
    // SAFETY: the frame was allocated here again, and no other thread knows it.
    assert!((0..4096).all(|at| unsafe { bytes.add(at).read() } == 0));
}

/// "Allocate here, free there: every free lands on another CPU's list and spills to the zone lock." Where the
/// budget does not follow the traffic the spill takes the lock once a batch; with all orders listed see
/// `returned.rs`.
#[test]
fn frees_on_another_cpu_spill_in_batches() {
    let frames = frames(&[(0, 1 << 16)], 2, PcpTechnique::OrderZero);
    let before = zone_takes(&frames);
    for _ in 0..20 {
        run_on(0);
        let all = take(&frames, 500);
        run_on(1);
        put_all(&frames, all, Order::ZERO);
    }
    let takes = zone_takes(&frames) - before;
    assert!(takes < 2 * 10_000 / 10, "{takes} takes for 10000 pairs");
    run_on(0);
}

#[test]
fn pairs_do_not_take_the_zone_lock() {
    let frames = frames(&[(0, 8192)], 1, PcpTechnique::OrderZero);
    let pin = frames.platform().pin();
    let before = zone_takes(&frames);
    for _ in 0..10_000 {
        let pfn = frames.allocate(&pin, ONE).unwrap();
        frames.free(&pin, pfn, Order::ZERO).unwrap();
    }
    assert!(zone_takes(&frames) - before <= 4);
    assert!(frames.events().sum(VmEvent::PcpHit) >= 9_999);
    assert_eq!(frames.events().sum(VmEvent::Pgfree), 10_000);
}

/// A caller that has many to free lets interrupts in between.
#[test]
fn a_long_chain_is_freed_in_portions() {
    for pcp in PcpTechnique::ALL {
        let frames = frames(&[(0, 8192)], 1, pcp);
        let all = take(&frames, 4000);
        let pin = frames.platform().pin();
        let mut chain = chain(&frames, &all, Order::ZERO);
        let mut portions = 0;
        while !chain.is_empty() {
            let before = chain.blocks();
            let portion = frames.take_portion(&mut chain, 900);
            assert_eq!((portion.blocks(), chain.blocks()), (900.min(before), before.saturating_sub(900)));
            frames.free_chain(&pin, portion);
            portions += 1;
        }
        assert_eq!(portions, 5);
        assert_eq!(frames.events().sum(VmEvent::Pgfree), 4000);
        assert_eq!(frames.reports().free_frames(), frames.reports().totals().managed);
    }
}

/// Hazard: the lists of all CPUs are drained with interrupts off.
#[test]
fn all_lists_are_drained_under_short_pins() {
    const CPUS: usize = 16;
    for pcp in [PcpTechnique::OrderZero, PcpTechnique::All] {
        let frames = frames(&[(0, 8192)], CPUS, pcp);
        for cpu in 0..CPUS {
            run_on(cpu);
            put_all(&frames, take(&frames, 20), Order::ZERO);
        }
        let (drained, holds) = most_holds_under_a_pin(|| frames.pcp().drain_all_in_portions());
        assert!(drained >= CPUS as u64, "{drained} frames");
        assert!((1..=3).contains(&holds), "{holds} locks under one pin");
        assert_eq!(frames.reports().free_frames(), frames.reports().totals().managed);
        assert_eq!((0..CPUS).map(|cpu| lists(&frames, cpu).count).sum::<u64>(), 0);
        run_on(0);
    }
}

#[test]
fn a_chain_of_mixed_orders_and_zones_comes_home() {
    let border = 1 << 20;
    for pcp in PcpTechnique::ALL {
        let frames = frames(&[(border - 2048, border + 4096)], 1, pcp);
        let pin = frames.platform().pin();
        let mut chain = FrameChain::new();
        for round in 0..200u64 {
            let order = order((round % 5) as u8);
            let zone = ZoneKind::ALL[(round / 5 % 2) as usize];
            let pfn = frames.allocate(&pin, AllocRequest::new(order, TEST).from_zone(zone)).unwrap();
            frames.gather(&mut chain, pfn, order).unwrap();
        }
        frames.free_chain(&pin, chain);
        frames.free_chain(&pin, FrameChain::new());
        assert_eq!(frames.reports().free_frames(), frames.reports().totals().managed);
    }
}

/// A chain puts no more on the lists than their budget, of whatever orders its blocks are.
#[test]
fn a_chain_of_large_blocks_keeps_to_the_budget() {
    let frames = frames(&[(0, 1 << 17)], 1, PcpTechnique::All);
    let pin = frames.platform().pin();
    for number in [1, 3, 6] {
        let request = AllocRequest::new(order(number), TEST);
        let all: Vec<Pfn> = (0..20_000 >> number).map(|_| frames.allocate(&pin, request).unwrap()).collect();
        let chain = chain(&frames, all, order(number));
        frames.pcp().drain_all(&pin);
        frames.free_chain(&pin, chain);
        let lists = frames.reports().pcp_reports(ZoneKind::Dma32).next().unwrap();
        assert!(lists.count <= lists.high, "order {number}: {lists:?}");
    }
}

/// Before an allocation fails, the lists of the low zone are drained too.
#[test]
fn pages_of_the_low_zone_are_drained_before_an_allocation_fails() {
    const NORMAL: u64 = 1 << 20;
    let frames = frames(&[(NORMAL - 1024, NORMAL + 4096)], 2, PcpTechnique::OrderZero);
    run_on(0);
    let pin = frames.platform().pin();
    let low = ONE.from_zone(ZoneKind::Dma32);
    let all = exhaust(&frames, low);
    drop(pin);
    run_on(1);
    let pin = frames.platform().pin();
    let last = *all.last().unwrap();
    frames.free(&pin, last, Order::ZERO).unwrap();
    drop(pin);
    run_on(0);
    let pin = frames.platform().pin();
    assert!(frames.allocate(&pin, low.without_drain()).is_err());
    assert_eq!(frames.allocate(&pin, low), Ok(last));
}

/// The blocks that the lists of two CPUs hold, nearly all of them of CPU 0.
fn fill_two_lists(frames: &Frames<Machine>) -> u64 {
    for (cpu, count) in [(0, 60_000), (1, 500)] {
        run_on(cpu);
        let all: Vec<Pfn> = (0..count).map(|_| get(frames, Order::ZERO)).collect();
        put_all(frames, all, Order::ZERO);
    }
    run_on(0);
    // The first tick only learns that the lists were used since it last looked.
    frames.pcp().age_lists(&frames.platform().pin());
    lists(frames, 0).count + lists(frames, 1).count
}

/// Hazard: a tick runs in a timer's interrupt, and what idle CPUs hold grows with the machine. A tick gives
/// back a bounded part, of which each CPU has its share, and later ticks the rest.
#[test]
fn a_tick_gives_back_no_more_than_a_bound() {
    let frames = frames(&[(0, 1 << 19)], 2, PcpTechnique::All);
    let most = FramePcp::<Machine>::BLOCKS_AT_A_TICK;
    let held = fill_two_lists(&frames);
    let few = lists(&frames, 1).count;
    assert!(held > 6 * most && few > 0, "{held}, {few}");
    for tick in 1..=held / most + u64::from(FramePcp::<Machine>::TICKS_TO_EMPTY) {
        let (given_back, holds) = most_holds_under_a_pin(|| frames.pcp().age_lists(&frames.platform().pin()));
        assert!(given_back <= most, "tick {tick}: {given_back}");
        assert!(holds <= 2 * most / 64 + 8, "tick {tick}: {holds} locks");
        if tick == u64::from(FramePcp::<Machine>::TICKS_TO_EMPTY) {
            assert!(lists(&frames, 0).count > most, "the rest of this test looks at nothing");
            assert_eq!(lists(&frames, 1).count, 0, "a CPU with little waits for one with much");
        }
    }
    assert_eq!(frames.reports().free_frames(), frames.reports().totals().managed);
    assert_eq!(lists(&frames, 0).count, 0);
}

/// What a tick leaves is given back under short pins.
#[test]
fn what_a_tick_leaves_is_given_back_in_portions() {
    let frames = frames(&[(0, 1 << 19)], 2, PcpTechnique::All);
    let mut held = fill_two_lists(&frames);
    assert_eq!(frames.pcp().give_back_in_portions(), 0, "no tick left anything");
    for _ in 0..FramePcp::<Machine>::TICKS_TO_EMPTY {
        frames.pcp().age_lists(&frames.platform().pin());
        let (_, holds) = most_holds_under_a_pin(|| frames.pcp().give_back_in_portions());
        assert!(holds <= 2, "{holds} locks under one pin");
        let now = lists(&frames, 0).count + lists(&frames, 1).count;
        assert!(now <= held / 2 + 2, "{held}, then {now}");
        assert_eq!(frames.pcp().give_back_in_portions(), 0, "nothing more is due");
        held = now;
    }
    assert_eq!(held, 0);
}

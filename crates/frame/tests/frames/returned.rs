//! A hazard of docs/hazards.md: "allocate here, free there: every free lands on another CPU's list and spills
//! to the zone lock".

use crate::support::*;
use std::sync::mpsc::sync_channel;
use std::thread;

/// 512 MiB.
const FRAMES: u64 = 1 << 17;

/// `count` blocks are allocated by CPU 0 and freed by CPU 1.
fn hand_over(frames: &Frames<Machine>, order: Order, count: usize) {
    run_on(0);
    let all: Vec<Pfn> = (0..count).map(|_| get(frames, order)).collect();
    run_on(1);
    all.into_iter().for_each(|pfn| put(frames, pfn, order));
}

/// Once the budgets have settled, blocks go back to the CPU that allocates without the zone's lock.
#[test]
fn frees_on_another_cpu_go_back_without_the_zone_lock() {
    for (number, count) in [(0, 500), (3, 200), (9, 4)] {
        let frames = frames(&[(0, FRAMES)], 2, PcpTechnique::All);
        let order = order(number);
        for _ in 0..50 {
            hand_over(&frames, order, count);
        }
        let before = zone_takes(&frames);
        for _ in 0..50 {
            hand_over(&frames, order, count);
        }
        let takes = zone_takes(&frames) - before;
        let allocations = 50 * count as u64;
        assert!(takes * 100 <= allocations, "order {number}: {takes} takes for {allocations} allocations");
        assert!(frames.events().sum(VmEvent::PcpReturn) > 0);
        run_on(0);
        assert_sound(&frames);
        frames.pcp().drain_all(&frames.platform().pin());
        assert_eq!(zone(&frames).pcp, 0);
        assert_eq!(frames.reports().free_frames(), frames.reports().totals().managed);
    }
}

/// The budget of the CPU that gets blocks back holds for these too.
#[test]
fn no_cpu_gets_more_back_than_its_budget() {
    let frames = frames(&[(0, FRAMES)], 2, PcpTechnique::All);
    for _ in 0..20 {
        hand_over(&frames, order(3), 1000);
        let owner = lists(&frames, 0);
        assert!(owner.count + owner.returned <= owner.high, "{owner:?}");
    }
}

/// A CPU that stopped allocating gets nothing back, and gives up what it got.
#[test]
fn a_cpu_that_is_idle_wants_nothing_back() {
    let frames = frames(&[(0, FRAMES)], 2, PcpTechnique::All);
    for _ in 0..20 {
        hand_over(&frames, Order::ZERO, 500);
    }
    run_on(0);
    let late: Vec<Pfn> = (0..4000).map(|_| get(&frames, Order::ZERO)).collect();
    run_on(1);
    let pin = frames.platform().pin();
    for _ in 0..=FramePcp::<Machine>::TICKS_TO_EMPTY {
        frames.pcp().age_lists(&pin);
    }
    let owner = lists(&frames, 0);
    assert_eq!((owner.count, owner.returned), (0, 0));
    drop(pin);
    put_all(&frames, late, Order::ZERO);
    let owner = lists(&frames, 0);
    assert_eq!((owner.count, owner.returned), (0, 0));
}

/// What lies on the stack of returned blocks is drained like the lists: before an allocation fails, and by
/// any CPU.
#[test]
fn returned_blocks_are_drained_by_any_cpu() {
    let frames = frames(&[(0, FRAMES)], 3, PcpTechnique::All);
    for _ in 0..20 {
        hand_over(&frames, Order::ZERO, 500);
    }
    assert!(lists(&frames, 0).returned > 0);
    run_on(2);
    let pin = frames.platform().pin();
    let owner = lists(&frames, 0);
    assert_eq!(frames.pcp().drain(&pin, CpuId::new(0).unwrap()), owner.count + owner.returned);
    assert_eq!(lists(&frames, 0).returned, 0);
}

/// Both directions at once, of mixed orders, with drains and ticks in between.
#[test]
fn two_cpus_that_free_each_others_blocks_lose_none() {
    for seed in [1, 2, 3] {
        println!("seed {seed}");
        let frames = frames(&[(0, 1 << 15)], 2, PcpTechnique::All);
        let (to_first, from_second) = sync_channel::<(Pfn, Order)>(256);
        let (to_second, from_first) = sync_channel::<(Pfn, Order)>(256);
        let work = |cpu: usize, to: std::sync::mpsc::SyncSender<_>, from: std::sync::mpsc::Receiver<_>| {
            let frames = &frames;
            move || {
                run_on(cpu);
                let mut random = Random(seed * 2 + cpu as u64);
                for _ in 0..30_000 {
                    let order = order([0, 0, 0, 1, 3, 3, 9][random.below(7) as usize]);
                    let request = AllocRequest::new(order, TEST);
                    if let Ok(pfn) = frames.allocate(&frames.platform().pin(), request)
                        && let Err(full) = to.try_send((pfn, order))
                    {
                        let (std::sync::mpsc::TrySendError::Full((pfn, order))
                        | std::sync::mpsc::TrySendError::Disconnected((pfn, order))) = full;
                        put(frames, pfn, order);
                    }
                    for (pfn, order) in from.try_iter().take(2) {
                        put(frames, pfn, order);
                    }
                    match random.below(500) {
                        0 => drop(frames.pcp().drain_all(&frames.platform().pin())),
                        1 => drop(frames.pcp().age_lists(&frames.platform().pin())),
                        _ => {}
                    }
                }
                drop(to);
                for (pfn, order) in from {
                    put(frames, pfn, order);
                }
            }
        };
        thread::scope(|scope| {
            scope.spawn(work(0, to_second, from_second));
            scope.spawn(work(1, to_first, from_first));
        });
        assert_sound(&frames);
        assert_eq!(frames.reports().free_frames(), frames.reports().totals().managed);
        frames.pcp().drain_all(&frames.platform().pin());
    }
}

/// A chain that another CPU frees goes back as its blocks would one by one: munmap and exit free chains.
#[test]
fn chains_that_another_cpu_frees_go_back_without_the_zone() {
    let frames = frames(&[(0, 1 << 17)], 2, PcpTechnique::All);
    let mut before = (0, 0);
    for round in 0..100 {
        if round == 50 {
            before = (zone_takes(&frames), frames.events().sum(VmEvent::PcpDrain));
        }
        run_on(0);
        let blocks: Vec<Pfn> = {
            let pin = frames.platform().pin();
            (0..500).map(|_| frames.allocate(&pin, ONE).unwrap()).collect()
        };
        run_on(1);
        let pin = frames.platform().pin();
        let chain = chain(&frames, blocks, Order::ZERO);
        frames.free_chain(&pin, chain);
    }
    assert!(frames.events().sum(VmEvent::PcpReturn) > 20_000);
    // 25 000 frames went to and fro.
    assert!(zone_takes(&frames) - before.0 <= 25, "{} takes", zone_takes(&frames) - before.0);
    assert_sound(&frames);
    let zone = zone(&frames);
    assert!(zone.pcp <= zone.pcp_peak, "{} held, peak {}", zone.pcp, zone.pcp_peak);
}

/// A CPU whose budget is used up by one order and that misses another does not take in half as much again.
#[test]
fn what_others_return_stays_inside_the_budget() {
    let frames = frames(&[(0, FRAMES)], 2, PcpTechnique::All);
    let pages = lists(&frames, 0).high_bounds.1 as usize + 1000;
    let get_all = || -> Vec<Pfn> { (0..pages).map(|_| get(&frames, Order::ZERO)).collect() };
    run_on(0);
    for _ in 0..60 {
        get_all().into_iter().for_each(|pfn| put(&frames, pfn, Order::ZERO));
    }
    let far = get_all();
    get_all().into_iter().for_each(|pfn| put(&frames, pfn, Order::ZERO));
    let missed = get(&frames, order(3));
    run_on(1);
    for _ in 0..2 {
        get_all().into_iter().for_each(|pfn| put(&frames, pfn, Order::ZERO));
    }
    put_all(&frames, far, Order::ZERO);
    let held = lists(&frames, 0);
    assert!(held.count + held.returned <= held.high_bounds.1, "{held:?}");
    put(&frames, missed, order(3));
    let zone = zone(&frames);
    assert!(zone.pcp <= zone.pcp_peak, "{} held, peak {}", zone.pcp, zone.pcp_peak);
}

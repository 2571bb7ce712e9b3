//! Frames and objects that readers may still look at.

use crate::support::*;
use std::sync::atomic::Ordering;

/// A hazard of docs/hazards.md: "lockless walkers read a table that is being freed: epochs".
#[test]
fn a_retired_table_stays_as_it_is_while_a_reader_is_inside() {
    let frames = frames(&[(0, 1024)], 1, PcpTechnique::OrderZero);
    let pin = frames.platform().pin();
    let pfn = frames.allocate(&pin, AllocRequest::table()).unwrap();
    let frame = frames.known(pfn);
    frame.classify(Kind::Table).unwrap();
    frame.as_table().set_space(0x1234);
    // SAFETY: the frame is a table of this test until the epoch passes.
    let table = unsafe { frames.table(pfn) };
    table[7].store(42, Ordering::Relaxed);

    let reader = frames.epoch().enter(&pin);
    // A hazard of docs/hazards.md: "the split PTE lock is freed before a reader under the epoch releases it".
    frame.as_table().lock::<Machine>(LockClass::PteTable);
    frames.limbo().retire(&pin, pfn, Order::ZERO).unwrap();
    for _ in 0..10 {
        assert_eq!(frames.limbo().reap_all(&pin), 0);
    }
    exhaust(&frames, ONE.without_drain());
    assert_eq!((frame.kind(), table[7].load(Ordering::Relaxed)), (Kind::Limbo, 42));
    assert_eq!(frame.as_table().space(), 0x1234);
    // SAFETY: taken above.
    unsafe { frame.as_table().unlock::<Machine>(LockClass::PteTable) };
    assert_sound(&frames);
    drop(reader);

    // The last memory of the machine: it is fetched out of the limbo before the allocation fails.
    assert_eq!(frames.allocate(&pin, ONE), Ok(pfn));
}

/// The buckets are used in turn: each time a frame waits for the readers of its own time.
#[test]
fn frames_that_are_retired_later_wait_for_their_readers_too() {
    let frames = frames(&[(0, 1024)], 1, PcpTechnique::OrderZero);
    let pin = frames.platform().pin();
    for round in 0..12 {
        let pfn = frames.allocate(&pin, ONE).unwrap();
        let reader = frames.epoch().enter(&pin);
        frames.limbo().retire(&pin, pfn, Order::ZERO).unwrap();
        assert_eq!(frames.limbo().reap_all(&pin), 0, "freed under a reader in round {round}");
        drop(reader);
        assert_eq!(frames.limbo().reap_all(&pin), 1, "round {round}");
    }
}

#[test]
fn the_limbo_drains_itself_while_frames_are_retired() {
    let frames = frames(&[(0, 2048)], 2, PcpTechnique::OrderZero);
    let pin = frames.platform().pin();
    for _ in 0..10_000 {
        let pfn = frames.allocate(&pin, ONE).unwrap();
        frames.limbo().retire(&pin, pfn, Order::ZERO).unwrap();
        assert!(frames.reports().totals().limbo_blocks < 16);
    }
    assert_eq!(frames.events().sum(VmEvent::LimboRetired), 10_000);
    frames.limbo().reap(&pin);
    assert_eq!(frames.reports().totals().limbo_blocks, 0);
    assert_eq!(frames.events().sum(VmEvent::LimboFreed), 10_000);
    assert_eq!(frames.reports().free_frames(), frames.reports().totals().managed);
}

#[test]
fn a_chain_is_retired_as_one() {
    let frames = frames(&[(0, 4096)], 1, PcpTechnique::OrderZero);
    let pin = frames.platform().pin();
    let mut chain = FrameChain::new();
    for round in 0..600u32 {
        let order = order((round % 2) as u8);
        let pfn = frames.allocate(&pin, AllocRequest::new(order, TEST)).unwrap();
        frames.gather(&mut chain, pfn, order).unwrap();
    }
    let pages = chain.pages();
    let reader = frames.epoch().enter(&pin);
    frames.limbo().retire_chain(&pin, chain);
    frames.limbo().retire_chain(&pin, FrameChain::new());
    assert_eq!(frames.reports().totals().limbo_blocks, 600);
    assert_sound(&frames);
    drop(reader);
    assert_eq!(frames.limbo().reap(&pin), pages);
    assert_eq!(frames.reports().free_frames(), frames.reports().totals().managed);
}

/// Retires a chain of so many single frames.
fn retire(frames: &Frames<Machine>, pin: &Pin<'_, Machine>, blocks: u32) {
    let blocks: Vec<Pfn> = (0..blocks).map(|_| frames.allocate(pin, ONE.without_drain()).unwrap()).collect();
    frames.limbo().retire_chain(pin, chain(frames, blocks, Order::ZERO));
}

/// What a call adds to the limbo, it frees: however large the chains are.
#[test]
fn large_chains_do_not_fill_the_limbo() {
    let frames = frames(&[(0, 4096)], 1, PcpTechnique::OrderZero);
    let pin = frames.platform().pin();
    for round in 0..40 {
        retire(&frames, &pin, 514);
        let left = frames.reports().totals().limbo_blocks;
        assert!(left <= 64, "{left} blocks in the limbo after round {round}");
    }
}

/// A CPU stays in a section of the epoch for long. What others retired meanwhile is freed by their next
/// calls, and none of these frees more than twice what it adds, and a few.
#[test]
fn what_a_long_reader_left_behind_is_freed_in_proportion() {
    let frames = frames(&[(0, 4096)], 2, PcpTechnique::OrderZero);
    let pin = frames.platform().pin();
    let reader = frames.epoch().enter(&pin);
    for _ in 0..15 {
        retire(&frames, &pin, 100);
    }
    assert_eq!(frames.reports().totals().limbo_blocks, 1500);
    drop(reader);
    let mut before = 1500;
    while before > 64 {
        retire(&frames, &pin, 100);
        let left = frames.reports().totals().limbo_blocks;
        assert!(left <= (before - 100).max(64) && left + 108 >= before, "{before} before, {left} after");
        before = left;
    }
}

/// The timer's part is bounded, and complete after a few ticks.
#[test]
fn a_tick_frees_a_bounded_part_of_the_limbo() {
    let frames = frames(&[(0, 4096)], 1, PcpTechnique::OrderZero);
    let pin = frames.platform().pin();
    let reader = frames.epoch().enter(&pin);
    retire(&frames, &pin, 2000);
    assert_eq!(frames.limbo().reap_some(&pin), 0);
    drop(reader);
    assert_eq!([(); 3].map(|()| frames.limbo().reap_some(&pin)), [1024, 976, 0]);
}

/// A frame that CPU 1 retires while it is read, and nothing after it.
fn retire_on_cpu_1(frames: &Frames<Machine>) -> Pfn {
    run_on(1);
    let pin = frames.platform().pin();
    let pfn = frames.allocate(&pin, ONE).unwrap();
    let _reader = frames.epoch().enter(&pin);
    frames.limbo().retire(&pin, pfn, Order::ZERO).unwrap();
    pfn
}

/// Hazard: a tick frees as much for each CPU, so interrupts are off for as long as there are CPUs. One that
/// is busy does not keep the others from their turn.
#[test]
fn a_tick_frees_no_more_on_a_machine_of_many_cpus() {
    const CPUS: usize = 4;
    let frames = frames(&[(0, 8192)], CPUS, PcpTechnique::OrderZero);
    let retire_on = |cpu, blocks| {
        run_on(cpu);
        let pin = frames.platform().pin();
        let reader = frames.epoch().enter(&pin);
        retire(&frames, &pin, blocks);
        drop(reader);
    };
    let reap = || frames.limbo().reap_some(&frames.platform().pin());
    (0..CPUS).for_each(|cpu| retire_on(cpu, 600));
    assert_eq!([(); 4].map(|()| reap()), [1024, 1024, 352, 0]);
    let of_idle = retire_on_cpu_1(&frames);
    for _ in 0..CPUS {
        retire_on(0, 1100);
        reap();
    }
    assert_ne!(frames.known(of_idle).kind(), Kind::Limbo, "an idle CPU has no turn beside a busy one");
}

/// Hazard: a CPU with much in the limbo uses up a tick, and the others wait for one of the next.
#[test]
fn a_cpu_with_much_in_the_limbo_delays_no_other() {
    let frames = frames(&[(0, 8192)], 2, PcpTechnique::OrderZero);
    run_on(1);
    let of_idle = frames.allocate(&frames.platform().pin(), ONE).unwrap();
    {
        let pin = frames.platform().pin();
        let _reader = frames.epoch().enter(&pin);
        frames.limbo().retire(&pin, of_idle, Order::ZERO).unwrap();
        run_on(0);
        let pin = frames.platform().pin();
        retire(&frames, &pin, 2000);
    }
    assert_eq!(frames.limbo().reap_some(&frames.platform().pin()), 1024);
    assert_ne!(frames.known(of_idle).kind(), Kind::Limbo);
}

/// Hazard: a request for one frame frees all that all CPUs retired, with interrupts off.
#[test]
fn a_request_reaps_no_more_than_it_needs() {
    let frames = frames(&[(0, 8192)], 2, PcpTechnique::OrderZero);
    run_on(1);
    let left = {
        let pin = frames.platform().pin();
        let _reader = frames.epoch().enter(&pin);
        retire(&frames, &pin, 4000);
        exhaust(&frames, ONE.without_drain()).len()
    };
    assert!(left > 0);
    run_on(0);
    let before = frames.reports().totals().limbo_blocks;
    assert!(before >= 3900, "{before} blocks wait");
    frames.allocate(&frames.platform().pin(), ONE).unwrap();
    let freed = before - frames.reports().totals().limbo_blocks;
    assert!((1..=256).contains(&freed), "{freed} blocks are freed");
    // A large one needs more.
    let found = frames.allocate(&frames.platform().pin(), AllocRequest::new(Order::PMD, TEST));
    assert!(found.is_ok() && frames.reports().totals().limbo_blocks < before - freed, "{found:?}");
}

/// Hazard: a tick looks at all CPUs with interrupts off. On a large machine it looks at some, and each has
/// its turn.
#[test]
fn a_tick_looks_at_no_more_cpus_of_a_larger_machine() {
    let look = |cpus| {
        let frames = frames(&[(0, 1 << 16)], cpus, PcpTechnique::All);
        let last = cpus - 1;
        run_on(last);
        let [listed, retired] = [(); 2].map(|()| frames.allocate(&frames.platform().pin(), ONE).unwrap());
        {
            let pin = frames.platform().pin();
            let _reader = frames.epoch().enter(&pin);
            frames.limbo().retire(&pin, retired, Order::ZERO).unwrap();
            frames.free(&pin, listed, Order::ZERO).unwrap();
        }
        let (_, holds) = most_holds_under_a_pin(|| {
            let pin = frames.platform().pin();
            frames.limbo().reap_some(&pin);
            frames.pcp().age_lists(&pin);
        });
        let turns = cpus.div_ceil(FramePcp::<Machine>::CPUS_AT_A_TICK);
        assert_eq!(frames.limbo().reap_turns(), turns);
        for _ in 0..turns * (FramePcp::<Machine>::TICKS_TO_EMPTY as usize + 2) {
            let pin = frames.platform().pin();
            frames.limbo().reap_some(&pin);
            frames.pcp().age_lists(&pin);
        }
        assert_eq!(frames.reports().totals().limbo_blocks, 0);
        assert_eq!(frames.known(listed).kind(), Kind::Free, "the last CPU has no turn");
        holds
    };
    let holds = [64, 256].map(look);
    assert!(holds[0] > 0 && holds[0] == holds[1], "{holds:?}");
}

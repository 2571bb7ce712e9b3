//! What other CPUs do between two holds of a lock, step by step on one thread.
//!
//! The machine for tests learns of dropped locks in debug builds only.
#![cfg(debug_assertions)]

use crate::support::*;
use std::cell::Cell;
use std::rc::Rc;

/// 512 MiB.
const FRAMES: u64 = 1 << 17;

/// The lists are refilled each time the drain has dropped their lock. It ends all the same, with what they
/// held when it began.
#[test]
fn a_drain_takes_no_more_than_the_lists_held_at_first() {
    for (pcp, orders) in [
        (PcpTechnique::OrderZero, &[0][..]),
        (PcpTechnique::Posted, &[0, 3]),
        (PcpTechnique::All, &[0, 3, 9]),
    ] {
        for &number in orders {
            drain_against_refills(pcp, order(number));
        }
    }
}

fn drain_against_refills(pcp: PcpTechnique, order: Order) {
    let frames = Rc::new(frames(&[(0, FRAMES)], 2, pcp));
    run_on(0);
    let mut held: Vec<Pfn> = (0..400 >> (order.get() / 2)).map(|_| get(&frames, order)).collect();
    held.split_off(held.len() / 2).into_iter().for_each(|pfn| put(&frames, pfn, order));
    let listed = lists(&frames, 0).count;
    assert!(listed > 0);
    run_on(1);
    let pin = frames.platform().pin();
    let refill = {
        let frames = Rc::clone(&frames);
        move || {
            run_on(0);
            held.pop().into_iter().for_each(|pfn| put(&frames, pfn, order));
            run_on(1);
        }
    };
    let victim = CpuId::new(0).unwrap();
    let drained = after_each_hold(LockClass::Pcp, refill, || frames.pcp().drain(&pin, victim));
    assert_eq!(drained, listed, "{pcp:?}, order {order}");
    assert!(lists(&frames, 0).count > 0, "the lists were refilled");
    assert_sound(&frames);
}

/// While a range is about to leave, a list that is not drained yet spills blocks of it. They go to the zone
/// and not to the CPU that they came from, whose lists were drained by then.
#[test]
fn a_spill_sends_what_is_about_to_leave_to_the_zone() {
    let frames = Rc::new(frames(&[(0, FRAMES)], 3, PcpTechnique::All));
    // CPU 1 gets what CPU 0 allocated, all from one block, and CPU 0 has use for it.
    let mut pool = Vec::new();
    for _ in 0..4 {
        run_on(0);
        pool = (0..100).map(|_| get(&frames, Order::ZERO)).collect();
        run_on(1);
        put_all(&frames, &pool, Order::ZERO);
    }
    let start = pool[0].block_start(Order::MAX);
    let leaving = PfnRange::new(start, start.offset(Order::MAX.pages()));
    assert!(pool.iter().all(|&pfn| leaving.contains(pfn)));
    run_on(2);
    let movable = ONE.movability(Migratetype::Movable);
    let get_movable = |_| frames.allocate(&frames.platform().pin(), movable).unwrap();
    let mut others: Vec<Pfn> = (0..4000).map(get_movable).collect();
    assert!(others.iter().all(|&pfn| !leaving.contains(pfn)));
    let spills = Rc::new(Cell::new(0));
    let spill = {
        let (frames, spills) = (Rc::clone(&frames), Rc::clone(&spills));
        let mut spilled = false;
        move || {
            let drained = lists(&frames, 0);
            if spilled || drained.count + drained.returned > 0 {
                return;
            }
            spilled = true;
            run_on(1);
            let before = lists(&frames, 1).count;
            put_all(&frames, others.drain(..), Order::ZERO);
            spills.set(before + 4000 - lists(&frames, 1).count);
            assert_eq!(lists(&frames, 0).returned, 0);
            run_on(2);
        }
    };
    let pin = frames.platform().pin();
    let left = after_each_hold(LockClass::Pcp, spill, || frames.hotplug().take_offline(&pin, leaving));
    assert!(spills.get() > 3000, "CPU 1 spilled what it had got before");
    assert_eq!(left, Ok(leaving.len()));
    assert_sound(&frames);
}

//! Before page blocks are mixed, memory of the type comes home from the CPUs' lists.

use crate::support::*;

const MOVABLE: AllocRequest = ONE.movability(Migratetype::Movable);

fn get(frames: &Frames<Machine>, request: AllocRequest) -> Pfn {
    frames.allocate(&frames.platform().pin(), request).unwrap()
}

/// Free blocks of a type on the zone's lists.
fn zone_has(frames: &Frames<Machine>, migratetype: Migratetype) -> u64 {
    zone(frames).blocks.iter().map(|types| types[migratetype.index()]).sum()
}

/// The zone has no movable memory left, another CPU's list has some: a request gets that, and nothing of
/// another type's page blocks.
#[test]
fn a_type_comes_home_from_another_cpus_list_before_page_blocks_mix() {
    let frames = frames(&[(0, 1 << 14)], 2, PcpTechnique::All);
    run_on(1);
    get(&frames, ONE);
    let mut last = get(&frames, MOVABLE);
    while zone_has(&frames, Migratetype::Movable) > 0 {
        last = get(&frames, MOVABLE);
    }
    frames.free(&frames.platform().pin(), last, Order::ZERO).unwrap();
    assert_eq!(zone_has(&frames, Migratetype::Movable), 0, "the block is on the CPU's list");
    assert!(zone_has(&frames, Migratetype::Unmovable) > 0, "and another type has enough");
    let types = zone(&frames).pageblocks;
    let before = frames.events().sum(VmEvent::Extfrag);
    run_on(0);
    let got = get(&frames, MOVABLE);
    assert_eq!(frames.map().block_migratetype(got), Migratetype::Movable);
    assert_eq!(zone(&frames).pageblocks, types);
    assert_eq!(frames.events().sum(VmEvent::Extfrag), before);
}

/// Where no list has memory of the type, not every request looks for it anew: a look costs the zone's lock
/// twice more.
#[test]
fn a_search_that_found_nothing_is_not_repeated_at_every_miss() {
    const MISSES: u64 = 96;
    let frames = frames(&[(0, 1 << 14)], 2, PcpTechnique::All);
    run_on(0);
    let pin = frames.platform().pin();
    let all = exhaust(&frames, MOVABLE);
    // A quarter of each page block is free, in single frames: too little to take one over.
    put_all(&frames, all.iter().filter(|pfn| pfn.0 % 4 == 0), Order::ZERO);
    frames.pcp().drain_all(&pin);
    let before = zone_takes(&frames);
    for _ in 0..MISSES {
        let got = get(&frames, ONE);
        assert_eq!(frames.map().block_migratetype(got), Migratetype::Movable, "{got:?}");
    }
    let takes = zone_takes(&frames) - before;
    assert!(takes > MISSES, "{takes} takes: nothing was looked for");
    assert!(takes < MISSES * 3 / 2, "{takes} takes for {MISSES} misses");
}

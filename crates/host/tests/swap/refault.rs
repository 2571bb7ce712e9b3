//! Refault distances.

use crate::common::*;

/// A page comes back after `evictions` others were evicted, with 2000 pages that could be reclaimed instead:
/// whether it is active at once.
fn is_activated(evictions: u64) -> bool {
    let machine: Machine = Setup::of(HostConfig::with_ram(1 << 30)).reserve().build();
    swap_on_ram(&machine, 4096);
    let (cpu, space) = cpu_and_space(&machine);
    let (kept, some) = (2000, 1000);
    let lazy = map_at(&space, GIB, kept * PAGE, RW);
    fill(&cpu, &space, lazy, 0..kept, 1);
    space.madvise(lazy, kept * PAGE, Advice::Free).unwrap();
    // On their list, as by a scan.
    machine.memory().memcgs().take_in(None);
    let area = map_at(&space, 2 * GIB, PAGE, RW);
    write(&cpu, &space, area, 7);
    space.madvise(area, PAGE, Advice::PageOut).unwrap();
    let others = map_at(&space, 3 * GIB, some * PAGE, RW);
    for round in 0..evictions / some {
        fill(&cpu, &space, others, 0..some, round + 1);
        space.madvise(others, some * PAGE, Advice::PageOut).unwrap();
        space.madvise(others, some * PAGE, Advice::DontNeed).unwrap();
    }
    let activated = |machine| count(machine, VmEvent::WorkingsetActivateAnon);
    let before = activated(&machine);
    assert_eq!(read(&cpu, &space, area), 7);
    assert_eq!(count(&machine, VmEvent::WorkingsetRefaultAnon), 1);
    activated(&machine) > before
}

/// 2^17 pages are 512 MiB: a shadow has so many bits for an age.
#[test]
fn a_refault_after_512_mib_of_evictions_is_no_early_one() {
    assert!(is_activated(1000));
    for evictions in [3000, 132_000, 263_000] {
        assert!(!is_activated(evictions), "after {evictions} evictions");
    }
}

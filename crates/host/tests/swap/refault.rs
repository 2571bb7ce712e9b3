//! Refault distances.

use crate::common::*;

/// A page comes back after `evictions` others were evicted, with 2000 pages that could be reclaimed instead:
/// whether it is active at once.
fn is_activated(evictions: u64) -> bool {
    let machine: Machine = Setup::of(HostConfig::with_ram(1 << 30)).reserve().swap(4096).build();
    let (cpu, space) = cpu_and_space(&machine);
    let (kept, some) = (2000, 1000);
    let lazy = map_filled(&cpu, &space, GIB, kept, 1);
    space.madvise(lazy, kept * PAGE, Advice::Free).unwrap();
    // On their list, as by a scan.
    machine.memory().memcgs().folios().take_in(None);
    let area = map_filled(&cpu, &space, 2 * GIB, 1, 7);
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

/// Hazard: advice that pages are cold makes those the last to be reclaimed that were the next. As in Linux it
/// moves, and counts, active ones only.
#[test]
fn cold_pages_that_are_inactive_stay_the_next_to_be_reclaimed() {
    const PAGES: u64 = 128;
    let machine: Machine = Setup::mib(16).overcommit().swap(256).build();
    let (cpu, space, area) = filled(&machine, PAGES, 1);
    machine.memory().memcgs().folios().take_in(None);
    let cold = |from, pages| space.madvise(page(area, from), pages * PAGE, Advice::Cold).unwrap();
    cold(0, PAGES);
    (0..2).for_each(|_| cold(0, 16));
    assert_eq!(count(&machine, VmEvent::Pgdeactivate), 0);
    assert_eq!(machine.memory().reclaim(MemcgId::ROOT, 32), 32);
    let mut out = Vec::new();
    space.mappings().pagemap(VirtRange::from_len(area, PAGES * PAGE).unwrap(), |range, state| {
        if let PageState::Swapped { .. } = state {
            out.extend((range.start().0 - area.0) / PAGE..(range.end().0 - area.0) / PAGE);
        }
    });
    assert_eq!(out, (0..32).collect::<Vec<u64>>());
    // Those that come back are active, since there are others that could have gone.
    let lazy = map_filled(&cpu, &space, 2 * GIB, PAGES, 1);
    space.madvise(lazy, PAGES * PAGE, Advice::Free).unwrap();
    machine.memory().memcgs().folios().take_in(None);
    assert_filled(&cpu, &space, area, 0..32, 1);
    let active = || {
        machine.memory().memcgs().folios().take_in(None);
        machine.memory().memcgs().folios().subtree_sizes(MemcgId::ROOT)[LruList::ActiveAnon as usize]
    };
    let before = active();
    for _ in 0..2 {
        cold(0, PAGES);
        assert_eq!((count(&machine, VmEvent::Pgdeactivate), active()), (before, 0));
    }
    assert!(before > 0, "none was active");
}

//! Memcgs that may have less swap than they want, or find none.

use crate::common::*;
use quire_host::swap::{Completion, HostRam, SlowConfig, SlowDevice};

/// Pages of a folio.
const FOLIO: u64 = 16;
const MAX: u64 = 32 * FOLIO;
/// Pages of swap that a memcg may have: less than a folio needs.
const SWAP: u64 = 8;

fn machine_with(slots: usize) -> Machine {
    let machine = Setup::mib(32).reserve().overcommit().folios(orders(&[4])).build();
    swap_on(&machine, HostRam::new(slots).unwrap());
    machine
}

/// Hazard: a memcg may have less swap than a folio has pages. Nothing is paged out, and its program is killed
/// with swap allowed.
#[test]
fn a_folio_larger_than_the_swap_left_to_its_memcg_is_paged_out_in_part() {
    let machine = machine_with(4096);
    let (cpu, little, space) = in_memcg(&machine, "little", &[(Limit::Max, MAX), (Limit::SwapMax, SWAP)]);
    let pages = MAX + SWAP / 2;
    let area = map_at(&space, GIB, 2 * MAX * PAGE, RW);
    fill(&cpu, &space, area, 0..pages, 100);
    let swapped = space.figures().swapped / PAGE;
    assert!((SWAP / 2..=SWAP).contains(&swapped), "{swapped} pages");
    assert_eq!(events(&machine, little, MemcgEvent::Oom), 0);
    assert_filled(&cpu, &space, area, 0..pages, 100);
}

/// Hazard: the pages of zeros that a split gives back count as nothing, and a reclaim that found only these
/// fails.
#[test]
fn zeros_of_a_folio_that_is_split_for_want_of_slots_count_as_freed() {
    let machine = machine_with(4096);
    let (cpu, little, space) = in_memcg(&machine, "little", &[(Limit::SwapMax, 1)]);
    let area = map_at(&space, GIB, MAX * PAGE, RW);
    fill(&cpu, &space, area, (0..MAX).step_by(FOLIO as usize), 100);
    assert_eq!(usage(&machine, little), MAX);
    let freed = machine.memory().reclaim(little, FOLIO);
    assert!(freed >= FOLIO - 1, "{freed} pages");
    assert!(usage(&machine, little) <= MAX - freed + 1);
    assert_filled(&cpu, &space, area, (0..MAX).step_by(FOLIO as usize), 100);
}

/// Hazard: the first page of a folio that is split for want of slots is zeros, and counts as freed by the
/// split and once more when it has been written to a slot that it does not need.
#[test]
fn zeros_at_the_start_of_a_folio_that_is_split_count_once_and_get_no_slot() {
    let machine = machine_with(4096);
    let (cpu, little, space) = in_memcg(&machine, "little", &[(Limit::SwapMax, 4)]);
    let area = map_at(&space, GIB, FOLIO * PAGE, RW);
    write(&cpu, &space, page(area, 1), 7);
    assert_eq!(usage(&machine, little), FOLIO);
    let freed = machine.memory().reclaim(little, FOLIO);
    assert_eq!((freed, usage(&machine, little)), (FOLIO, 0));
    assert_eq!(swap_usage(&machine, little), 1, "one page is not zeros");
    assert_eq!([0, 1].map(|at| read(&cpu, &space, page(area, at))), [0, 7]);
}

/// Hazard: `memory.swap.events` says that no page was refused swap, though no device had a slot for it.
#[test]
fn a_page_that_finds_no_slot_is_counted_as_a_failure() {
    let machine: Machine = Setup::mib(32).reserve().overcommit().build();
    swap_on(&machine, HostRam::new(8).unwrap());
    let (cpu, memcg, space) = in_memcg(&machine, "m", &[]);
    let area = map_filled(&cpu, &space, GIB, 32, 100);
    space.madvise(area, 32 * PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.figures().swapped, 8 * PAGE);
    let events = |event| events(&machine, memcg, event);
    assert_eq!((events(MemcgEvent::SwapFail), events(MemcgEvent::SwapMax)), (24, 0));
}

/// Hazard: pages come back while they are being written, and stay, as locked ones do. Their slots, which
/// nothing names any more, are all that there are: no other page is looked at, and the program is killed.
#[test]
fn slots_of_locked_pages_are_freed_for_others() {
    locked_pages_with_slots(|_, _, _| ());
}

/// Hazard: the slots of locked pages are not freed if the pages were used before they were locked, so that
/// they are on the list that no reclaim scans.
#[test]
fn slots_of_pages_that_no_reclaim_scans_are_freed_for_others() {
    locked_pages_with_slots(|cpu, space, (area, pages)| assert_filled(cpu, space, area, 0..pages, 100));
}

fn locked_pages_with_slots(before_the_lock: impl Fn(&Vcpu, &HostSpace<'_>, (VirtAddr, u64))) {
    const SLOTS: u64 = 64;
    for by_limit in [false, true] {
        let machine = Setup::mib(16).reserve().overcommit().build();
        let (slots, swap_max) = if by_limit { (4096, SLOTS) } else { (SLOTS, 4096) };
        let config = SlowConfig { completion: Completion::AfterReaps(2), queue: 64, ..SlowConfig::default() };
        swap_on(&machine, SlowDevice::new(HostRam::new(slots as usize).unwrap(), config));
        let (cpu, little, space) =
            in_memcg(&machine, "little", &[(Limit::Max, 4 * SLOTS), (Limit::SwapMax, swap_max)]);
        let area = map_at(&space, GIB, 8 * SLOTS * PAGE, RW);
        fill(&cpu, &space, area, 0..SLOTS, 100);
        space.madvise(area, SLOTS * PAGE, Advice::PageOut).unwrap();
        before_the_lock(&cpu, &space, (area, SLOTS));
        space.mlock(area, SLOTS * PAGE, false).unwrap();
        reap(&machine, 4);
        let swap = machine.memory().swap();
        assert_eq!((space.figures().swapped, swap.devices().cached_pages()), (0, SLOTS), "too early");
        fill(&cpu, &space, area, SLOTS..4 * SLOTS + SLOTS / 2, 100);
        assert_eq!(events(&machine, little, MemcgEvent::Oom), 0, "by limit: {by_limit}");
        assert_filled(&cpu, &space, area, 0..4 * SLOTS + SLOTS / 2, 100);
    }
}

//! Collapses for programs in memcgs that are full.

use crate::common::*;
use crate::disk::Disk;
use crate::swap_memcgs::limited_machine;

const MIB2: u64 = 2 << 20;

/// A collapse takes no more than the memcg allows: EBUSY, as in Linux 6.18, if nothing can be reclaimed.
#[test]
fn a_collapse_stays_within_the_limit() {
    let machine = limited_machine(16, OomAction::Refuse, 0);
    let limit = 600;
    let (cpu, memcg, space) = in_memcg(&machine, "tight", &[(Limit::Max, limit)]);
    let area = map_filled(&cpu, &space, GIB, 512 + 88, 100);
    assert_eq!(usage(&machine, memcg), limit);
    let collapse = || space.madvise(area, MIB2, Advice::Collapse).map_err(Error::errno);
    assert_eq!(collapse(), Err(Errno::EBUSY));
    assert_eq!(usage(&machine, memcg), limit);
    assert_eq!(machine.memory().khugepaged_step().collapsed, 0);
    assert_audit(&machine);
    // What is beside the block can go, but not all that the folio needs. As on Linux 6.18 pages of the block
    // itself go, and that they are gone is found when it is to be replaced: EINVAL. The folio is allocated
    // once, however often its charge has to wait for reclaim.
    swap_on(&machine, Disk::new(2048).0);
    for _ in 0..5 {
        let before = count(&machine, VmEvent::ThpCollapseAlloc);
        assert_eq!(collapse(), Err(Errno::EINVAL));
        assert_eq!(count(&machine, VmEvent::ThpCollapseAlloc) - before, 1, "folios that were allocated");
        assert!(usage(&machine, memcg) <= limit);
    }
    assert_filled(&cpu, &space, area, 0..512 + 88, 100);
    assert!(usage(&machine, memcg) <= limit);
}

/// Pages of a block that is to be collapsed.
const PAGES: [u64; 4] = [3, 4, 100, 300];

/// A block with these pages, which are paged out if `out`.
fn block<'m>(machine: &'m Machine, space: &HostSpace<'m>, out: bool) -> VirtAddr {
    let cpu = machine.vcpu(0).unwrap();
    let area = map_small(&cpu, space, (GIB, 1), PAGES, 7);
    if out {
        space.madvise(area, MIB2, Advice::PageOut).unwrap();
        assert_eq!(space.figures().swapped, PAGES.len() as u64 * PAGE);
    }
    space.madvise(area, MIB2, Advice::HugePage).unwrap();
    area
}

/// Hazard: a collapse swaps pages in before there is a folio for them. In a full memcg a program is killed
/// for it. As on Linux 6.18 it fails with EBUSY before anything is swapped in.
#[test]
fn a_collapse_in_a_full_memcg_swaps_nothing_in_and_kills_no_program() {
    for guard in [false, true] {
        let machine = limited_machine(16, OomAction::Kill, 4096);
        let memcg = memcg(&machine, "tight", &[(Limit::Max, 128)]);
        let space = space_in(&machine, memcg);
        let area = block(&machine, &space, true);
        if guard {
            space.madvise(page(area, 200), PAGE, Advice::GuardInstall).unwrap();
        }
        let locked = map_at(&space, 2 * GIB, 128 * PAGE, RW);
        for at in 0..128 - usage(&machine, memcg) {
            space.mlock(page(locked, at), PAGE, false).unwrap();
        }
        assert_eq!(space.madvise(area, MIB2, Advice::Collapse).map_err(Error::errno), Err(Errno::EBUSY));
        assert!(!space.oom().is_killed());
        assert_eq!(events(&machine, memcg, MemcgEvent::Oom), 0);
        assert_eq!(space.figures().swapped, PAGES.len() as u64 * PAGE);
        assert_eq!(usage(&machine, memcg), 128);
    }
}

/// As on Linux 6.18: EBUSY, since the folio is charged before the guard page is found.
#[test]
fn a_full_memcg_refuses_a_block_with_a_guard_page_first() {
    let machine = limited_machine(16, OomAction::Refuse, 0);
    let memcg = memcg(&machine, "tight", &[(Limit::Max, 300)]);
    let space = space_in(&machine, memcg);
    let area = block(&machine, &space, false);
    space.madvise(page(area, 200), PAGE, Advice::GuardInstall).unwrap();
    let before = usage(&machine, memcg);
    assert_eq!(space.madvise(area, MIB2, Advice::Collapse).map_err(Error::errno), Err(Errno::EBUSY));
    assert_eq!(usage(&machine, memcg), before);
    set_limit(&machine, memcg, Limit::Max, 1000);
    assert_eq!(space.madvise(area, MIB2, Advice::Collapse).map_err(Error::errno), Err(Errno::EINVAL));
    assert_eq!(usage(&machine, memcg), before, "the folio is given back");
}

/// Hazard: khugepaged swaps in the pages of a block for which its memcg has no room.
#[test]
fn khugepaged_swaps_nothing_in_without_a_folio() {
    let machine: Machine = Setup::mib(16).reserve().overcommit().always_huge().build();
    swap_on(&machine, Disk::new(4096).0);
    let (cpu, memcg, space) = in_memcg(&machine, "tight", &[(Limit::Max, 500)]);
    let area = map_small(&cpu, &space, (GIB, 1), 0..364, 7);
    space.madvise(page(area, 300), 64 * PAGE, Advice::PageOut).unwrap();
    space.madvise(area, MIB2, Advice::HugePage).unwrap();
    machine.memory().huge().set_khugepaged(KhugepagedSetting::PagesToScan, 100_000).unwrap();
    let before = usage(&machine, memcg);
    assert_eq!(machine.memory().khugepaged_step().collapsed, 0);
    assert_eq!((space.figures().swapped, usage(&machine, memcg)), (64 * PAGE, before));
    assert!(events(&machine, memcg, MemcgEvent::Max) > 0);
    assert_audit(&machine);
    set_limit(&machine, memcg, Limit::Max, 1000);
    assert_eq!(machine.memory().khugepaged_step().collapsed, 1);
    assert_eq!(space.figures().swapped, 0);
    assert_filled(&cpu, &space, area, 0..364, 7);
}

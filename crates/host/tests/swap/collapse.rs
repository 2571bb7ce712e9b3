//! Collapses of blocks whose pages are paged out in part.

use crate::common::*;
use crate::disk::{Disk, lock};
use quire_host::swap::HostRam;

const BASE: u64 = 1 << 30;
const MIB2: u64 = 2 << 20;

fn huge_machine() -> Machine {
    Setup::mib(32).always_huge().swap(4096).build()
}

/// As on Linux 6.18: each page that is paged out is a major fault, whatever the mapping allows and however
/// many there are.
#[test]
fn madvise_collapse_swaps_in_first() {
    for (pages, protection) in [(1, RW), (100, RW), (512, RW), (512, Protection::empty())] {
        let machine = huge_machine();
        let (cpu, space, area) = mapped(&machine, BASE, 2 * MIB2);
        space.madvise(area, MIB2, Advice::NoHugePage).unwrap();
        fill(&cpu, &space, area, 0..pages, 100);
        space.mprotect(area, MIB2, protection, false).unwrap();
        space.madvise(area, MIB2, Advice::PageOut).unwrap();
        assert_eq!(space.figures().swapped, pages * PAGE);
        space.madvise(area, MIB2, Advice::HugePage).unwrap();
        space.madvise(area, MIB2, Advice::Collapse).unwrap();
        assert_eq!((space.figures().resident_anonymous, space.figures().swapped), (MIB2, 0));
        assert_eq!(pmd_mapped(&machine), 1);
        assert_eq!(count(&machine, VmEvent::Pgmajfault), pages);
        assert_audit(&machine);
        space.mprotect(area, MIB2, RW, false).unwrap();
        assert_filled(&cpu, &space, area, 0..pages, 100);
        drop(space);
        assert_eq!(free_slots(&machine), 4096);
        assert_audit(&machine);
    }
}

/// As on Linux 6.18: pages are swapped in one after the other, up to a guard page, which ends it.
#[test]
fn what_is_before_a_guard_page_is_swapped_in_before_the_collapse_fails() {
    let machine = huge_machine();
    let (cpu, space) = cpu_and_space(&machine);
    let area = map_small(&cpu, &space, (BASE, 1), [3, 4, 100, 300], 7);
    space.madvise(area, MIB2, Advice::PageOut).unwrap();
    space.madvise(page(area, 200), PAGE, Advice::GuardInstall).unwrap();
    space.madvise(area, MIB2, Advice::HugePage).unwrap();
    assert_eq!(space.madvise(area, MIB2, Advice::Collapse), Err(Error::WrongMapping));
    assert_eq!((space.figures().resident_anonymous, space.figures().swapped), (3 * PAGE, PAGE));
    assert_audit(&machine);
    assert_filled(&cpu, &space, area, [3, 4, 100, 300], 7);
}

/// Hazard: the pages of all blocks are swapped in before the first block is collapsed. Where they do not fit
/// into memory those of the first blocks are paged out again by then.
#[test]
fn a_range_larger_than_memory_is_collapsed_block_by_block() {
    const BLOCKS: u64 = 24;
    let machine: Machine = Setup::mib(32).reserve().overcommit().always_huge().build();
    swap_on(&machine, HostRam::new(64 << 10).unwrap());
    let (cpu, space, area) = mapped(&machine, BASE, BLOCKS * MIB2);
    space.madvise(area, BLOCKS * MIB2, Advice::NoHugePage).unwrap();
    for block in 0..BLOCKS {
        let start = VirtAddr(area.0 + block * MIB2);
        fill(&cpu, &space, start, 0..512, 1000 * block);
        space.madvise(start, MIB2, Advice::PageOut).unwrap();
    }
    assert_eq!(space.figures().swapped, BLOCKS * MIB2);
    space.madvise(area, BLOCKS * MIB2, Advice::HugePage).unwrap();
    assert_eq!(space.madvise(area, BLOCKS * MIB2, Advice::Collapse), Ok(()));
    assert_eq!(count(&machine, VmEvent::Pgmajfault), BLOCKS * 512, "each page is swapped in once");
    assert_audit(&machine);
    for block in 0..BLOCKS {
        assert_filled(&cpu, &space, VirtAddr(area.0 + block * MIB2), 0..512, 1000 * block);
    }
}

/// A child has the page by the same slot: the parent's copy is its own.
#[test]
fn a_page_that_a_child_has_paged_out_too_is_copied() {
    let machine = huge_machine();
    let (cpu, space) = cpu_and_space(&machine);
    let area = map_small(&cpu, &space, (BASE, 1), 0..16, 7);
    space.madvise(area, MIB2, Advice::PageOut).unwrap();
    let child = space.fork().unwrap();
    space.madvise(area, MIB2, Advice::HugePage).unwrap();
    let collapsed = space.madvise(area, MIB2, Advice::Collapse);
    assert_audit(&machine);
    assert_eq!(collapsed, Ok(()));
    write(&cpu, &space, page(area, 3), 1);
    assert_filled(&cpu, &child, area, 0..16, 7);
}

#[test]
fn khugepaged_swaps_in_within_its_limit() {
    let machine = huge_machine();
    let memory = machine.memory();
    let (cpu, space, area) = mapped(&machine, BASE, 3 * MIB2);
    // Blocks with 65 and 64 pages that are paged out, and one with 64 in which less than half was used.
    for (block, used, out) in [(0, 300, 65), (1, 300, 64), (2, 200, 64)] {
        let start = VirtAddr(area.0 + block * MIB2);
        space.madvise(start, MIB2, Advice::NoHugePage).unwrap();
        fill(&cpu, &space, start, 0..used + out, block);
        space.madvise(page(start, used), out * PAGE, Advice::PageOut).unwrap();
        space.madvise(start, MIB2, Advice::HugePage).unwrap();
    }
    memory.huge().set_khugepaged(KhugepagedSetting::PagesToScan, 100_000).unwrap();
    assert_eq!(memory.khugepaged_step().collapsed, 1);
    assert_eq!(space.figures().swapped, (65 + 64) * PAGE);
    assert_audit(&machine);
    for (block, pages) in [(0, 365), (1, 364), (2, 264)] {
        assert_filled(&cpu, &space, VirtAddr(area.0 + block * MIB2), 0..pages, block);
    }
}

/// As on Linux 6.18: the call ends at a block with a guard page. A pinned page in the block behind it does
/// not change the result.
#[test]
fn a_guard_page_ends_the_call() {
    for (guarded, collapsed) in [(0, 0), (1, 1), (2, 2)] {
        let machine = huge_machine();
        let (cpu, space) = cpu_and_space(&machine);
        let area = map_small(&cpu, &space, (BASE, 3), 0..3 * 512, 7);
        space.madvise(page(area, guarded * 512 + 200), PAGE, Advice::GuardInstall).unwrap();
        space.madvise(area, 3 * MIB2, Advice::HugePage).unwrap();
        let pinned = (guarded == 0).then(|| space.pin_page(page(area, 600), Access::Write).unwrap());
        assert_eq!(space.madvise(area, 3 * MIB2, Advice::Collapse), Err(Error::WrongMapping));
        assert_eq!(pmd_mapped(&machine), collapsed, "{guarded}");
        drop(pinned);
    }
}

/// As on Linux 6.18: what is in the block behind it stays swapped out.
#[test]
fn nothing_behind_a_guard_page_is_swapped_in() {
    let machine = huge_machine();
    let (cpu, space) = cpu_and_space(&machine);
    let area = map_small(&cpu, &space, (BASE, 2), [3, 4, 100, 300, 515, 516, 612, 812], 7);
    space.madvise(area, 2 * MIB2, Advice::PageOut).unwrap();
    space.madvise(page(area, 200), PAGE, Advice::GuardInstall).unwrap();
    space.madvise(area, 2 * MIB2, Advice::HugePage).unwrap();
    assert_eq!(space.madvise(area, 2 * MIB2, Advice::Collapse), Err(Error::WrongMapping));
    assert_eq!((space.figures().resident_anonymous, space.figures().swapped), (3 * PAGE, 5 * PAGE));
}

/// As on Linux 6.18: the folio is allocated before the pages are swapped in, and so before the guard page is
/// found.
#[test]
fn a_folio_is_allocated_for_a_block_with_a_guard_page() {
    let machine = huge_machine();
    let (cpu, space) = cpu_and_space(&machine);
    let area = map_small(&cpu, &space, (BASE, 1), 0..5, 7);
    space.madvise(page(area, 200), PAGE, Advice::GuardInstall).unwrap();
    space.madvise(area, MIB2, Advice::HugePage).unwrap();
    assert_eq!(space.madvise(area, MIB2, Advice::Collapse), Err(Error::WrongMapping));
    assert_eq!((count(&machine, VmEvent::ThpCollapseAlloc), machine.memory().collapsed()), (1, 0));
    space.madvise(page(area, 200), PAGE, Advice::GuardRemove).unwrap();
    space.madvise(area, MIB2, Advice::Collapse).unwrap();
    assert_eq!((count(&machine, VmEvent::ThpCollapseAlloc), machine.memory().collapsed()), (2, 1));
}

/// As in Linux the swap-in of a block ends at a page that cannot be read, and the call with it.
#[test]
fn a_page_that_cannot_be_read_ends_the_call() {
    let machine: Machine = Setup::mib(32).always_huge().build();
    let (disk, medium) = Disk::new(4096);
    swap_on(&machine, disk);
    let (cpu, space, area) = mapped(&machine, BASE, 2 * MIB2);
    let pages = [3, 4, 100, 300, 515, 516, 612, 812];
    space.madvise(area, 2 * MIB2, Advice::NoHugePage).unwrap();
    fill(&cpu, &space, area, pages, 7);
    space.madvise(area, 2 * MIB2, Advice::PageOut).unwrap();
    space.madvise(area, 2 * MIB2, Advice::HugePage).unwrap();
    let before = lock(&medium).reads;
    let _ = lock(&medium).bad_reads.insert(before + 2);
    assert_eq!(space.madvise(area, 2 * MIB2, Advice::Collapse), Err(Error::WrongMapping));
    assert_eq!((space.figures().resident_anonymous, space.figures().swapped), (PAGE, 7 * PAGE));
    assert_audit(&machine);
    assert_eq!(space.madvise(area, 2 * MIB2, Advice::Collapse), Ok(()));
    assert_filled(&cpu, &space, area, pages, 7);
}

//! `madvise` of parts of large folios, and of memory that a program frees lazily.

use crate::common::*;

/// A large folio of which only the first eight pages are not zeros.
fn sparse(machine: &Machine) -> (Vcpu, HostSpace<'_>, VirtAddr) {
    let (cpu, space, area) = mapped(machine, GIB, MIB2);
    space.madvise(area, MIB2, Advice::HugePage).unwrap();
    fill(&cpu, &space, area, 0..8, 100);
    assert_eq!(space.figures().resident, MIB2);
    (cpu, space, area)
}

#[test]
fn a_folio_split_by_advice_frees_its_zero_pages() {
    for (advice, len, left) in
        [(Advice::Cold, 4, 8), (Advice::Free, 4, 8), (Advice::PageOut, 4, 8), (Advice::PageOut, 512, 8)]
    {
        let machine = machine(16, 1);
        let (cpu, space, area) = sparse(&machine);
        space.madvise(area, len * PAGE, advice).unwrap();
        assert_eq!((space.figures().resident, zeros(&space, area)), (left * PAGE, 504), "{advice:?}, {len}");
        assert_audit(&machine);
        for at in [0, 7, 8, 511] {
            let expected = if at < 8 { 100 + at } else { 0 };
            assert_eq!(read(&cpu, &space, page(area, at)), expected);
            write(&cpu, &space, page(area, at), at);
        }
    }
}

#[test]
fn a_folio_of_zeros_is_freed_when_it_is_split() {
    let machine = machine(16, 1);
    let (cpu, space, area) = mapped(&machine, GIB, MIB2);
    space.madvise(area, MIB2, Advice::HugePage).unwrap();
    write(&cpu, &space, area, 0);
    space.madvise(page(area, 3), PAGE, Advice::Cold).unwrap();
    assert_eq!((space.figures().resident, zeros(&space, area)), (0, 512));
}

#[test]
fn a_shared_folio_is_not_split_by_advice() {
    let machine = machine(16, 1);
    let (_cpu, space, area) = sparse(&machine);
    let child = space.fork().unwrap();
    for advice in [Advice::Cold, Advice::PageOut, Advice::Free] {
        space.madvise(area, 4 * PAGE, advice).unwrap();
        assert_eq!((space.figures().resident, child.figures().resident), (MIB2, MIB2), "{advice:?}");
        let mut entries = 0;
        space.mappings().pagemap(VirtRange::new(area, VirtAddr(area.0 + MIB2)), |_, _| entries += 1);
        assert_eq!(entries, 1, "{advice:?}: a PMD entry maps it still");
    }
}

#[test]
fn pageout_without_swap_drops_lazyfree_pages_unless_they_are_dirty() {
    let machine = machine(16, 1);
    let (cpu, space, area) = filled(&machine, 8, 100);
    space.madvise(area, 4 * PAGE, Advice::Free).unwrap();
    write(&cpu, &space, page(area, 1), 7);
    space.madvise(area, 8 * PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.figures().resident, 5 * PAGE);
    for (at, expected) in [(0, 0), (1, 7), (2, 0), (4, 104)] {
        assert_eq!(read(&cpu, &space, page(area, at)), expected);
    }
}

/// Every private page can be paged out, whatever it replaced.
#[test]
fn copies_of_the_zero_page_and_prot_none_pages_are_dropped() {
    let machine = swapping(16, 1, 64);
    let (cpu, space, area) = mapped(&machine, GIB, 4 * PAGE);
    assert_eq!(read(&cpu, &space, area), 0);
    fill(&cpu, &space, area, 0..4, 100);
    space.madvise(area, PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.figures().swapped, PAGE);
    space.mprotect(page(area, 2), 2 * PAGE, NONE, false).unwrap();
    space.madvise(page(area, 2), 2 * PAGE, Advice::PageOut).unwrap();
    assert_eq!((space.figures().swapped, space.figures().resident), (3 * PAGE, PAGE));
    assert_eq!(read(&cpu, &space, area), 100);
}

/// The last owner of a large folio may have it split, also if it was shared before.
#[test]
fn a_large_folio_that_became_exclusive_is_split() {
    for advice in [Advice::Cold, Advice::Free, Advice::PageOut] {
        let machine = machine(16, 1);
        let (_cpu, space, area) = sparse(&machine);
        let child = space.fork().unwrap();
        space.madvise(area, MIB2, Advice::DontNeed).unwrap();
        child.madvise(page(area, 20), PAGE, advice).unwrap();
        assert_eq!((child.figures().resident, zeros(&child, area)), (8 * PAGE, 504), "{advice:?}");
    }
}

#[test]
fn prot_none_memory_is_marked_lazyfree() {
    let machine = machine(16, 1);
    let (cpu, space, area) = sparse(&machine);
    space.mprotect(area, MIB2, NONE, false).unwrap();
    space.madvise(page(area, 2), 2 * PAGE, Advice::Free).unwrap();
    assert_eq!(zeros(&space, area), 504);
    space.madvise(area, 8 * PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.figures().resident, 6 * PAGE);
    space.mprotect(area, MIB2, RW, false).unwrap();
    for at in 0..8 {
        let expected = if (2..4).contains(&at) { 0 } else { 100 + at };
        assert_eq!(read(&cpu, &space, page(area, at)), expected);
    }
}

#[test]
fn populate_write_clears_lazyfree() {
    for len in [8 * PAGE, MIB2] {
        let machine = machine(16, 1);
        let (cpu, space, area) = mapped(&machine, GIB, len);
        space.madvise(area, len, Advice::HugePage).unwrap();
        write(&cpu, &space, area, 100);
        space.madvise(area, len, Advice::PopulateWrite).unwrap();
        space.madvise(area, len, Advice::Free).unwrap();
        space.madvise(area, len, Advice::PopulateWrite).unwrap();
        space.madvise(area, len, Advice::PageOut).unwrap();
        assert_eq!(space.figures().resident, len);
        assert_eq!(read(&cpu, &space, area), 100);
    }
}

/// One of two sharers frees a page lazily. The other wrote it, and keeps what it wrote.
#[test]
fn a_shared_page_is_not_lazyfree_for_the_other_process() {
    let machine = machine(16, 1);
    let (cpu, space, area) = filled(&machine, 1, 7);
    let child = space.fork().unwrap();
    space.madvise(area, PAGE, Advice::Free).unwrap();
    space.munmap(area, PAGE).unwrap();
    child.madvise(area, PAGE, Advice::PageOut).unwrap();
    assert_eq!(child.figures().resident, PAGE);
    assert_eq!(read(&cpu, &child, area), 7);
}

#[test]
fn a_page_that_both_processes_freed_lazily_is_dropped() {
    let machine = machine(16, 1);
    let (_cpu, space, area) = filled(&machine, 1, 7);
    let child = space.fork().unwrap();
    for one in [&space, &child] {
        one.madvise(area, PAGE, Advice::Free).unwrap();
    }
    space.munmap(area, PAGE).unwrap();
    child.madvise(area, PAGE, Advice::PageOut).unwrap();
    assert_eq!(child.figures().resident, 0);
}

/// A page is mlocked where it is mapped, not where it was.
#[test]
fn a_locked_mapping_does_not_keep_a_page_that_was_moved() {
    let machine = swapping(16, 1, 64);
    let (cpu, space, area) = filled(&machine, 4, 100);
    let target = VirtAddr(2 * GIB);
    space.mremap(page(area, 1), PAGE, PAGE, MOVE, target).unwrap();
    map_at(&space, area.0 + PAGE, PAGE, RW);
    space.mlock(page(area, 1), PAGE, false).unwrap();
    space.madvise(target, PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.figures().swapped, PAGE);
    assert_eq!(read(&cpu, &space, target), 101);
}

/// Splitting a locked mapping inside a folio and unlocking it, as `mlockall`, MADV_DONTFORK and `munlockall`
/// do, leaves no MLOCKED folio.
#[test]
fn munlock_in_parts_by_several_mappings_unlocks_a_folio() {
    let machine = swapping(32, 1, 1024);
    let (_cpu, space, area) = sparse(&machine);
    space.mlock(area, MIB2, false).unwrap();
    space.madvise(page(area, 7), PAGE, Advice::DontFork).unwrap();
    space.munlock(area, MIB2).unwrap();
    space.madvise(area, MIB2, Advice::Cold).unwrap();
    assert_eq!(zeros(&space, area), 504, "the folio is split and gives its zeros back");
    space.madvise(area, MIB2, Advice::PageOut).unwrap();
    assert_eq!(space.figures().resident, 0);
}

/// A dirty page stays dirty while it is PROT_NONE.
#[test]
fn a_dirty_page_made_prot_none_is_not_dropped() {
    let machine = machine(16, 1);
    let (cpu, space, area) = mapped(&machine, GIB, 2 * PAGE);
    for at in 0..2 {
        write(&cpu, &space, page(area, at), 1);
    }
    space.madvise(area, PAGE, Advice::Free).unwrap();
    write(&cpu, &space, area, 7);
    space.mprotect(area, 2 * PAGE, NONE, false).unwrap();
    space.madvise(page(area, 1), PAGE, Advice::Free).unwrap();
    space.madvise(area, 2 * PAGE, Advice::Cold).unwrap();
    space.mprotect(page(area, 1), PAGE, READ, false).unwrap();
    space.madvise(area, 2 * PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.figures().resident, PAGE);
    space.mprotect(area, PAGE, RW, false).unwrap();
    assert_eq!(read(&cpu, &space, area), 7);
    assert_eq!(read(&cpu, &space, page(area, 1)), 0);
}

/// What a device wrote through a pin is needed, like what the program itself writes.
#[test]
fn a_page_that_a_device_wrote_to_is_not_dropped() {
    for (len, fast) in [(8 * PAGE, true), (8 * PAGE, false), (MIB2, true), (MIB2, false)] {
        let machine = machine(16, 1);
        let (cpu, space, area) = mapped(&machine, GIB, len);
        space.madvise(area, len, Advice::HugePage).unwrap();
        fill(&cpu, &space, area, 0..len / PAGE, 100);
        let pin = || space.pin_page(page(area, 3), Access::Write).unwrap();
        let pinned = if fast { None } else { Some(pin()) };
        space.madvise(area, len, Advice::Free).unwrap();
        let pinned = pinned.unwrap_or_else(pin);
        device_writes(&machine, &pinned, 7);
        drop(pinned);
        space.madvise(area, len, Advice::PageOut).unwrap();
        assert_eq!(read(&cpu, &space, page(area, 3)), 7, "{len} bytes, pinned after the advice: {fast}");
    }
}

/// Hazard: a fork copies a pinned page that a device wrote to and no program did. The copy is needed, too: a
/// relative that frees it lazily does not drop it for the others.
#[test]
fn a_copy_of_a_page_that_a_device_wrote_to_is_not_dropped() {
    let machine = machine(16, 1);
    let (cpu, space, area) = mapped(&machine, GIB, PAGE);
    let pinned = space.pin_page(area, Access::Write).unwrap();
    space.madvise(area, PAGE, Advice::Free).unwrap();
    device_writes(&machine, &pinned, 7);
    let child = space.fork().unwrap();
    let grandchild = child.fork().unwrap();
    child.madvise(area, PAGE, Advice::Free).unwrap();
    child.munmap(area, PAGE).unwrap();
    grandchild.madvise(area, PAGE, Advice::PageOut).unwrap();
    assert_eq!(read(&cpu, &grandchild, area), 7);
    drop(pinned);
}

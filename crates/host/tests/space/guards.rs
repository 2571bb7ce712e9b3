//! Guard pages (MADV_GUARD_INSTALL): every access is refused, and all else that a program does to the range
//! leaves them there, until they are removed or unmapped.

use crate::common::*;

/// A border of all levels of tables.
const BASE: VirtAddr = VirtAddr(1 << 39);
const LEAVE: RemapFlags = RemapFlags::MAYMOVE.union(RemapFlags::DONTUNMAP);

fn install(space: &HostSpace<'_>, addr: VirtAddr, pages: u64) {
    space.madvise(addr, pages * PAGE, Advice::GuardInstall).unwrap();
}

fn remove(space: &HostSpace<'_>, addr: VirtAddr, pages: u64) {
    space.madvise(addr, pages * PAGE, Advice::GuardRemove).unwrap();
}

/// Panics unless accesses are refused as those of memory that is not mapped. Linux looks at the right to
/// execute only where a page is.
#[track_caller]
fn assert_guarded<F: PagingFormat>(
    cpu: &Vcpu<F>,
    space: &HostSpace<'_, F>,
    addr: VirtAddr,
    pages: impl IntoIterator<Item = u64>,
) {
    for at in pages {
        let program = cpu.program(space);
        assert_eq!(program.read_u64(page(addr, at)), Err(NOT_MAPPED), "page {at} of {addr:?}");
        assert_eq!(program.write_u64(page(addr, at), 1), Err(NOT_MAPPED), "page {at} of {addr:?}");
        assert_eq!(program.touch(page(addr, at), Access::Execute), Err(NOT_MAPPED), "page {at} of {addr:?}");
    }
}

/// The pages of 4 KiB from `addr` on that are guards.
fn guards(space: &HostSpace<'_>, addr: VirtAddr, pages: u64) -> Vec<u64> {
    let mut found = Vec::new();
    space.mappings().pagemap(VirtRange::new(addr, page(addr, pages)), |range, state| {
        if state == PageState::Guard {
            found.push((range.start().0 - addr.0) / PAGE);
        }
    });
    found
}

/// A machine that gives every program large folios.
fn huge(mib: u64) -> Machine {
    Setup::mib(mib).overcommit().always_huge().build()
}

fn map_file(space: &HostSpace<'_>, addr: VirtAddr, pages: u64, shared: bool, may: Protection) -> VirtAddr {
    let mut flags = MapFlags::FIXED;
    flags.set(MapFlags::SHARED, shared);
    let request = MapRequest::anonymous(pages * PAGE, may).at(addr, flags);
    space.mmap(&MapRequest { file: Some(MappedFile::new(3, 0)), ..request }).unwrap()
}

fn refuses_and_gives_back<F: PagingFormat>() {
    let machine: Machine<F> = Setup::mib(8).build();
    let (cpu, space) = cpu_and_space(&machine);
    let area = map_filled(&cpu, &space, GIB - 4 * PAGE, 8, 10);
    let before = space.figures();
    space.madvise(page(area, 2), 4 * PAGE, Advice::GuardInstall).unwrap();
    assert_guarded(&cpu, &space, area, 2..6);
    assert_filled(&cpu, &space, area, [0, 1, 6, 7], 10);
    assert_eq!(space.figures().resident, before.resident - 4 * PAGE);
    assert_audit(&machine);
    space.madvise(area, 8 * PAGE, Advice::GuardRemove).unwrap();
    for at in 2..6 {
        assert_eq!(read(&cpu, &space, page(area, at)), 0, "the contents are gone");
        write(&cpu, &space, page(area, at), 10 + at);
    }
    assert_filled(&cpu, &space, area, 0..8, 10);
}

#[test]
fn a_guard_refuses_every_access_until_it_is_removed() {
    refuses_and_gives_back::<X86_64Level4>();
    refuses_and_gives_back::<paging::X86_64Level5>();
    refuses_and_gives_back::<paging::invented::Invented3>();
}

#[test]
fn a_guard_is_refused_as_memory_that_is_not_mapped_only_where_the_mapping_allows_the_access() {
    let machine = machine(8, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let area = map_at(&space, GIB, 4 * PAGE, NONE);
    install(&space, area, 1);
    let program = cpu.program(&space);
    for (protection, read, write) in
        [(NONE, DENIED, DENIED), (READ, NOT_MAPPED, DENIED), (RW, NOT_MAPPED, NOT_MAPPED)]
    {
        space.mprotect(area, 4 * PAGE, protection, false).unwrap();
        assert_eq!(program.read_u64(area), Err(read), "{protection:?}");
        assert_eq!(program.write_u64(area, 1), Err(write), "{protection:?}");
    }
}

#[test]
fn guards_outlive_the_advice_that_drops_contents() {
    let machine = swapping(16, 1, 1024);
    let (cpu, space, area) = mapped(&machine, GIB, MIB2);
    for advice in [
        Advice::DontNeed,
        Advice::DontNeedLocked,
        Advice::Free,
        Advice::Cold,
        Advice::PageOut,
        Advice::WillNeed,
        Advice::Normal,
    ] {
        fill(&cpu, &space, area, [0, 1, 4, 511], 20);
        install(&space, page(area, 2), 2);
        space.madvise(area, MIB2, advice).unwrap();
        assert_guarded(&cpu, &space, area, [2, 3]);
        assert_eq!(guards(&space, area, 512), [2, 3], "{advice:?}");
        assert_audit(&machine);
    }
    // As Linux counts them: neither in memory nor on a device.
    space.madvise(area, MIB2, Advice::DontNeed).unwrap();
    assert_eq!((space.figures().resident, space.figures().swapped), (0, 0));
    let mut present = Vec::new();
    space.mincore(area, 4 * PAGE, |page| present.push(page)).unwrap();
    assert_eq!(present, [false; 4]);
}

#[test]
fn a_table_that_holds_only_guards_stays() {
    for technique in [TablesTechnique::Keep, TablesTechnique::Free] {
        let machine = Setup::mib(8).with(|memory| memory.techniques.tables = technique).build();
        let (cpu, space, area) = mapped(&machine, BASE.0, 2 * MIB2);
        fill(&cpu, &space, area, 0..512, 0);
        install(&space, page(area, 100), 1);
        let tables = space.figures().page_tables;
        space.madvise(area, 2 * MIB2, Advice::DontNeed).unwrap();
        assert_eq!(space.figures().page_tables, tables);
        assert_guarded(&cpu, &space, area, [100]);
        // What is unmapped on both sides of it frees no table of it either.
        space.munmap(area, 100 * PAGE).unwrap();
        space.munmap(page(area, 101), 2 * MIB2 - 101 * PAGE).unwrap();
        assert_guarded(&cpu, &space, area, [100]);
        assert_eq!(space.figures().page_tables, tables);
        space.munmap(page(area, 100), PAGE).unwrap();
        assert_eq!(space.figures().page_tables, 0);
    }
}

#[test]
fn tables_of_removed_guards_are_freed_when_empty() {
    let machine = machine(32, 1);
    let (_, space, area) = mapped(&machine, BASE.0, 4 * MIB2);
    install(&space, area, 2048);
    let tables = space.figures().page_tables;
    remove(&space, area, 2048);
    assert!(space.figures().page_tables <= tables - 4 * PAGE);
}

#[test]
fn a_guard_keeps_a_stack_small() {
    let machine = huge(32);
    let (cpu, space) = cpu_and_space(&machine);
    for nth in 0..8 {
        let stack = map_at(&space, BASE.0 + nth * MIB2, MIB2, RW);
        install(&space, stack, 1);
        fill(&cpu, &space, stack, 510..512, 1);
    }
    assert_eq!(space.figures().resident, 8 * 2 * PAGE);
    let plain = map_at(&space, BASE.0 + 16 * MIB2, MIB2, RW);
    write(&cpu, &space, page(plain, 511), 1);
    assert_eq!(space.figures().resident, 8 * 2 * PAGE + MIB2, "one without a guard gets a large folio");
}

#[test]
fn no_folio_of_some_pages_covers_a_guard() {
    let machine = Setup::mib(8).folios(orders(&[4])).build();
    let (cpu, space, area) = mapped(&machine, BASE.0, 32 * PAGE);
    install(&space, page(area, 5), 1);
    write(&cpu, &space, area, 1);
    write(&cpu, &space, page(area, 16), 1);
    assert_guarded(&cpu, &space, area, [5]);
    assert_eq!(space.figures().resident, 17 * PAGE);
}

#[test]
fn guards_take_the_place_of_a_large_leaf_without_memory() {
    let machine = huge(16);
    let (cpu, space, area) = mapped(&machine, BASE.0, 4 * MIB2);
    // A folio, the huge zero page, and a folio of which two pages stay.
    write(&cpu, &space, area, 1);
    assert_eq!(read(&cpu, &space, page(area, 512)), 0);
    write(&cpu, &space, page(area, 1024), 6);
    write(&cpu, &space, page(area, 1535), 7);
    let tables = space.figures().page_tables;
    install(&space, area, 1024);
    install(&space, page(area, 1025), 510);
    assert_eq!(space.figures().page_tables, tables, "the deposited tables hold them");
    assert_eq!(space.figures().resident, 2 * PAGE);
    assert_audit(&machine);
    assert_guarded(&cpu, &space, area, [0, 1, 511, 512, 1023, 1025, 1534]);
    assert_eq!((read(&cpu, &space, page(area, 1024)), read(&cpu, &space, page(area, 1535))), (6, 7));
    remove(&space, area, 1536);
    assert_filled(&cpu, &space, page(area, 1024), [0], 6);
    write(&cpu, &space, page(area, 300), 9);
}

#[test]
fn a_large_leaf_is_not_touched_by_the_removal_of_guards() {
    let machine = huge(16);
    let (cpu, space, area) = mapped(&machine, BASE.0, MIB2);
    write(&cpu, &space, area, 5);
    remove(&space, page(area, 3), 8);
    assert_eq!(space.figures().resident, MIB2);
    assert_eq!(pmd_mapped(&machine), 1);
    assert_eq!(read(&cpu, &space, area), 5);
}

#[test]
fn no_collapse_covers_a_guard() {
    let machine = huge(16);
    swap_on_ram(&machine, 1024);
    let memory = machine.memory();
    let (cpu, space, area) = mapped(&machine, BASE.0, MIB2);
    install(&space, page(area, 7), 1);
    fill(&cpu, &space, area, 8..512, 1);
    assert_eq!(space.madvise(area, MIB2, Advice::Collapse), Err(Error::WrongMapping));
    memory.spaces().huge().set_khugepaged(KhugepagedSetting::MaxPtesSwap, 511).unwrap();
    memory.spaces().huge().set_khugepaged(KhugepagedSetting::PagesToScan, 100_000).unwrap();
    assert_eq!(memory.khugepaged_step().collapsed, 0);
    assert_guarded(&cpu, &space, area, [7]);
    assert_filled(&cpu, &space, area, 8..512, 1);
    remove(&space, area, 512);
    assert_eq!(space.madvise(area, MIB2, Advice::Collapse), Ok(()));
    assert_filled(&cpu, &space, area, 8..512, 1);
}

#[test]
fn guards_free_what_is_paged_out() {
    let machine = swapping(8, 1, 64);
    let (cpu, space) = cpu_and_space(&machine);
    let area = map_filled(&cpu, &space, BASE.0, 32, 3);
    space.madvise(area, 32 * PAGE, Advice::PageOut).unwrap();
    assert_eq!(free_slots(&machine), 32);
    install(&space, area, 16);
    assert_eq!(free_slots(&machine), 48);
    assert_eq!(space.figures().swapped, 16 * PAGE);
    assert_guarded(&cpu, &space, area, 0..16);
    assert_filled(&cpu, &space, area, 16..32, 3);
}

#[test]
fn populating_ends_at_a_guard() {
    let machine = machine(8, 1);
    let (cpu, space, area) = mapped(&machine, BASE.0, 8 * PAGE);
    install(&space, page(area, 3), 1);
    for advice in [Advice::PopulateRead, Advice::PopulateWrite] {
        assert_eq!(space.madvise(area, 8 * PAGE, advice), Err(Error::BadAddress));
    }
    assert_eq!(space.figures().resident, 3 * PAGE);
    space.madvise(page(area, 4), PAGE, Advice::PopulateWrite).unwrap();
    assert_eq!(space.figures().resident, 4 * PAGE);
    // The mapping is locked all the same, as on Linux.
    assert_eq!(space.mlock(area, 8 * PAGE, false), Err(Error::NotMapped));
    assert_eq!((space.figures().locked, space.figures().resident), (8 * PAGE, 4 * PAGE));
    assert_eq!(space.madvise(area, PAGE, Advice::GuardInstall), Err(Error::WrongMapping));
    remove(&space, area, 8);
    assert_eq!(space.mlock(area, 8 * PAGE, false), Ok(()));
    assert_eq!(space.figures().resident, 8 * PAGE);
    space.munlock(area, 8 * PAGE).unwrap();
    install(&space, area, 1);
    // mlockall skips what it cannot populate.
    let other = map_at(&space, BASE.0 + 64 * PAGE, 4 * PAGE, RW);
    assert_eq!(space.mlockall(LockAll::CURRENT), Ok(()));
    assert_filled(&cpu, &space, other, 0..1, 0);
    assert_eq!(space.figures().resident, 7 * PAGE + 4 * PAGE);
}

#[test]
fn a_pin_of_a_guard_fails() {
    let machine = machine(8, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let area = map_filled(&cpu, &space, BASE.0, 2, 1);
    install(&space, area, 1);
    for access in [Access::Read, Access::Write] {
        assert!(space.pin_page_fast(area, access).is_none());
        assert_eq!(space.pin_page(area, access).map(|_| ()), Err(FaultError::NotMapped));
    }
}

#[test]
fn a_page_that_a_device_has_pinned_outlives_its_guard() {
    let machine = machine(8, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let area = map_filled(&cpu, &space, BASE.0, 1, 1);
    let pinned = space.pin_page(area, Access::Write).unwrap();
    install(&space, area, 1);
    assert_guarded(&cpu, &space, area, [0]);
    remove(&space, area, 1);
    assert_eq!(read(&cpu, &space, area), 0);
    drop(pinned);
}

#[test]
fn a_fork_copies_guards() {
    let machine = machine(8, 1);
    let (cpu, space, area) = mapped(&machine, BASE.0, 8 * PAGE);
    write(&cpu, &space, page(area, 4), 9);
    install(&space, area, 2);
    // Nothing was ever written to a file's pages, so that nothing else would be copied.
    let file = map_file(&space, VirtAddr(BASE.0 + GIB), 4, false, READ);
    install(&space, file, 1);
    let shared = map_file(&space, VirtAddr(BASE.0 + 2 * GIB), 4, true, RW);
    install(&space, shared, 1);
    let child = space.fork().unwrap();
    assert_guarded(&cpu, &child, area, 0..2);
    for guard in [file, shared] {
        assert_eq!(cpu.program(&child).read_u64(guard), Err(NOT_MAPPED));
        assert_eq!(cpu.program(&child).read_u64(page(guard, 1)), Ok(0));
    }
    assert_eq!(mappings(&child), mappings(&space));
    // Each has its own.
    remove(&child, area, 2);
    write(&cpu, &child, area, 3);
    assert_guarded(&cpu, &space, area, 0..2);
    assert_eq!(read(&cpu, &child, page(area, 4)), 9);
}

#[test]
fn what_is_wiped_on_fork_has_no_guards_in_the_child() {
    let machine = machine(8, 1);
    let (cpu, space, area) = mapped(&machine, BASE.0, 4 * PAGE);
    install(&space, area, 2);
    space.madvise(area, 4 * PAGE, Advice::WipeOnFork).unwrap();
    let child = space.fork().unwrap();
    assert_filled(&cpu, &child, area, 0..1, 0);
    assert_guarded(&cpu, &space, area, 0..2);
}

#[test]
fn guards_move_with_their_mapping() {
    for technique in [RemapTechnique::Ptes, RemapTechnique::Puds] {
        for (pages, shift) in [(8, 0), (8, PAGE), (512, 0), (1024, 0), (512, PAGE)] {
            for how in [MOVE, LEAVE] {
                let setup = Setup::mib(16).overcommit();
                let machine = setup.with(|memory| memory.techniques.mremap = technique).build();
                let (cpu, space, area) = mapped(&machine, BASE.0, pages * PAGE);
                fill(&cpu, &space, area, [0, pages - 1], 50);
                install(&space, page(area, 2), 3);
                let to = VirtAddr(BASE.0 + 4 * GIB + shift);
                let how = how | RemapFlags::FIXED;
                assert_eq!(space.mremap(area, pages * PAGE, pages * PAGE, how, to), Ok(to));
                assert_guarded(&cpu, &space, to, 2..5);
                assert_filled(&cpu, &space, to, [0, pages - 1], 50);
                assert_eq!(guards(&space, to, pages), [2, 3, 4]);
                if how.contains(RemapFlags::DONTUNMAP) {
                    assert_eq!(read(&cpu, &space, page(area, 2)), 0, "none stays behind");
                }
            }
        }
    }
}

#[test]
fn a_guard_in_front_of_shared_memory_hides_its_contents() {
    let machine = machine(8, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let area = map_file(&space, BASE, 8, true, RW);
    fill(&cpu, &space, area, 0..4, 30);
    install(&space, area, 8);
    assert_guarded(&cpu, &space, area, 0..8);
    assert_audit(&machine);
    // A page that is kept counts as one of the file's.
    let mut present = Vec::new();
    space.mincore(area, 8 * PAGE, |page| present.push(page)).unwrap();
    assert_eq!(present, [true, true, true, true, false, false, false, false]);
    for protection in [READ, NONE, RW] {
        space.mprotect(area, 8 * PAGE, protection, false).unwrap();
    }
    assert_guarded(&cpu, &space, area, 0..8);
    let child = space.fork().unwrap();
    assert_guarded(&cpu, &child, area, 0..8);
    space.mprotect(area, 8 * PAGE, READ, false).unwrap();
    remove(&space, area, 8);
    assert_filled(&cpu, &space, area, 0..4, 30);
    assert_eq!(cpu.program(&space).write_u64(area, 1), Err(DENIED));
    space.mprotect(area, 8 * PAGE, RW, false).unwrap();
    fill(&cpu, &space, area, 0..8, 40);
    remove(&child, area, 8);
    assert_filled(&cpu, &child, area, 0..4, 40);
}

#[test]
fn mappings_that_take_no_guards_refuse_them() {
    let machine = machine(8, 1);
    let (_, space, area) = mapped(&machine, BASE.0, 4 * PAGE);
    space.mlock(area, PAGE, false).unwrap();
    assert_eq!(space.madvise(area, PAGE, Advice::GuardInstall), Err(Error::WrongMapping));
    // The refusal ends the call, and nothing says that there were guards.
    assert_eq!(space.madvise(area, 4 * PAGE, Advice::GuardInstall), Err(Error::WrongMapping));
    assert_eq!(guards(&space, area, 4), []);
    assert!(mappings(&space).iter().all(|(.., flags)| !flags.contains(VmFlags::MAYBE_GUARD)));
    assert_eq!(space.madvise(area, 4 * PAGE, Advice::GuardRemove), Ok(()));
}

#[test]
fn guards_over_a_hole_are_installed_and_the_hole_reported() {
    let machine = machine(8, 1);
    let (cpu, space, area) = mapped(&machine, BASE.0, 6 * PAGE);
    space.munmap(page(area, 2), PAGE).unwrap();
    assert_eq!(space.madvise(area, 6 * PAGE, Advice::GuardInstall), Err(Error::NotMapped));
    assert_eq!(guards(&space, area, 6), [0, 1, 3, 4, 5]);
    assert_eq!(space.madvise(area, 6 * PAGE, Advice::GuardRemove), Err(Error::NotMapped));
    assert_eq!(guards(&space, area, 6), []);
    write(&cpu, &space, area, 1);
}

/// A mapping is marked with its first guard, for good. The mark keeps no two mappings apart; what they become
/// has it.
#[test]
fn the_mark_of_guards_spreads_when_mappings_merge() {
    let machine = machine(8, 1);
    let (_, space) = cpu_and_space(&machine);
    let marks = || -> Vec<_> {
        let marked = |flags: VmFlags| flags.contains(VmFlags::MAYBE_GUARD);
        let pages = |addr| (addr - BASE.0) / PAGE;
        mappings(&space)
            .into_iter()
            .map(|(start, end, flags)| (pages(start), pages(end), marked(flags)))
            .collect()
    };
    let area = map_at(&space, BASE.0, 4 * PAGE, RW);
    install(&space, area, 1);
    map_at(&space, BASE.0 + 4 * PAGE, 4 * PAGE, RW);
    assert_eq!(marks(), [(0, 8, true)], "with what lies above");
    map_at(&space, BASE.0 - 4 * PAGE + 8 * PAGE, 4 * PAGE, READ);
    assert_eq!(marks(), [(0, 4, true), (4, 8, false)]);
    space.mprotect(page(area, 4), 4 * PAGE, RW, false).unwrap();
    assert_eq!(marks(), [(0, 8, true)], "with what became alike");
    space.mprotect(page(area, 2), 2 * PAGE, READ, false).unwrap();
    assert_eq!(marks(), [(0, 2, true), (2, 4, true), (4, 8, true)]);
    remove(&space, area, 8);
    space.munmap(area, 8 * PAGE).unwrap();
    map_at(&space, page(area, 4).0, 4 * PAGE, RW);
    install(&space, page(area, 4), 1);
    map_at(&space, area.0, 4 * PAGE, RW);
    assert_eq!(marks(), [(0, 8, true)], "with what lies below");
    map_at(&space, area.0, 8 * PAGE, RW);
    assert_eq!(marks(), [(0, 8, false)], "a new mapping has none");
    map_at(&space, area.0, 4 * PAGE, READ);
    install(&space, page(area, 4), 1);
    space.mprotect(area, 4 * PAGE, RW, false).unwrap();
    assert_eq!(marks(), [(0, 8, true)], "with the next one");
    // What takes the others over has no mark of its own.
    map_at(&space, area.0, 8 * PAGE, RW);
    map_at(&space, page(area, 4).0, 4 * PAGE, READ);
    install(&space, page(area, 4), 1);
    space.mprotect(page(area, 4), 4 * PAGE, RW, false).unwrap();
    assert_eq!(marks(), [(0, 8, true)], "with the one before");
    space.munmap(area, 8 * PAGE).unwrap();
    map_at(&space, area.0, 4 * PAGE, RW);
    map_at(&space, page(area, 6).0, 2 * PAGE, RW);
    install(&space, page(area, 6), 1);
    assert_eq!(marks(), [(0, 4, false), (6, 8, true)]);
    map_at(&space, page(area, 4).0, 2 * PAGE, RW);
    assert_eq!(marks(), [(0, 8, true)], "across a gap");
    map_at(&space, page(area, 8).0, 4 * PAGE, READ);
    space.mremap(area, 8 * PAGE, 8 * PAGE, MOVE, page(area, 40)).unwrap();
    assert_eq!(marks(), [(8, 12, false), (40, 48, true)]);
}

/// Two pages of a private file, of which the second is a guard and the first has been read. Nothing gave the
/// mapping an anon_vma.
fn read_file_with_a_guard(cpu: &Vcpu, space: &HostSpace<'_>) -> VirtAddr {
    let file = map_file(space, BASE, 2, false, RW);
    install(space, page(file, 1), 1);
    assert_eq!(read(cpu, space, file), 0);
    file
}

/// Hazard: a fork copies a pinned page of a file into a mapping whose anonymous pages would have no anon_vma.
#[test]
fn a_fork_beside_guards_makes_no_page_without_an_anon_vma() {
    let machine = machine(8, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let file = read_file_with_a_guard(&cpu, &space);
    let pinned = space.pin_page(file, Access::Read).unwrap();
    let child = space.fork().unwrap();
    assert_audit(&machine);
    assert_guarded(&cpu, &child, file, [1]);
    assert_eq!(read(&cpu, &child, file), 0);
    write(&cpu, &child, file, 2);
    write(&cpu, &space, file, 1);
    assert_eq!((read(&cpu, &space, file), read(&cpu, &child, file)), (1, 2));
    assert_audit(&machine);
    drop(pinned);
}

/// Hazard: a pin copies a page of a file that a fork has shared, in a mapping without an anon_vma.
#[test]
fn a_pin_beside_guards_makes_no_page_without_an_anon_vma() {
    let machine = swapping(8, 1, 64);
    let (cpu, space) = cpu_and_space(&machine);
    let file = read_file_with_a_guard(&cpu, &space);
    let child = space.fork().unwrap();
    let pinned = child.pin_page(file, Access::Read).unwrap();
    assert_audit(&machine);
    write(&cpu, &child, file, 3);
    assert_audit(&machine);
    drop(pinned);
    child.madvise(file, PAGE, Advice::PageOut).unwrap();
    assert_eq!(child.figures().swapped, PAGE, "the page can be paged out");
    assert_eq!((read(&cpu, &space, file), read(&cpu, &child, file)), (0, 3));
}

//! Between the discard of a lazily freed page (MADV_FREE) and the flush of its batch, translations of it are
//! in TLBs and its entry is none. What a call or a fault makes of that page must hold for every CPU when it
//! returns.

use crate::common::*;
use quire_frame::FolioGuard;
use quire_pageout::{UnmapBatch, Unmapped, unmap_to_discard, unmap_to_swap};

/// The addresses of one table.
const TABLE: VirtAddr = VirtAddr(GIB);
/// Not the table's first page, which is flushed for the table when that is freed.
const AT: VirtAddr = VirtAddr(GIB + 4 * PAGE);
const MOVED: VirtAddr = VirtAddr(4 * GIB + 5 * PAGE);

/// A table's worth of memory, of which a program on CPU 0 has written to `used` pages from `AT` on. The first
/// is discarded, and its batch not flushed; CPU 0 has its translation. Then CPU 1 does `calls`, and CPU 0
/// reads the page: it must see `expected`, in the window and after it.
fn check_used(used: u64, calls: impl FnOnce(&Machine, &Vcpu, &HostSpace<'_>), expected: &AccessResult<u64>) {
    check_after(used, |_, _, _| None, calls, expected);
}

/// A page that was unmapped, under its folio lock and with a reference.
pub(crate) type Unmapping<'m> = (Pfn, FolioGuard<'m, HostPlatform>);

/// The folio lock of what is mapped at `addr`, and a reference.
pub(crate) fn hold<'m>(machine: &'m Machine, space: &HostSpace<'m>, addr: VirtAddr) -> Unmapping<'m> {
    let frames = machine.memory().spaces().frames();
    let head = space.pin_page_fast(addr, Access::Read).unwrap().pfn();
    assert!(frames.known(head).try_get(), "the page is there");
    (head, frames.folios().try_lock_folio(head).unwrap())
}

/// Unlocks it and drops the reference, after the flush.
pub(crate) fn release(machine: &Machine, (head, guard): Unmapping<'_>) {
    let spaces = machine.memory().spaces();
    drop(guard);
    spaces.swap().cache().leave_if_unnamed(head);
    spaces.memcgs().folios().release_folio(head);
}

/// As [`check_used`]; before the discard `first` has unmapped another page in the same batch.
fn check_after(
    used: u64,
    first: impl for<'m> FnOnce(
        &'m Machine,
        &HostSpace<'m>,
        &mut UnmapBatch<'m, HostPlatform>,
    ) -> Option<Unmapping<'m>>,
    calls: impl FnOnce(&Machine, &Vcpu, &HostSpace<'_>),
    expected: &AccessResult<u64>,
) {
    let machine = swapping(16, 2, 1024);
    // A child of it exits in the window, when nothing can be audited.
    let space = create_space(&machine);
    map_at(&space, TABLE.0, MIB2, RW);
    let (reader, caller) = (machine.vcpu(0).unwrap(), machine.vcpu(1).unwrap());
    reader.run(|| {
        let program = reader.program(&space);
        fill(&reader, &space, AT, 0..used, 1);
        space.madvise(AT, PAGE, Advice::Free).unwrap();
        assert_eq!(program.read_u64(AT), Ok(1), "without the translation the test means nothing");
        let mut batch = UnmapBatch::new(machine.memory().spaces().rmap());
        let before = first(&machine, &space, &mut batch);
        let (head, guard) = hold(&machine, &space, AT);
        assert_eq!(unmap_to_discard(&mut batch, head), Unmapped::All);
        caller.run(|| calls(&machine, &caller, &space));
        assert_eq!(program.read_u64(AT), *expected, "in the window, with {used} pages used");
        batch.flush();
        [Some((head, guard)), before].into_iter().flatten().for_each(|out| release(&machine, out));
        assert_eq!(program.read_u64(AT), *expected, "after it");
    });
    assert_audit(&machine);
}

/// The same with one page in the table, which is left empty, and with two.
fn check(calls: impl Fn(&Machine, &Vcpu, &HostSpace<'_>), expected: &AccessResult<u64>) {
    for used in [1, 2] {
        check_used(used, &calls, expected);
    }
}

#[test]
fn munmap_flushes_a_discarded_page() {
    check(|_, _, space| space.munmap(AT, PAGE).unwrap(), &Err(NOT_MAPPED));
}

#[test]
fn mprotect_flushes_a_discarded_page() {
    check(|_, _, space| space.mprotect(AT, PAGE, NONE, false).unwrap(), &Err(DENIED));
}

#[test]
fn dontneed_flushes_a_discarded_page() {
    check(|_, _, space| space.madvise(AT, PAGE, Advice::DontNeed).unwrap(), &Ok(0));
}

#[test]
fn a_guard_flushes_a_discarded_page() {
    check(|_, _, space| space.madvise(AT, PAGE, Advice::GuardInstall).unwrap(), &Err(NOT_MAPPED));
}

#[test]
fn mremap_flushes_a_discarded_page() {
    check(|_, _, space| _ = space.mremap(AT, PAGE, PAGE, MOVE, MOVED).unwrap(), &Err(NOT_MAPPED));
}

#[test]
fn mremap_of_tables_flushes_a_discarded_page() {
    check(
        |_, _, space| _ = space.mremap(TABLE, MIB2, MIB2, MOVE, VirtAddr(4 * GIB)).unwrap(),
        &Err(NOT_MAPPED),
    );
}

#[test]
fn mremap_over_a_discarded_page_flushes_it() {
    let moves_there = |_: &Machine, cpu: &Vcpu, space: &HostSpace<'_>| {
        map_at(space, MOVED.0, PAGE, RW);
        write(cpu, space, MOVED, 9);
        space.mremap(MOVED, PAGE, PAGE, MOVE, AT).unwrap();
    };
    check(moves_there, &Ok(9));
}

#[test]
fn a_new_mapping_replaces_a_discarded_page_for_all_cpus() {
    let maps_anew = |_: &Machine, cpu: &Vcpu, space: &HostSpace<'_>| {
        space.munmap(AT, PAGE).unwrap();
        map_at(space, AT.0, PAGE, RW);
        write(cpu, space, AT, 9);
    };
    check(maps_anew, &Ok(9));
    check(|_, _, space| _ = map_at(space, AT.0, PAGE, RW), &Ok(0));
}

#[test]
fn a_write_fault_replaces_a_discarded_page_for_all_cpus() {
    check(|_, cpu, space| write(cpu, space, AT, 9), &Ok(9));
}

/// Once a CPU has read zeros, none reads the old contents.
#[test]
fn a_read_fault_replaces_a_discarded_page_for_all_cpus() {
    check(|_, cpu, space| assert_eq!(read(cpu, space, AT), 0), &Ok(0));
}

/// A batch that has paged another page out of the space before.
#[test]
fn a_batch_that_pages_out_and_discards_is_known_to_do_both() {
    check_after(
        2,
        |machine, space, batch| {
            let (head, guard) = hold(machine, space, page(AT, 1));
            machine.memory().spaces().swap().allocator().add_folio(head, 0).unwrap();
            assert_eq!(unmap_to_swap(batch, head), Unmapped::All);
            Some((head, guard))
        },
        |_, cpu, space| write(cpu, space, AT, 9),
        &Ok(9),
    );
}

#[test]
fn a_populated_page_replaces_a_discarded_one_for_all_cpus() {
    check(|_, _, space| space.madvise(AT, PAGE, Advice::PopulateWrite).unwrap(), &Ok(0));
}

/// The child has zeros there from the start, so the parent must not go on with what was there before.
#[test]
fn fork_flushes_a_discarded_page() {
    let forks = |_: &Machine, cpu: &Vcpu, space: &HostSpace<'_>| {
        let child = space.fork().unwrap();
        assert_eq!(read(cpu, &child, AT), 0);
    };
    check(forks, &Ok(0));
}

/// Lets private pages come in folios of `order` from now on.
fn use_folios_of(machine: &Machine, order: u8) {
    let sizes = orders(&[order]);
    machine.memory().spaces().huge().change(|policy| policy.with_sizes(sizes, SizeEnabled::Always));
}

#[test]
fn a_large_folio_replaces_a_discarded_page_for_all_cpus() {
    let writes_beside = |machine: &Machine, cpu: &Vcpu, space: &HostSpace<'_>| {
        use_folios_of(machine, 2);
        write(cpu, space, page(AT, 1), 9);
        assert_eq!(space.figures().resident, 4 * PAGE, "one folio for all four pages");
    };
    check_used(1, writes_beside, &Ok(0));
}

/// Has the empty table of `AT` freed, by calls that drop other pages. What they flush ends at its first page.
fn free_the_table(cpu: &Vcpu, space: &HostSpace<'_>) {
    let (elsewhere, before) = (VirtAddr(8 * GIB), VirtAddr(TABLE.0 - PAGE));
    for area in [elsewhere, before] {
        map_at(space, area.0, PAGE, RW);
        write(cpu, space, area, 1);
    }
    let tables = space.figures().page_tables;
    for emptied in [page(AT, 1), elsewhere, before] {
        space.madvise(emptied, PAGE, Advice::DontNeed).unwrap();
    }
    assert_eq!(space.figures().page_tables, tables - PAGE, "two tables are kept");
}

#[test]
fn a_leaf_in_place_of_a_freed_table_replaces_a_discarded_page_for_all_cpus() {
    for write_first in [true, false] {
        let faults = |machine: &Machine, cpu: &Vcpu, space: &HostSpace<'_>| {
            free_the_table(cpu, space);
            use_folios_of(machine, 9);
            if write_first {
                write(cpu, space, page(AT, 5), 9);
                assert_eq!(space.figures().resident, MIB2, "a large folio");
            } else {
                assert_eq!(read(cpu, space, page(AT, 5)), 0, "the huge zero page");
            }
        };
        check_used(1, faults, &Ok(0));
    }
}

#[test]
fn a_discarded_page_is_flushed_though_its_table_is_gone() {
    let unmaps = |_: &Machine, cpu: &Vcpu, space: &HostSpace<'_>| {
        free_the_table(cpu, space);
        space.munmap(AT, PAGE).unwrap();
    };
    check_used(1, unmaps, &Err(NOT_MAPPED));
    let writes = |_: &Machine, cpu: &Vcpu, space: &HostSpace<'_>| {
        free_the_table(cpu, space);
        write(cpu, space, AT, 9);
    };
    check_used(1, writes, &Ok(9));
}

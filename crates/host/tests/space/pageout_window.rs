//! Between the unmapping of a page by page-out and the flush of its batch, translations of it are in TLBs and
//! its entry is a swap entry. Each call that removes, moves or write-protects such an entry must flush before
//! it returns.

use crate::common::*;
use crate::discard_window::{hold, release};
use quire_pageout::{UnmapBatch, Unmapped, unmap_to_swap};
use quire_space::finish_exits;

/// Calls `action` while the page at `addr` is unmapped, and not flushed yet. Then the page-out continues up
/// to the device.
fn in_the_window<'m, R>(
    machine: &'m Machine,
    space: &HostSpace<'m>,
    addr: VirtAddr,
    action: impl FnOnce() -> R,
) -> R {
    let spaces = machine.memory().spaces();
    let (head, guard) = hold(machine, space, addr);
    let mut batch: UnmapBatch<'_, HostPlatform> = UnmapBatch::new(spaces.rmap());
    spaces.swap().allocator().add_folio(head, 0).unwrap();
    assert_eq!(unmap_to_swap(&mut batch, head), Unmapped::All);
    let result = action();
    batch.flush();
    release(machine, (head, guard));
    result
}

const AT: VirtAddr = VirtAddr(GIB);

/// Two pages at `AT`, which CPU 0 has used: the second keeps their table in use. `calls` is what CPU 1 does
/// in the window, and `access` what CPU 0 does then, still in the window.
fn check<T: PartialEq + std::fmt::Debug>(
    calls: impl FnOnce(&HostSpace<'_>),
    access: impl FnOnce(&HostProgram<'_, '_>) -> AccessResult<T>,
    expected: &AccessResult<T>,
) {
    let machine = swapping(16, 2, 1024);
    let space = create_space(&machine);
    let area = map_at(&space, GIB, 2 * PAGE, RW);
    let (first, second) = (machine.vcpu(0).unwrap(), machine.vcpu(1).unwrap());
    first.run(|| {
        let program = first.program(&space);
        program.write_u64(area, 1).unwrap();
        program.write_u64(page(area, 1), 2).unwrap();
        in_the_window(&machine, &space, area, || {
            assert_eq!(program.read_u64(area), Ok(1), "without the translation the test means nothing");
            second.run(|| calls(&space));
            assert_eq!(access(&program), *expected);
        });
    });
}

fn check_read(calls: impl FnOnce(&HostSpace<'_>), expected: AccessResult<u64>) {
    check(calls, |program| program.read_u64(AT), &expected);
}

fn check_write(calls: impl FnOnce(&HostSpace<'_>), expected: AccessResult<()>) {
    check(calls, |program| program.write_u64(AT, 9), &expected);
}

#[test]
fn dontneed_flushes_a_page_being_paged_out() {
    check_read(|space| space.madvise(AT, PAGE, Advice::DontNeed).unwrap(), Ok(0));
}

#[test]
fn free_flushes_a_page_being_paged_out() {
    check_read(|space| space.madvise(AT, PAGE, Advice::Free).unwrap(), Ok(0));
}

#[test]
fn a_guard_flushes_a_page_being_paged_out() {
    check_read(|space| space.madvise(AT, PAGE, Advice::GuardInstall).unwrap(), Err(NOT_MAPPED));
}

#[test]
fn munmap_flushes_a_page_being_paged_out() {
    check_read(|space| space.munmap(AT, PAGE).unwrap(), Err(NOT_MAPPED));
}

#[test]
fn mprotect_flushes_a_page_being_paged_out() {
    check_write(|space| space.mprotect(AT, PAGE, READ, false).unwrap(), Err(DENIED));
}

#[test]
fn mremap_flushes_a_page_being_paged_out() {
    let there = VirtAddr(GIB + MIB2);
    check_write(|space| _ = space.mremap(AT, PAGE, PAGE, MOVE, there).unwrap(), Err(NOT_MAPPED));
}

#[test]
fn mremap_of_tables_flushes_a_page_being_paged_out() {
    let move_tables = |space: &HostSpace<'_>| {
        map_at(space, GIB + 2 * PAGE, MIB2 - 2 * PAGE, RW);
        space.mremap(AT, MIB2, MIB2, MOVE, VirtAddr(4 * GIB)).unwrap();
    };
    check_write(move_tables, Err(NOT_MAPPED));
}

/// The page is shared with a child since: a write of the parent goes to a copy, once the page-out is over.
#[test]
fn fork_flushes_a_page_being_paged_out() {
    let machine = swapping(16, 2, 1024);
    let space = create_space(&machine);
    let area = map_at(&space, GIB, PAGE, RW);
    let cpu = machine.vcpu(0).unwrap();
    cpu.run(|| {
        let program = cpu.program(&space);
        program.write_u64(area, 1).unwrap();
        let child = in_the_window(&machine, &space, area, || {
            let other = machine.vcpu(1).unwrap();
            let child = other.run(|| space.fork()).unwrap();
            machine.memory().platform().for_each_cached_translation(&mut |cached| {
                assert_ne!(cached.addr, area, "a write by the old translation would be the child's too");
            });
            child
        });
        program.write_u64(area, 2).unwrap();
        assert_eq!(cpu.program(&child).read_u64(area), Ok(1));
    });
}

/// A pin stops the page-out. The page is mapped again, read-only: no old translation may be writable either,
/// since a fault may be copying the page.
#[test]
fn a_page_out_that_is_undone_flushes_the_old_translation() {
    let machine = swapping(16, 1, 1024);
    let space = create_space(&machine);
    let area = map_at(&space, GIB, PAGE, RW);
    let cpu = machine.vcpu(0).unwrap();
    cpu.run(|| {
        let program = cpu.program(&space);
        program.write_u64(area, 1).unwrap();
        let pinned = space.pin_page_fast(area, Access::Write).unwrap();
        let (spaces, head) = (machine.memory().spaces(), pinned.pfn());
        let guard = spaces.frames().folios().try_lock_folio(head).unwrap();
        let mut batch = UnmapBatch::new(spaces.rmap());
        spaces.swap().allocator().add_folio(head, 0).unwrap();
        assert_eq!(unmap_to_swap(&mut batch, head), Unmapped::Pinned);
        drop(pinned);
        let before = machine.memory().frames().events().sum(VmEvent::Pgfault);
        program.write_u64(area, 2).unwrap();
        assert_eq!(machine.memory().frames().events().sum(VmEvent::Pgfault), before + 1);
        batch.flush();
        drop(guard);
        spaces.swap().cache().leave_if_unnamed(head);
        assert_eq!(program.read_u64(area), Ok(2));
    });
}

/// A batch holds the spaces that it unmapped pages of. Reclaim may hold the mmap lock of its own space when
/// it lets another space exit that only the batch held.
#[test]
fn a_space_may_end_with_a_page_out_by_another() {
    let machine = swapping(16, 1, 1024);
    let (own, other) = (create_space(&machine), create_space(&machine));
    map_at(&own, GIB, PAGE, RW);
    let area = map_at(&other, GIB, PAGE, RW);
    let cpu = machine.vcpu(0).unwrap();
    cpu.program(&other).write_u64(area, 1).unwrap();
    let spaces = machine.memory().spaces();
    let (head, guard) = hold(&machine, &other, area);
    let mut batch = UnmapBatch::new(spaces.rmap());
    spaces.swap().allocator().add_folio(head, 0).unwrap();
    assert_eq!(unmap_to_swap(&mut batch, head), Unmapped::All);
    drop(other);
    assert_eq!(spaces.count(), 2);
    own.mappings().while_held(|| {
        batch.flush();
        finish_exits(spaces);
    });
    assert_eq!(spaces.count(), 1);
    release(&machine, (head, guard));
    drop(own);
    assert_audit(&machine);
}

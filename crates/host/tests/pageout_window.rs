//! Between the unmapping of a page and the flush of its batch, translations of it are in TLBs and its entry is a swap entry. Each
//! call that takes such an entry away, moves it or forbids something on it must flush itself before it returns.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::{
    DENIED, GIB, HostSpace, MIB2, NOT_MAPPED, PAGE, READ, RW, assert_audit, machine, map_at, page,
    swap_on_ram,
};
use quire_arch::{Access, Platform, VirtAddr};
use quire_host::{HostPlatform, Machine};
use quire_mm::{Advice, RemapFlags, VmEvent};
use quire_space::{UnmapBatch, Unmapped};

const MOVE: RemapFlags = RemapFlags::MAYMOVE.union(RemapFlags::FIXED);

/// Calls `action` while the page at `addr` is unmapped, and not flushed yet. Then the page-out goes on as far as the device.
fn in_the_window<R>(
    machine: &Machine,
    space: &HostSpace<'_>,
    addr: VirtAddr,
    action: impl FnOnce() -> R,
) -> R {
    let spaces = machine.memory().spaces();
    let head = {
        let pinned = space.pin_page_fast(addr, Access::Read).unwrap();
        pinned.pfn()
    };
    let frame = spaces.frames().known(head);
    assert!(frame.try_get(), "the page is there");
    let guard = spaces.frames().try_lock_folio_long(head).unwrap();
    let mut batch: UnmapBatch<'_, HostPlatform> = UnmapBatch::new(spaces);
    spaces.swap().add_folio(head, 0).unwrap();
    assert_eq!(spaces.unmap_to_swap(head, &mut batch), Unmapped::All);
    let result = action();
    batch.flush();
    drop(guard);
    spaces.leave_swap_cache(head);
    spaces.let_isolated_go(head);
    result
}

/// Two pages at [`GIB`], which CPU 0 has used: the second keeps their table in use. `calls` is what CPU 1 does in the window, and
/// `afterwards` what CPU 0 does then, still in the window.
fn check(calls: impl FnOnce(&HostSpace<'_>), afterwards: impl FnOnce(&common::HostProgram<'_, '_>)) {
    let machine = machine(16, 2);
    swap_on_ram(&machine, 1024);
    let space = machine.memory().create_space().unwrap();
    let area = map_at(&space, GIB, 2 * PAGE, RW);
    let (first, second) = (machine.vcpu(0).unwrap(), machine.vcpu(1).unwrap());
    first.run(|| {
        let program = first.program(&space);
        program.write_u64(area, 1).unwrap();
        program.write_u64(page(area, 1), 2).unwrap();
        in_the_window(&machine, &space, area, || {
            assert_eq!(
                program.read_u64(area),
                Ok(1),
                "the translation is there, so that the test means something"
            );
            second.run(|| calls(&space));
            afterwards(&program);
        });
    });
    drop(space);
    assert_audit(&machine);
}

#[test]
fn nobody_reads_what_dontneed_took() {
    check(
        |space| space.madvise(VirtAddr(GIB), PAGE, Advice::DontNeed).unwrap(),
        |program| {
            assert_eq!(program.read_u64(VirtAddr(GIB)), Ok(0));
        },
    );
}

#[test]
fn nobody_reads_what_was_freed_lazily() {
    check(
        |space| space.madvise(VirtAddr(GIB), PAGE, Advice::Free).unwrap(),
        |program| {
            assert_eq!(program.read_u64(VirtAddr(GIB)), Ok(0));
        },
    );
}

#[test]
fn nobody_reads_what_was_unmapped() {
    check(
        |space| space.munmap(VirtAddr(GIB), PAGE).unwrap(),
        |program| {
            assert_eq!(program.read_u64(VirtAddr(GIB)), Err(NOT_MAPPED));
        },
    );
}

#[test]
fn nobody_writes_to_what_was_protected() {
    check(
        |space| space.mprotect(VirtAddr(GIB), PAGE, READ, false).unwrap(),
        |program| {
            assert_eq!(program.write_u64(VirtAddr(GIB), 9), Err(DENIED));
        },
    );
}

#[test]
fn nobody_writes_to_what_has_moved() {
    let there = VirtAddr(GIB + MIB2);
    check(
        |space| {
            space.mremap(VirtAddr(GIB), PAGE, PAGE, MOVE, there).unwrap();
        },
        |program| {
            assert_eq!(program.write_u64(VirtAddr(GIB), 9), Err(NOT_MAPPED));
        },
    );
}

#[test]
fn nobody_writes_where_tables_have_moved_away() {
    let there = VirtAddr(4 * GIB);
    check(
        |space| {
            map_at(space, GIB + 2 * PAGE, MIB2 - 2 * PAGE, RW);
            space.mremap(VirtAddr(GIB), MIB2, MIB2, MOVE, there).unwrap();
        },
        |program| {
            assert_eq!(program.write_u64(VirtAddr(GIB), 9), Err(NOT_MAPPED));
        },
    );
}

/// The page is shared with a child since: what the parent writes goes to a page of its own, once the page-out is over.
#[test]
fn a_child_does_not_see_what_its_parent_writes_after_the_fork() {
    let machine = machine(16, 2);
    swap_on_ram(&machine, 1024);
    let space = machine.memory().create_space().unwrap();
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
    drop(space);
    assert_audit(&machine);
}

/// A pin stops the page-out. The page is mapped again, but not for writing: no old translation allows that either, since a fault
/// may be copying the page.
#[test]
fn nobody_writes_by_an_old_translation_when_a_page_out_was_stopped() {
    let machine = machine(16, 1);
    swap_on_ram(&machine, 1024);
    let space = machine.memory().create_space().unwrap();
    let area = map_at(&space, GIB, PAGE, RW);
    let cpu = machine.vcpu(0).unwrap();
    cpu.run(|| {
        let program = cpu.program(&space);
        program.write_u64(area, 1).unwrap();
        let pinned = space.pin_page_fast(area, Access::Write).unwrap();
        let (spaces, head) = (machine.memory().spaces(), pinned.pfn());
        let guard = spaces.frames().try_lock_folio_long(head).unwrap();
        let mut batch = UnmapBatch::new(spaces);
        spaces.swap().add_folio(head, 0).unwrap();
        assert_eq!(spaces.unmap_to_swap(head, &mut batch), Unmapped::Pinned);
        drop(pinned);
        let before = machine.memory().frames().events().sum(VmEvent::Pgfault);
        program.write_u64(area, 2).unwrap();
        assert_eq!(machine.memory().frames().events().sum(VmEvent::Pgfault), before + 1);
        batch.flush();
        drop(guard);
        spaces.leave_swap_cache(head);
        assert_eq!(program.read_u64(area), Ok(2));
    });
    drop(space);
    assert_audit(&machine);
}

/// A batch keeps the spaces that it unmapped pages of. Whoever reclaims may hold the lock of its own mappings when one of them ends
/// with the batch.
#[test]
fn a_space_may_end_with_a_page_out_by_another() {
    let machine = machine(16, 1);
    swap_on_ram(&machine, 1024);
    let (own, other) = (machine.memory().create_space().unwrap(), machine.memory().create_space().unwrap());
    map_at(&own, GIB, PAGE, RW);
    let area = map_at(&other, GIB, PAGE, RW);
    let cpu = machine.vcpu(0).unwrap();
    cpu.program(&other).write_u64(area, 1).unwrap();
    let spaces = machine.memory().spaces();
    let head = other.pin_page_fast(area, Access::Read).unwrap().pfn();
    assert!(spaces.frames().known(head).try_get(), "the page is there");
    let guard = spaces.frames().try_lock_folio_long(head).unwrap();
    let mut batch = UnmapBatch::new(spaces);
    spaces.swap().add_folio(head, 0).unwrap();
    assert_eq!(spaces.unmap_to_swap(head, &mut batch), Unmapped::All);
    drop(other);
    assert_eq!(spaces.count(), 2);
    own.for_each_mapping(|_| batch.flush());
    assert_eq!(spaces.count(), 1);
    drop(guard);
    spaces.leave_swap_cache(head);
    spaces.let_isolated_go(head);
    drop(own);
    assert_audit(&machine);
}

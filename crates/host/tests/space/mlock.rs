//! Folios that one program locks while another maps them too: after munlock they can be reclaimed like
//! others.

use crate::common::*;
#[cfg(debug_assertions)]
use crate::{pageout_breaks::with_folios, short_pins::machine::after_each_hold};
#[cfg(debug_assertions)]
use std::{cell::Cell, rc::Rc};

/// Pages on the unevictable list.
fn unevictable(machine: &Machine) -> u64 {
    let mut text = String::new();
    vmstat(machine.memory(), &mut text).unwrap();
    text.lines().find_map(|line| line.strip_prefix("nr_unevictable ")).unwrap().parse().unwrap()
}

/// Ways in which a program's mapping loses a folio, or pages of one: how many of 512 it concerns, and what
/// the program does. Without that it exits.
type Way = (&'static str, u64, Option<fn(&HostSpace<'_>, &Vcpu, VirtAddr)>);

const WAYS: [Way; 8] = [
    ("exit", 512, None),
    ("munmap", 512, Some(|child, _, area| child.munmap(area, MIB2).unwrap())),
    ("munmap of a page", 1, Some(|child, _, area| child.munmap(page(area, 9), PAGE).unwrap())),
    ("a mapping over a part", 64, Some(|child, _, area| _ = map_at(child, area.0, 64 * PAGE, RW))),
    (
        "mremap that shrinks",
        256,
        Some(|child, _, area| {
            child.mremap(area, MIB2, MIB2 / 2, RemapFlags::empty(), VirtAddr(0)).unwrap();
        }),
    ),
    (
        "DONTNEED_LOCKED",
        16,
        Some(|child, _, area| child.madvise(area, 16 * PAGE, Advice::DontNeedLocked).unwrap()),
    ),
    (
        "the right to write, by which locked pages are copied",
        512,
        Some(|child, _, area| {
            child.mprotect(area, MIB2, RW, false).unwrap();
            // The copies.
            child.munlock(area, MIB2).unwrap();
        }),
    ),
    (
        "a write to one of those that are locked as they come",
        1,
        Some(|child, cpu, area| {
            child.mlock(area, MIB2, true).unwrap();
            child.mprotect(area, MIB2, RW, false).unwrap();
            write(cpu, child, page(area, 9), 1);
            child.munlock(page(area, 9), PAGE).unwrap();
        }),
    ),
];

/// The child, unless it exits.
fn go<'m>(
    way: Option<fn(&HostSpace<'_>, &Vcpu, VirtAddr)>,
    child: HostSpace<'m>,
    cpu: &Vcpu,
    area: VirtAddr,
) -> Option<HostSpace<'m>> {
    way.map(|act| {
        act(&child, cpu, area);
        child
    })
}

/// A child that may only read what its parent has, and locks it.
fn locking_child<'m>(space: &HostSpace<'m>, area: VirtAddr) -> HostSpace<'m> {
    let child = space.fork().unwrap();
    child.mprotect(area, MIB2, READ, false).unwrap();
    child.mlock(area, MIB2, false).unwrap();
    child
}

/// As on Linux: an unmap of a part of a locked mapping unlocks the large folio; its pages of zeros are freed
/// when it is split then.
#[test]
fn a_large_folio_is_unlocked_when_a_part_leaves_a_locked_mapping() {
    for (name, _, way) in WAYS {
        let machine = swapping(32, 1, 1024);
        let (cpu, space, area) = mapped(&machine, GIB, MIB2);
        space.madvise(area, MIB2, Advice::HugePage).unwrap();
        fill(&cpu, &space, area, 0..8, 100);
        let child = locking_child(&space, area);
        assert_eq!(unevictable(&machine), 512);
        assert_audit(&machine);
        let _child = go(way, child, &cpu, area);
        assert_audit(&machine);
        assert_eq!(unevictable(&machine), 0, "{name}");
        space.split_folio(area, Order::ZERO).unwrap();
        assert_eq!(zeros(&space, area), 504, "{name}");
        assert_filled(&cpu, &space, area, 0..8, 100);
    }
}

#[test]
fn a_page_is_unlocked_when_it_leaves_a_locked_mapping() {
    for (name, pages, way) in WAYS {
        let machine = swapping(32, 1, 1024);
        let (cpu, space, area) = filled(&machine, 512, 100);
        let child = locking_child(&space, area);
        assert_eq!(unevictable(&machine), 512);
        assert_audit(&machine);
        let _child = go(way, child, &cpu, area);
        assert_audit(&machine);
        assert_eq!(unevictable(&machine), 512 - pages, "{name}");
        // No other process has them any more.
        space.madvise(area, MIB2, Advice::PageOut).unwrap();
        assert_eq!(space.figures().swapped, pages * PAGE, "{name}");
        assert_filled(&cpu, &space, area, 0..512, 100);
    }
}

#[test]
fn pages_that_a_locked_mapping_collapses_are_unlocked_for_others() {
    let machine = swapping(32, 1, 1024);
    let (cpu, space, area) = filled(&machine, 512, 100);
    let child = locking_child(&space, area);
    child.madvise(area, MIB2, Advice::Collapse).unwrap();
    assert_eq!(unevictable(&machine), 512, "the new folio is locked");
    assert_audit(&machine);
    space.madvise(area, MIB2, Advice::PageOut).unwrap();
    assert_eq!((space.figures().swapped, child.figures().resident), (MIB2, MIB2));
    assert_eq!(read(&cpu, &child, page(area, 511)), 611);
    assert_filled(&cpu, &space, area, 0..512, 100);
}

/// MREMAP_DONTUNMAP of a part of a locked mapping: as on Linux none of it is locked any more, and the pages
/// that stayed in it can be reclaimed.
#[test]
fn the_rest_of_a_partly_moved_locked_mapping_is_unlocked() {
    let machine = swapping(16, 1, 64);
    let (cpu, space, area) = filled(&machine, 8, 100);
    space.mlock(area, 8 * PAGE, false).unwrap();
    let flags = MOVE | RemapFlags::DONTUNMAP;
    let target = VirtAddr(2 * GIB);
    space.mremap(page(area, 6), 2 * PAGE, 2 * PAGE, flags, target).unwrap();
    assert_eq!(unevictable(&machine), 2, "what was moved stays locked");
    assert_audit(&machine);
    space.madvise(area, 6 * PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.figures().swapped, 6 * PAGE);
    assert_filled(&cpu, &space, area, 0..6, 100);
    assert_filled(&cpu, &space, target, 0..2, 106);
}

/// A large folio of which a program locked a page stays, as on Linux, but is not on the unevictable list: the
/// rest of it can be reclaimed once it is split.
#[test]
fn a_partly_locked_folio_is_not_unevictable() {
    let machine = swapping(16, 1, 1024);
    let (cpu, space, area) = mapped(&machine, GIB, MIB2);
    space.madvise(area, MIB2, Advice::HugePage).unwrap();
    fill(&cpu, &space, area, 0..512, 100);
    space.mlock(page(area, 9), PAGE, false).unwrap();
    for _ in 0..4 {
        machine.memory().reclaim(MemcgId::ROOT, 512);
        assert_eq!((space.figures().resident, unevictable(&machine)), (MIB2, 0));
    }
    space.split_folio(area, Order::ZERO).unwrap();
    assert_audit(&machine);
    reclaim(&machine, 4, 512);
    assert_eq!((space.figures().resident, unevictable(&machine)), (PAGE, 1));
    assert_filled(&cpu, &space, area, 0..512, 100);
}

/// The counters are those that a program on Linux sees.
#[test]
fn locking_and_unlocking_is_counted() {
    let machine = swapping(32, 1, 1024);
    let (cpu, space) = cpu_and_space(&machine);
    let counts = || {
        [
            VmEvent::UnevictablePgsMlocked,
            VmEvent::UnevictablePgsCulled,
            VmEvent::UnevictablePgsMunlocked,
            VmEvent::UnevictablePgsRescued,
        ]
        .map(|event| count(&machine, event))
    };
    let area = map_filled(&cpu, &space, GIB, 64, 100);
    for round in 1..=3 {
        space.mlock(area, 64 * PAGE, false).unwrap();
        space.mlock(area, 64 * PAGE, false).unwrap();
        assert_eq!(counts(), [64 * round, 64 * round, 64 * (round - 1), 64 * (round - 1)]);
        space.munlock(area, 64 * PAGE).unwrap();
        assert_eq!(counts(), [64 * round; 4]);
    }
    space.mlock(area, 64 * PAGE, false).unwrap();
    space.munmap(area, 64 * PAGE).unwrap();
    assert_eq!(counts(), [256; 4]);
}

/// How often tables are locked when everything is unlocked, where a page in every other table was locked.
#[cfg(debug_assertions)]
fn holds_to_unlock(tables: u64) -> u64 {
    let memory = with_folios(1);
    let space = memory.create_space().unwrap();
    let area = map_at(&space, GIB, tables * MIB2, RW);
    for nth in 0..tables {
        let start = VirtAddr(area.0 + nth * MIB2);
        space.fault(start, Access::Write).unwrap();
        if nth % 2 > 0 {
            space.mlock(start, PAGE, true).unwrap();
        }
    }
    let holds = Rc::new(Cell::new(0));
    let counted = Rc::clone(&holds);
    after_each_hold(LockClass::PteTable, move || counted.set(counted.get() + 1), || space.munlockall());
    assert_eq!((space.figures().mappings, space.figures().locked), (1, 0));
    holds.get()
}

/// Hazard: each mapping that is unlocked merges with those before it, and all of them are walked again. A
/// program with many mappings keeps its mmap lock for minutes.
#[cfg(debug_assertions)]
#[test]
fn unlocking_everything_walks_no_mapping_twice() {
    let [few, many] = [16, 32].map(holds_to_unlock);
    assert!(0 < few && many <= 2 * few, "{few} for 16 tables, {many} for 32");
}

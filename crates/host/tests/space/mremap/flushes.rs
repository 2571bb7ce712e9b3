//! One shootdown a call, after which the old place is nowhere in a TLB; and what may run beside a move.

use super::{BASE, at, machine_by, new_tables, small, some_pages, table_frames};
use crate::common::*;
use quire_frame::Kind;
use std::sync::atomic::{AtomicBool, Ordering};

/// Shootdowns that `action` sends.
fn shootdowns(machine: &Machine, action: impl FnOnce()) -> u64 {
    let before = count(machine, VmEvent::NrTlbRemoteFlush);
    action();
    count(machine, VmEvent::NrTlbRemoteFlush) - before
}

/// One call, one shootdown: several mappings with holes between them, with a source that stays mapped. Pages
/// that are replaced are flushed before others come to their place.
#[test]
fn a_move_sends_one_shootdown() {
    for technique in RemapTechnique::ALL {
        for (pages, offset) in [(1, 0), (30, 0), (600, 0), (2048, 0), (2048, 3)] {
            for (over, several) in [(false, false), (true, false), (false, true), (true, true)] {
                let machine = small(64, 3, technique);
                let space = create_space(&machine).audited(&machine);
                let cpus = [0, 1, 2].map(|number| machine.vcpu(number).unwrap());
                let (to, len) = (at(BASE, 8 * MIB2 + offset * PAGE), pages * PAGE);
                map_at(&space, BASE.0, len, RW);
                if several && pages > 20 {
                    space.mprotect(page(BASE, 5), PAGE, RW | Protection::EXECUTE, false).unwrap();
                    space.munmap(page(BASE, 11), 7 * PAGE).unwrap();
                }
                if over {
                    map_at(&space, to.0, len, RW);
                }
                for cpu in &cpus[..2] {
                    fill(cpu, &space, BASE, 0..pages.min(5), 1);
                    cpu.program(&space).write_u64(page(BASE, pages - 1), pages).unwrap();
                    if over {
                        cpu.program(&space).write_u64(to, 9).unwrap();
                        cpu.program(&space).write_u64(page(to, pages - 1), 9).unwrap();
                    }
                }
                let sent = shootdowns(&machine, || {
                    cpus[1].run(|| space.mremap(BASE, len, len, MOVE, to)).unwrap();
                });
                // The first and the last page, of two mappings if there are several.
                let replaced = if several && pages > 20 { 2 } else { 1 } * u64::from(over);
                assert_eq!(sent, 1 + replaced, "{technique:?}, {pages}, over {over}, several {several}");
                for cpu in &cpus {
                    assert_eq!(cpu.program(&space).read_u64(BASE), Err(NOT_MAPPED));
                    assert_eq!(cpu.program(&space).read_u64(to), Ok(1));
                    assert_eq!(cpu.program(&space).read_u64(page(to, pages - 1)), Ok(pages));
                }
            }
        }
    }
}

/// A call that unmaps at the target and shrinks the source leaves what lies between the two alone, though
/// both wait for the flush: shared pages, more than a gather holds.
#[test]
fn a_neighbour_between_two_removed_parts_stays() {
    for target_below in [true, false] {
        let machine = small(32, 2, RemapTechnique::Puds);
        let (cpu, space) = cpu_and_space(&machine);
        let (source, target) = if target_below { (at(BASE, MIB2), BASE) } else { (BASE, at(BASE, 2 * MIB2)) };
        for start in [source, target] {
            map_filled(&cpu, &space, start.0, 400, start.0);
        }
        let child = space.fork().unwrap();
        cpu.run(|| space.mremap(source, 300 * PAGE, 100 * PAGE, MOVE, target)).unwrap();
        assert_filled(&cpu, &space, target, 0..100, source.0);
        assert_filled(&cpu, &space, target, 100..400, target.0);
        assert_filled(&cpu, &space, source, 300..400, source.0);
        assert_audit(&machine);
        assert_filled(&cpu, &child, source, 0..400, source.0);
    }
}

/// The same where each of the two parts begins and ends in the middle of a PMD leaf.
#[test]
fn both_removed_parts_split_pmd_leaves() {
    for shared in [false, true] {
        let machine =
            machine_by(64, 2, RemapTechnique::Puds, TablesTechnique::Free, OrderSet::of(Order::PMD));
        let (cpu, space) = cpu_and_space(&machine);
        let (source, target) = (at(BASE, 16 * MIB2), BASE);
        for start in [source, target] {
            map_at(&space, start.0, 4 * MIB2, RW);
            fill(&cpu, &space, start, some_pages(start, 4 * MIB2), start.0);
        }
        assert_eq!(pmd_mapped(&machine), 8);
        let child = shared.then(|| space.fork().unwrap());
        // Of the source 1 MiB to 7 MiB, shrunk by 3 MiB; of the target 1 MiB to 3 MiB.
        let half = MIB2 / 2;
        cpu.run(|| space.mremap(at(source, half), 6 * half, 2 * half, MOVE, at(target, half))).unwrap();
        for at_page in some_pages(source, 4 * MIB2) {
            let (addr, nth) = (page(source, at_page), at_page * PAGE);
            let value = |start: VirtAddr| Ok(start.0 + at_page);
            let gone = (half..7 * half).contains(&nth);
            let moved = (half..3 * half).contains(&nth);
            assert_eq!(
                cpu.program(&space).read_u64(addr),
                if gone { Err(NOT_MAPPED) } else { value(source) }
            );
            let there = at(target, nth);
            assert_eq!(cpu.program(&space).read_u64(there), value(if moved { source } else { target }));
            if let Some(child) = &child {
                assert_eq!(cpu.program(child).read_u64(addr), value(source));
            }
        }
    }
}

/// A PMD table that moved has its new address, so that a flush of what a leaf in it maps is right.
#[test]
fn a_leaf_in_a_moved_pmd_table_is_flushed_at_its_new_place() {
    let machine = machine_by(64, 2, RemapTechnique::Puds, TablesTechnique::Free, OrderSet::of(Order::PMD));
    let space = create_space(&machine).audited(&machine);
    let cpus = [0, 1].map(|number| machine.vcpu(number).unwrap());
    let to = at(BASE, 1 << 40);
    map_at(&space, BASE.0, 2 * MIB2, RW);
    cpus[0].program(&space).write_u64(BASE, 7).unwrap();
    let tables = table_frames(&machine);
    cpus[0].run(|| space.mremap(BASE, 2 * MIB2, 2 * MIB2, MOVE, to)).unwrap();
    assert_eq!(new_tables(&machine, &tables), 1, "the PUD table of the target");
    for cpu in &cpus {
        assert_eq!(cpu.program(&space).read_u64(page(to, 5)), Ok(0));
        cpu.program(&space).write_u64(page(to, 6), 8).unwrap();
    }
    // Split as a whole: the flush is of the range that the table records for the leaf.
    let flushed = shootdowns(&machine, || {
        cpus[0].run(|| space.madvise(at(to, 0), MIB2, Advice::DontNeed)).unwrap();
    });
    assert_eq!(flushed, 1);
    assert_eq!(cpus[1].program(&space).read_u64(page(to, 6)), Ok(0), "a translation of what is gone");
    cpus[0].program(&space).write_u64(page(to, 6), 8).unwrap();
    cpus[1].program(&space).write_u64(page(to, 6), 8).unwrap();
    let child = space.fork().unwrap();
    cpus[0].run(|| space.madvise(page(to, 5), PAGE, Advice::DontNeed)).unwrap();
    cpus[0].program(&space).write_u64(page(to, 6), 9).unwrap();
    assert_eq!(cpus[1].program(&space).read_u64(page(to, 6)), Ok(9));
    cpus[1].program(&space).write_u64(page(to, 5), 10).unwrap();
    assert_eq!(cpus[0].program(&space).read_u64(page(to, 5)), Ok(10));
    assert_eq!(cpus[1].program(&child).read_u64(page(to, 6)), Ok(8));
}

/// A fault in another mapping does not wait for a move: it completes while the move waits for an rmap walk,
/// with the mmap lock and the locks of its mappings.
#[test]
fn a_fault_elsewhere_is_done_while_a_move_waits() {
    let machine = small(16, 3, RemapTechnique::Puds);
    let space = create_space(&machine).audited(&machine);
    let (other, to) = (at(BASE, MIB2 / 2), at(BASE, 1 << 40));
    map_at(&space, BASE.0, MIB2 / 2, RW);
    map_at(&space, other.0, MIB2, RW | Protection::EXECUTE);
    {
        let cpu = machine.vcpu(2).unwrap();
        cpu.program(&space).write_u64(BASE, 7).unwrap();
        // The first private page of a mapping takes the mmap lock.
        cpu.program(&space).write_u64(page(other, 511), 1).unwrap();
    }
    let moving = VirtRange::new(BASE, page(BASE, 1));
    let mut found = None;
    machine.memory().frames().audit().for_each_frame(|pfn, frame| {
        if frame.kind() == Kind::Anonymous && frame.as_folio().index() == moving.start().0 / PAGE {
            found = Some(pfn);
        }
    });
    let (walking, done, moved) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
    let tables = space.figures().page_tables;
    let told = |fact: &AtomicBool| within_reason(|| fact.load(Ordering::SeqCst));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            machine.memory().spaces().rmap().for_each_map(found.unwrap(), |_, addr| {
                assert_eq!(addr, BASE);
                walking.store(true, Ordering::SeqCst);
                assert!(told(&done), "the faults wait for the move");
                assert!(!moved.load(Ordering::SeqCst), "the move did not wait");
            });
        });
        scope.spawn(|| {
            let cpu = machine.vcpu(1).unwrap();
            assert!(told(&walking));
            cpu.run(|| space.mremap(BASE, MIB2 / 2, MIB2 / 2, MOVE, to)).unwrap();
            moved.store(true, Ordering::SeqCst);
        });
        scope.spawn(|| {
            let cpu = machine.vcpu(2).unwrap();
            // The tables of the target are made with all locks held except Rmap.
            assert!(within_reason(|| space.figures().page_tables > tables));
            fill(&cpu, &space, other, 256..511, 0);
            done.store(true, Ordering::SeqCst);
        });
    });
    let cpu = machine.vcpu(0).unwrap();
    assert_eq!(cpu.program(&space).read_u64(to), Ok(7));
}

/// While the old place of what moved is not flushed yet, every flush of the space is one of all addresses: an
/// unmap of a page at its new place does not know the old one. Here another flush comes while that of the
/// move waits.
#[test]
fn a_flush_beside_a_move_is_one_of_all_addresses() {
    let machine = small(16, 3, RemapTechnique::Puds);
    let space = create_space(&machine).audited(&machine);
    let (other, to) = (at(BASE, MIB2), at(BASE, 8 * MIB2));
    map_at(&space, BASE.0, PAGE, RW);
    map_at(&space, other.0, MIB2, RW);
    // Each CPU runs the space, so none flushes when it switches to it.
    for number in [0, 1, 2] {
        let cpu = machine.vcpu(number).unwrap();
        let program = cpu.program(&space);
        program.write_u64(page(other, 9), 1).unwrap();
        // The zero page, which a write replaces.
        assert_eq!([0, 1].map(|nth| program.read_u64(page(other, nth))), [Ok(0), Ok(0)]);
    }
    let flushes = || {
        let counters = machine.memory().platform().counters();
        (counters.flushes_range, counters.flushes_space)
    };
    let (ranges, spaces) = flushes();
    let inside = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let cpu = machine.vcpu(0).unwrap();
            cpu.program(&space).inside(|guest| {
                guest.write_u64(BASE, 8).unwrap();
                inside.store(true, Ordering::SeqCst);
                // It acknowledges neither flush before both are posted.
                assert!(within_reason(|| flushes().0 + flushes().1 == ranges + spaces + 2));
            });
        });
        scope.spawn(|| {
            let cpu = machine.vcpu(1).unwrap();
            assert!(within_reason(|| inside.load(Ordering::SeqCst)));
            cpu.run(|| space.mremap(BASE, PAGE, PAGE, MOVE, to)).unwrap();
        });
        scope.spawn(|| {
            let cpu = machine.vcpu(2).unwrap();
            assert!(within_reason(|| flushes() == (ranges + 1, spaces)));
            cpu.program(&space).write_u64(other, 2).unwrap();
        });
    });
    assert_eq!(flushes(), (ranges + 1, spaces + 1));
    let cpu = machine.vcpu(0).unwrap();
    assert_eq!(cpu.program(&space).read_u64(to), Ok(8));
    cpu.program(&space).write_u64(page(other, 1), 3).unwrap();
    assert_eq!(flushes(), (ranges + 2, spaces + 1), "the move is over");
}

//! Directed tests of the hazards in docs/hazards.md.

use crate::common::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// An address at the border of every level of tables.
const BORDER: u64 = 1 << 39;

/// The page so many behind the border.
fn at(pages: u64) -> VirtAddr {
    VirtAddr(BORDER + pages * PAGE)
}

/// Runs `turn` on CPU 1, with the number of each turn, a hundred times and for as long as `action` runs on
/// CPU 0.
fn beside<'m>(
    machine: &'m Machine,
    space: &HostSpace<'m>,
    mut turn: impl FnMut(&HostProgram<'_, 'm>, u64) + Send,
    action: impl FnOnce(&Vcpu),
) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let cpu = machine.vcpu(1).unwrap();
            let program = cpu.program(space);
            let goes_on = |&nth: &u64| nth < 100 || !done.load(Ordering::Relaxed);
            (0..).take_while(goes_on).for_each(|nth| turn(&program, nth));
        });
        action(&machine.vcpu(0).unwrap());
        done.store(true, Ordering::Relaxed);
    });
}

/// Every module: a plain store to a PTE loses an A/D bit that the MMU set meanwhile.
#[test]
fn protecting_back_and_forth_loses_no_dirty_bit_and_no_data() {
    let machine = machine(16, 2);
    let space = create_space(&machine).audited(&machine);
    map_at(&space, BORDER, 4 * PAGE, RW);
    let mut last = [0; 4];
    let turn = |program: &HostProgram<'_, '_>, turn: u64| {
        let (last, addr) = (&mut last[turn as usize % 4], at(turn % 4));
        match program.write_u64(addr, turn) {
            Ok(()) => *last = turn,
            Err(error) => assert_eq!(error, DENIED),
        }
        assert_eq!(program.read_u64(addr), Ok(*last), "a write was lost");
    };
    beside(&machine, &space, turn, |cpu| {
        for round in 0..300 {
            let protection = if round % 2 == 0 { READ } else { RW };
            cpu.run(|| space.mprotect(at(0), 4 * PAGE, protection, false)).unwrap();
        }
    });
}

/// Every module: publishing a table entry before the table, or the page, is filled.
#[test]
fn a_new_page_reads_zeros_or_what_was_written() {
    let machine = machine(32, 2);
    let space = create_space(&machine);
    // Each round takes pages that held other data the round before.
    for round in 1..20 {
        let addr = BORDER - 8 * PAGE;
        map_at(&space, addr, 16 * PAGE, RW);
        on_cpus(&machine, 2, |number, cpu| {
            let program = cpu.program(&space);
            for at in 0..16 {
                let addr = VirtAddr(addr + at * PAGE);
                let seen = program.read_u64(addr).unwrap();
                assert!(seen == 0 || seen >> 8 == round, "{seen:#x} of another life in round {round}");
                program.write_u64(addr, round << 8 | number as u64).unwrap();
                assert_eq!(program.read_u64(VirtAddr(addr.0 + 2048)), Ok(0));
                program.write_u64(VirtAddr(addr.0 + 4000), u64::MAX).unwrap();
            }
        });
        space.munmap(VirtAddr(addr), 16 * PAGE).unwrap();
        assert_audit(&machine);
    }
}

/// Every module: frames or tables are freed before the TLB shootdown is acknowledged. Paranoid mode panics at
/// the first access through a translation to a free frame.
#[test]
fn frames_are_not_free_while_another_cpu_can_reach_them() {
    let machine = machine(16, 2);
    let space = create_space(&machine).audited(&machine);
    map_at(&space, BORDER, 8 * PAGE, RW);
    let turn = |program: &HostProgram<'_, '_>, turn: u64| {
        program.inside(|guest| {
            for _ in 0..50 {
                let written = guest.write_u64(at(turn % 8), turn);
                assert!(matches!(written, Ok(()) | Err(NOT_MAPPED)), "{written:?}");
            }
        });
    };
    beside(&machine, &space, turn, |cpu| {
        for round in 0..300u64 {
            cpu.run(|| match round % 3 {
                0 => space.madvise(at(0), 8 * PAGE, Advice::DontNeed).unwrap(),
                1 => space.munmap(at(0), 8 * PAGE).unwrap(),
                _ => _ = map_at(&space, BORDER, 8 * PAGE, RW),
            });
        }
    });
}

/// Gather: a run that passes the end of the PTE table, of the PMD or of the VMA.
#[test]
fn zapping_stops_at_the_end_of_its_range_at_every_border() {
    let machine = machine(32, 1);
    let (cpu, space) = cpu_and_space(&machine);
    for border in [BORDER + MIB2, BORDER + GIB, BORDER] {
        let base = border - 8 * PAGE;
        map_at(&space, base, 16 * PAGE, RW);
        for (from, to) in [(0, 8), (8, 16), (7, 9), (0, 16), (3, 4), (15, 16)] {
            fill(&cpu, &space, VirtAddr(base), 0..16, 500);
            space.madvise(VirtAddr(base + from * PAGE), (to - from) * PAGE, Advice::DontNeed).unwrap();
            for at in 0..16 {
                let value = cpu.program(&space).read_u64(VirtAddr(base + at * PAGE));
                assert_eq!(value, Ok(if (from..to).contains(&at) { 0 } else { 500 + at }), "{from}..{to}");
            }
            assert_audit(&machine);
        }
        fill(&cpu, &space, VirtAddr(base), 0..16, 900);
        space.munmap(VirtAddr(border - PAGE), 2 * PAGE).unwrap();
        assert_filled(&cpu, &space, VirtAddr(base), 0..7, 900);
        assert_filled(&cpu, &space, VirtAddr(border + PAGE), 0..7, 909);
        assert_eq!(cpu.program(&space).read_u64(VirtAddr(border)), Err(NOT_MAPPED));
        assert_audit(&machine);
    }
}

/// Gather: thousands of pages, budget by pages; and the run takes each entry's own bits.
#[test]
fn a_large_unmapping_gives_every_frame_back() {
    let machine = machine(64, 1);
    let (cpu, space) = cpu_and_space(&machine);
    // Fills the caches, and is too far away to share a table.
    map_at(&space, 8 * BORDER, PAGE, RW);
    let before = in_use(&machine);
    for _ in 0..3 {
        map_at(&space, BORDER - 8 * MIB2, 16 * MIB2, RW);
        fill(&cpu, &space, VirtAddr(BORDER - 8 * MIB2), 0..16 * 512, 1);
        space.munmap(VirtAddr(BORDER - 8 * MIB2), 16 * MIB2).unwrap();
        assert_eq!(space.figures().page_tables, 0);
        in_use(&machine);
        assert_eq!(in_use(&machine), before);
        assert_audit(&machine);
    }
}

/// Tables: a table that still has entries of a neighbour must not be freed with an unmapped range.
#[test]
fn tables_are_freed_only_when_no_neighbour_needs_them() {
    let machine = machine(16, 1);
    let (cpu, space, _) = mapped(&machine, BORDER, PAGE);
    map_at(&space, BORDER + PAGE, PAGE, READ);
    map_at(&space, BORDER + MIB2, PAGE, RW);
    let program = cpu.program(&space);
    program.write_u64(VirtAddr(BORDER), 5).unwrap();
    program.touch(VirtAddr(BORDER + PAGE), Access::Read).unwrap();
    program.write_u64(VirtAddr(BORDER + MIB2), 6).unwrap();
    assert_eq!(space.figures().page_tables, 4 * PAGE);
    space.munmap(VirtAddr(BORDER), PAGE).unwrap();
    assert_audit(&machine);
    assert_eq!(space.figures().page_tables, 4 * PAGE);
    space.munmap(VirtAddr(BORDER + PAGE), PAGE).unwrap();
    assert_eq!(space.figures().page_tables, 3 * PAGE);
    assert_eq!(program.read_u64(VirtAddr(BORDER + MIB2)), Ok(6));
    space.munmap(VirtAddr(BORDER + MIB2), PAGE).unwrap();
    assert_eq!(space.figures().page_tables, 0);
}

/// Tables: lockless walkers read a table, or a VMA, that is being freed. What `munmap` removes waits for
/// them.
#[test]
fn unmapped_tables_wait_for_earlier_epoch_readers() {
    let machine = machine(16, 1);
    let (cpu, space, addr) = mapped(&machine, BORDER, PAGE);
    cpu.program(&space).write_u64(addr, 1).unwrap();
    let tables = space.figures().page_tables / PAGE;
    assert_eq!(tables, 3);
    let frames = machine.memory().frames();
    let waiting = || {
        let mappings =
            quire_slab::cache_reports(frames).find(|cache| cache.name == "vm_area_struct").unwrap();
        (frames.reports().totals().limbo_blocks, mappings.retired)
    };
    in_use(&machine);
    assert_eq!(waiting(), (0, 0));
    let pin = machine.memory().platform().pin();
    let reader = frames.epoch().enter(&pin);
    space.munmap(addr, PAGE).unwrap();
    assert_eq!(waiting(), (tables, 1));
    drop(reader);
    drop(pin);
    in_use(&machine);
    assert_eq!(waiting(), (0, 0));
}

/// Tables: the PTE lock is dropped in a zap, the table is refilled, the non-empty table is freed. Faults
/// refill while another CPU drops, and unmaps next to it.
#[test]
fn a_table_that_is_refilled_is_not_freed() {
    let machine = machine(16, 2);
    let space = create_space(&machine).audited(&machine);
    map_at(&space, BORDER, 4 * PAGE, RW);
    // The mapping itself is always there.
    let turn = |program: &HostProgram<'_, '_>, turn| program.write_u64(at(turn % 4), turn).unwrap();
    beside(&machine, &space, turn, |cpu| {
        for round in 0..200 {
            cpu.run(|| {
                space.madvise(at(0), 4 * PAGE, Advice::DontNeed).unwrap();
                let neighbour = map_at(&space, at(8 + round % 4).0, PAGE, RW);
                space.fault(neighbour, Access::Write).unwrap();
                space.munmap(neighbour, PAGE).unwrap();
            });
        }
    });
}

/// mremap: a destination with leftover empty tables: they are used.
#[test]
fn a_destination_with_leftover_tables_takes_a_move() {
    let machine = machine(32, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let to = BORDER + GIB;
    // A neighbour keeps the upper tables; dropped pages leave an empty PTE table.
    map_filled(&cpu, &space, to, 1024, 7);
    space.madvise(VirtAddr(to), 2 * MIB2, Advice::DontNeed).unwrap();
    map_filled(&cpu, &space, BORDER, 1024, 3000);
    space.mremap(VirtAddr(BORDER), 2 * MIB2, 2 * MIB2, MOVE, VirtAddr(to)).unwrap();
    assert_filled(&cpu, &space, VirtAddr(to), 0..1024, 3000);
}

/// mremap: aligning the start down over a neighbour destroys its data; a run past the end of the table or VMA
/// does too.
#[test]
fn a_move_leaves_the_neighbours_of_both_ends_alone() {
    for (from_page, to_page, pages) in
        [(3, 3, 509), (1, 1, 512), (0, 0, 512), (5, 9, 700), (511, 0, 2), (1, 0, 1024), (0, 1, 513)]
    {
        let machine = machine(32, 1);
        let (cpu, space) = cpu_and_space(&machine);
        // Three tables' worth of neighbours on both sides, then the middle of one moves into the middle of
        // the other.
        let all = 4 * MIB2 / PAGE;
        let source = map_filled(&cpu, &space, BORDER - 2 * MIB2, all, 10_000);
        let target = map_filled(&cpu, &space, BORDER + GIB - 2 * MIB2, all, 20_000);
        let (from, to) = (512 + from_page, 512 + to_page);
        let (moved, target_at) = (page(source, from), page(target, to));
        let result = space.mremap(moved, pages * PAGE, pages * PAGE, MOVE, target_at);
        assert_eq!(result, Ok(target_at));
        assert_filled(&cpu, &space, source, (0..from).chain(from + pages..all), 10_000);
        assert_filled(&cpu, &space, target, (0..to).chain(to + pages..all), 20_000);
        assert_filled(&cpu, &space, target_at, 0..pages, 10_000 + from);
        assert_eq!(cpu.program(&space).read_u64(moved), Err(NOT_MAPPED));
    }
}

/// mremap: overlapping source and destination; destination wraps; size zero; the same address.
#[test]
fn invalid_moves_are_refused_whole() {
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    map_filled(&cpu, &space, BORDER, 8, 1);
    let before = mappings(&space);
    let (from, len) = (VirtAddr(BORDER), 8 * PAGE);
    for (old, new, to) in [
        (len, len, BORDER),
        (len, len, BORDER + 7 * PAGE),
        (len, len, BORDER - 7 * PAGE),
        (len, 2 * len, BORDER - 15 * PAGE),
        (len, len, u64::MAX - PAGE + 1),
        (len, len, (1 << 47) - 8 * PAGE),
        (len, 0, BORDER + GIB),
        (0, len, BORDER + GIB),
        (len, len, BORDER + GIB + 1),
    ] {
        let result = space.mremap(from, old, new, MOVE, VirtAddr(to));
        assert_eq!(result.map_err(Error::errno), Err(Errno::EINVAL), "{old:#x} {new:#x} {to:#x}");
    }
    assert_eq!(mappings(&space), before);
    assert_filled(&cpu, &space, VirtAddr(BORDER), 0..8, 1);
}

/// mremap: a batch that spreads the first PTE's write bit over a run.
#[test]
fn each_moved_page_keeps_its_own_bits() {
    let machine = machine(16, 1);
    let (cpu, space, _) = mapped(&machine, BORDER, 8 * PAGE);
    let program = cpu.program(&space);
    program.write_u64(VirtAddr(BORDER), 1).unwrap();
    // The zero page stays what it is behind a written page, and in front of one.
    assert_eq!(program.read_u64(VirtAddr(BORDER + PAGE)), Ok(0));
    program.write_u64(VirtAddr(BORDER + 2 * PAGE), 3).unwrap();
    let to = VirtAddr(BORDER + GIB - PAGE);
    space.mremap(VirtAddr(BORDER), 8 * PAGE, 8 * PAGE, MOVE, to).unwrap();
    assert_audit(&machine);
    program.write_u64(page(to, 1), 2).unwrap();
    program.write_u64(page(to, 3), 4).unwrap();
    assert_eq!([0, 1, 2, 3, 4].map(|at| program.read_u64(page(to, at)).unwrap()), [1, 2, 3, 4, 0]);
    let other = create_space(&machine);
    map_at(&other, BORDER, PAGE, READ);
    assert_eq!(cpu.program(&other).read_u64(VirtAddr(BORDER)), Ok(0), "the zero page was written to");
}

/// mremap: TLB entries of the old range that outlive the move.
#[test]
fn translations_of_the_old_place_do_not_outlive_a_move() {
    let machine = machine(16, 2);
    let space = create_space(&machine).audited(&machine);
    let (here, there) = (VirtAddr(BORDER - 2 * PAGE), VirtAddr(BORDER + GIB - 2 * PAGE));
    map_at(&space, here.0, 4 * PAGE, RW);
    let turn = |program: &HostProgram<'_, '_>, turn: u64| {
        for place in [here, there] {
            let written = program.write_u64(page(place, turn % 4), turn);
            assert!(matches!(written, Ok(()) | Err(NOT_MAPPED)), "{written:?}");
        }
    };
    beside(&machine, &space, turn, |cpu| {
        let program = cpu.program(&space);
        for round in 0..200 {
            let (from, to) = if round % 2 == 0 { (here, there) } else { (there, here) };
            cpu.run(|| space.mremap(from, 4 * PAGE, 4 * PAGE, MOVE, to)).unwrap();
            for at in 0..4 {
                assert_eq!(program.read_u64(page(from, at)), Err(NOT_MAPPED));
                assert!(program.read_u64(page(to, at)).is_ok());
            }
        }
    });
}

/// Every module: state is relied on after a lock was dropped. Two threads grow one stack; the guard gap
/// holds.
#[test]
fn a_stack_grows_down_to_its_guard_gap_and_no_further() {
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let stack =
        MapRequest::anonymous(PAGE, RW).at(VirtAddr(BORDER + MIB2), MapFlags::FIXED | MapFlags::GROWSDOWN);
    space.mmap(&stack).unwrap();
    map_at(&space, BORDER, PAGE, RW);
    let program = cpu.program(&space);
    let gap = 256 * PAGE;
    let lowest = BORDER + PAGE + gap;
    assert_eq!(program.write_u64(VirtAddr(lowest - PAGE), 1), Err(NOT_MAPPED));
    assert_eq!(program.write_u64(VirtAddr(lowest), 1), Ok(()));
    assert_eq!(program.write_u64(VirtAddr(lowest - 8), 1), Err(NOT_MAPPED));
    assert_eq!(mappings(&space)[1].0, lowest);
    assert!(mappings(&space)[1].2.contains(VmFlags::GROWSDOWN));
    // A PROT_NONE neighbour does not stop it.
    space.mprotect(VirtAddr(BORDER), PAGE, NONE, false).unwrap();
    assert_eq!(program.write_u64(VirtAddr(lowest - PAGE), 1), Ok(()));
    // Only MAP_FIXED maps into the gap.
    let hint = MapRequest::anonymous(PAGE, RW).at(VirtAddr(BORDER + 2 * PAGE), MapFlags::empty());
    assert_ne!(space.mmap(&hint), Ok(VirtAddr(BORDER + 2 * PAGE)));
}

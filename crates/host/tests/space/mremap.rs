//! `mremap`: pages move in the largest pieces that fit, and nothing else moves along.

mod flushes;
mod random;

use crate::common::*;
use quire_frame::{FailPlan, Kind};
use std::collections::BTreeSet;

/// A border of all levels of tables.
const BASE: VirtAddr = VirtAddr(1 << 39);
const LEAVE: RemapFlags = RemapFlags::MAYMOVE.union(RemapFlags::DONTUNMAP);

/// A machine that moves by `mremap`, with folios of `sizes` wherever they fit.
fn machine_by(
    mib: u64,
    cpus: usize,
    mremap: RemapTechnique,
    tables: TablesTechnique,
    sizes: OrderSet,
) -> Machine {
    let setup = Setup::mib(mib).cpus(cpus).overcommit().folios(sizes);
    setup.with(|memory| (memory.techniques.mremap, memory.techniques.tables) = (mremap, tables)).build()
}

/// The same with small pages only.
fn small(mib: u64, cpus: usize, mremap: RemapTechnique) -> Machine {
    machine_by(mib, cpus, mremap, TablesTechnique::Free, OrderSet::EMPTY)
}

fn at(addr: VirtAddr, bytes: u64) -> VirtAddr {
    VirtAddr(addr.0 + bytes)
}

/// The frames that are tables.
fn table_frames(machine: &Machine) -> BTreeSet<u64> {
    let frames = machine.memory().frames();
    frames.limbo().reap_all(&machine.memory().platform().pin());
    let mut tables = BTreeSet::new();
    frames.audit().for_each_frame(|pfn, frame| {
        if frame.kind() == Kind::Table {
            tables.insert(pfn.0);
        }
    });
    tables
}

/// How many tables are not in `before`.
fn new_tables(machine: &Machine, before: &BTreeSet<u64>) -> usize {
    table_frames(machine).difference(before).count()
}

/// Pages of a range that are written to, by their numbers in it: around each border of a table, and some
/// between.
fn some_pages(start: VirtAddr, len: u64) -> impl Iterator<Item = u64> {
    let last = len / PAGE - 1;
    (0..=last).filter(move |&nth| {
        nth == 0 || nth == last || [0, 1, 200, 511].contains(&(page(start, nth).0 / PAGE % 512))
    })
}

#[test]
fn whole_tables_move_with_all_that_they_map() {
    for technique in RemapTechnique::ALL {
        for flags in [MOVE, LEAVE] {
            let machine = small(16, 2, technique);
            let (cpu, space) = cpu_and_space(&machine);
            let to = at(BASE, GIB / 2);
            map_at(&space, BASE.0, 4 * MIB2, RW);
            fill(&cpu, &space, BASE, some_pages(BASE, 4 * MIB2), 1);
            let (tables, before) = (table_frames(&machine), space.figures());
            cpu.run(|| space.mremap(BASE, 4 * MIB2, 4 * MIB2, flags, to)).unwrap();
            let new = new_tables(&machine, &tables);
            assert_eq!(new, if technique == RemapTechnique::Ptes { 4 } else { 0 }, "{technique:?}");
            let after = space.figures();
            assert_eq!((after.page_tables, after.resident), (before.page_tables, before.resident));
            assert_filled(&cpu, &space, to, some_pages(BASE, 4 * MIB2), 1);
            let old = if flags == LEAVE { Ok(0) } else { Err(NOT_MAPPED) };
            assert_eq!(cpu.program(&space).read_u64(BASE), old);
        }
    }
}

/// A kept empty table does not move: else each move would leave one behind where no call looks for it.
#[test]
fn empty_tables_do_not_move() {
    for technique in RemapTechnique::ALL {
        let machine = small(16, 1, technique);
        let (cpu, space) = cpu_and_space(&machine);
        for round in 1..5 {
            let to = at(BASE, round * 8 * GIB);
            map_at(&space, BASE.0, MIB2, RW);
            cpu.program(&space).write_u64(BASE, 1).unwrap();
            cpu.run(|| space.madvise(BASE, PAGE, Advice::DontNeed)).unwrap();
            assert_eq!(space.figures().page_tables, 3 * PAGE);
            cpu.run(|| space.mremap(BASE, MIB2, MIB2, MOVE, to)).unwrap();
            // The table that covers both places is kept in its turn.
            assert!(space.figures().page_tables <= PAGE, "{technique:?}, round {round}");
            assert_eq!(cpu.program(&space).read_u64(to), Ok(0));
            cpu.run(|| space.munmap(to, MIB2)).unwrap();
            assert_audit(&machine);
        }
    }
}

/// By a PMD table, by its PTE tables where it does not fit as a whole, and the entry of a PUD table in a
/// block of its own.
#[test]
fn whole_pmd_tables_move() {
    // The range within 4 GiB, how far the target is shifted, and how many tables are new: those of the target
    // above what moves.
    for (start, len, shift, new) in [
        (0, 3 * GIB, 0, 1),
        (3 * PAGE, 3 * GIB - 5 * PAGE, 0, 1),
        (GIB / 2, 2 * GIB, 0, 1),
        (GIB - PAGE, 2 * PAGE, 0, 1),
        (0, 3 * GIB - MIB2, MIB2, 4),
    ] {
        let machine = small(16, 2, RemapTechnique::Puds);
        let (cpu, space) = cpu_and_space(&machine);
        let to = at(BASE, (1 << 40) + shift);
        map_at(&space, BASE.0 + start, len, RW);
        let touched =
            [0, GIB / 2, GIB, 2 * GIB, 3 * GIB].map(|border| border.clamp(start, start + len - PAGE));
        for addr in touched {
            cpu.program(&space).write_u64(at(BASE, addr), addr + 1).unwrap();
        }
        let (tables, before) = (table_frames(&machine), space.figures());
        cpu.run(|| space.mremap(at(BASE, start), len, len, MOVE, at(to, start))).unwrap();
        assert_eq!(new_tables(&machine, &tables), new, "{start:#x}, {shift:#x}");
        assert_eq!(space.figures().page_tables, before.page_tables);
        for addr in touched {
            assert_eq!(cpu.program(&space).read_u64(at(to, addr)), Ok(addr + 1));
        }
        assert_audit(&machine);
        // There and back again, and a part of what moved is unmapped.
        cpu.run(|| space.mremap(at(to, start), len, len, MOVE, at(BASE, start))).unwrap();
        assert_eq!(space.figures().page_tables, before.page_tables);
        cpu.run(|| space.munmap(at(BASE, touched[2]), PAGE)).unwrap();
        assert_eq!(cpu.program(&space).read_u64(at(BASE, touched[2])), Err(NOT_MAPPED));
    }
}

/// What lies beside a range that moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Beside {
    Nothing,
    /// Another mapping.
    Neighbour,
    /// More of the same mapping, of which the call moves only a part.
    Rest,
}

/// Hazard: the start is aligned down and the end up only where nothing else is mapped.
#[test]
fn a_move_leaves_all_kinds_of_neighbours_alone() {
    use Beside::{Neighbour, Nothing, Rest};
    const RWX: Protection = RW.union(Protection::EXECUTE);
    for technique in RemapTechnique::ALL {
        let machine = small(32, 2, technique);
        let cpu = machine.vcpu(0).unwrap();
        let combinations = [Nothing, Neighbour, Rest].into_iter().flat_map(|below| {
            [Nothing, Neighbour, Rest]
                .into_iter()
                .flat_map(move |above| (0..32u64).map(move |bits| (below, above, bits)))
        });
        for (below, above, bits) in combinations {
            let bit = |nth: u64| bits >> nth & 1 != 0;
            let (target_below, target_above) = (bit(0), bit(1));
            let (from, end) = (3 * PAGE * u64::from(bit(2)), 2 * MIB2 - 5 * PAGE * u64::from(bit(3)));
            let flags = if bit(4) { LEAVE } else { MOVE };
            let (len, source, target) = (end - from, at(BASE, MIB2), at(BASE, 9 * MIB2));
            let space = create_space(&machine).audited(&machine);
            // Two pages on each side of either place.
            let sides = |around: VirtAddr| [VirtAddr(around.0 + from - 2 * PAGE), VirtAddr(around.0 + end)];
            map_at(&space, source.0 + from, len, RW);
            let mut kept = Vec::new();
            for (addr, beside) in sides(source).into_iter().zip([below, above]) {
                match beside {
                    Nothing => continue,
                    Neighbour => map_at(&space, addr.0, 2 * PAGE, RWX),
                    Rest => map_at(&space, addr.0, 2 * PAGE, RW),
                };
                kept.push(addr);
            }
            for (addr, there) in sides(target).into_iter().zip([target_below, target_above]) {
                if there {
                    map_at(&space, addr.0, 2 * PAGE, RWX);
                    kept.push(addr);
                }
            }
            for (nth, &addr) in kept.iter().enumerate() {
                fill(&cpu, &space, addr, some_pages(addr, 2 * PAGE), 100 * nth as u64 + 7);
            }
            fill(&cpu, &space, at(source, from), some_pages(at(source, from), len), 1000);
            let tables = table_frames(&machine);
            let what = format!("{technique:?} {below:?} {above:?} {bits:#b}");
            let moved = cpu.run(|| space.mremap(at(source, from), len, len, flags, at(target, from)));
            assert_eq!(moved, Ok(at(target, from)), "{what}");
            let new = new_tables(&machine, &tables);
            assert_filled(&cpu, &space, at(target, from), some_pages(at(source, from), len), 1000);
            for (nth, &addr) in kept.iter().enumerate() {
                assert_filled(&cpu, &space, addr, some_pages(addr, 2 * PAGE), 100 * nth as u64 + 7);
            }
            let old = if flags == LEAVE { Ok(0) } else { Err(NOT_MAPPED) };
            assert_eq!(cpu.program(&space).read_u64(at(source, from)), old, "{what}");
            // A table that cannot move as it is has a new one on the other side, unless a neighbour's exists
            // there.
            let made = |in_part: bool, beside: Beside, there: bool| {
                let moves = technique != RemapTechnique::Ptes && !(in_part && (there || beside != Nothing));
                usize::from(!(moves || in_part && there))
            };
            let expected = made(bit(2), below, target_below) + made(bit(3), above, target_above);
            assert_eq!(new, expected, "{what}: new tables");
        }
    }
}

/// The free ranges around the source and the target may overlap, and the two ranges may lie in one table.
#[test]
fn ranges_side_by_side_move() {
    const STEP: u64 = MIB2 / 2;
    for technique in RemapTechnique::ALL {
        let machine = small(32, 1, technique);
        let cpu = machine.vcpu(0).unwrap();
        for from in 0..4 {
            for steps in 1..=8 {
                for to in (0..16).filter(|to| to + steps <= from || from + steps <= *to) {
                    let space = create_space(&machine);
                    let (source, target, len) = (at(BASE, from * STEP), at(BASE, to * STEP), steps * STEP);
                    map_at(&space, source.0, len, RW);
                    fill(&cpu, &space, source, some_pages(source, len), 1);
                    let moved = cpu.run(|| space.mremap(source, len, len, MOVE, target));
                    assert_eq!(moved, Ok(target));
                    assert_filled(&cpu, &space, target, some_pages(source, len), 1);
                    assert_eq!(space.figures().resident / PAGE, some_pages(source, len).count() as u64);
                    assert_audit(&machine);
                    cpu.run(|| space.munmap(target, len)).unwrap();
                    assert_eq!(space.figures().page_tables, 0);
                }
            }
        }
    }
}

/// Folios of 2 MiB and 64 KiB and the huge zero page move as they are where both places are aligned alike,
/// and page by page elsewhere; deposited tables move with their leaves.
#[test]
fn large_folios_move() {
    let sizes: OrderSet = [4, 9].into_iter().filter_map(Order::new).collect();
    for technique in RemapTechnique::ALL {
        for (shift, leaves) in [(0, 2), (64 << 10, 0), (PAGE, 0)] {
            for flags in [MOVE, LEAVE] {
                let machine = machine_by(64, 2, technique, TablesTechnique::Free, sizes);
                let cpu = machine.vcpu(0).unwrap();
                let before = in_use(&machine);
                {
                    let space = create_space(&machine).audited(&machine);
                    // 64 KiB folios up to the first border, then a leaf, zeros, and a leaf.
                    let (start, len) = (at(BASE, MIB2 - (256 << 10)), 3 * MIB2 + (256 << 10));
                    let to = at(start, GIB + shift);
                    map_at(&space, start.0, len, RW);
                    let first = [0, 15, 16, 63].map(|nth| page(start, nth));
                    let leaf = [0, 7, 511].map(|nth| page(at(BASE, MIB2), nth));
                    let last = [0, 7, 511].map(|nth| page(at(BASE, 3 * MIB2), nth));
                    let zeros = at(BASE, 2 * MIB2);
                    let written: Vec<_> = first.into_iter().chain(leaf).chain(last).collect();
                    for addr in &written {
                        cpu.program(&space).write_u64(*addr, addr.0).unwrap();
                    }
                    assert_eq!(cpu.program(&space).read_u64(zeros), Ok(0));
                    let figures = space.figures();
                    assert_eq!(figures.resident, 2 * MIB2 + 3 * (64 << 10));
                    let events = machine.memory().frames().events();
                    let count = |order| events.folios(Order::new(order).unwrap(), FolioCounter::NrAnon);
                    let folios = [4, 9].map(count);
                    cpu.run(|| space.mremap(start, len, len, flags, to)).unwrap();
                    assert_eq!((folios, events.pmd_mapped()), ([3, 2], leaves), "{technique:?} {shift:#x}");
                    assert_eq!([4, 9].map(count), folios);
                    assert_eq!(space.figures().resident, figures.resident);
                    if shift == 0 {
                        // One empty table per level is kept where the old range stays.
                        let kept = if flags == LEAVE { 2 * PAGE } else { 0 };
                        let tables = space.figures().page_tables;
                        assert!((figures.page_tables..=figures.page_tables + kept).contains(&tables));
                    }
                    assert_audit(&machine);
                    let there = |addr: &VirtAddr| VirtAddr(addr.0 - start.0 + to.0);
                    for addr in &written {
                        assert_eq!(cpu.program(&space).read_u64(there(addr)), Ok(addr.0));
                    }
                    assert_eq!(cpu.program(&space).read_u64(there(&zeros)), Ok(0));
                    // The deposited table is there when a part of each is unmapped.
                    for block in [MIB2, 2 * MIB2, 3 * MIB2] {
                        let part = there(&page(at(BASE, block), 100));
                        cpu.run(|| space.madvise(part, 7 * PAGE, Advice::DontNeed)).unwrap();
                        assert_eq!(cpu.program(&space).read_u64(part), Ok(0));
                    }
                    assert_eq!(events.pmd_mapped(), 0);
                    for addr in &written {
                        assert_eq!(cpu.program(&space).read_u64(there(addr)), Ok(addr.0));
                    }
                }
                machine.memory().spaces().thp().shrink_huge_zero();
                assert_eq!(in_use(&machine), before);
            }
        }
    }
}

/// Hazard: failure half way. Whichever table or object cannot be allocated, nothing has moved.
#[test]
fn a_move_without_memory_moves_nothing() {
    let (start, target) = (GIB - MIB2, BASE.0 + (1 << 40));
    // Both sides of the last one cross a border of all levels.
    let across = (BASE.0 - MIB2 - 5 * PAGE, BASE.0 + 512 * GIB - MIB2 - 100 * PAGE);
    for technique in RemapTechnique::ALL {
        for (start, len, to, flags, least) in [
            (BASE.0 + start, 2 * MIB2, target, MOVE, 2),
            (BASE.0 + start, 2 * MIB2, target + 3 * PAGE, MOVE, 2),
            (BASE.0 + start, 2 * MIB2, target, LEAVE, 2),
            (BASE.0 + start, 2 * MIB2, target + 3 * PAGE, LEAVE, 2),
            (across.0, 3 * MIB2, across.1, MOVE, 6),
        ] {
            let machine = small(16, 1, technique);
            let (cpu, space) = cpu_and_space(&machine);
            let (pages, to) = (len / PAGE, VirtAddr(to));
            let start = map_filled(&cpu, &space, start, pages, 1);
            let state = || {
                let figures = space.figures();
                let counts = (figures.mapped, figures.resident, figures.page_tables, figures.mappings);
                (counts, mappings(&space), table_frames(&machine))
            };
            let before = state();
            let mut failed = 0;
            let moves = || cpu.run(|| space.mremap(start, len, len, flags, to));
            while let Err(error) = failing(&machine, FailPlan::nth(failed + 1), moves) {
                assert_audit(&machine);
                failed += 1;
                assert_eq!(error.errno(), Errno::ENOMEM);
                assert_eq!(state(), before, "after failure {failed}");
                assert_filled(&cpu, &space, start, 0..pages, 1);
                assert_eq!(cpu.program(&space).read_u64(to), Err(NOT_MAPPED));
            }
            assert_audit(&machine);
            assert!(failed >= least, "{technique:?}: only {failed} allocations failed");
            assert_filled(&cpu, &space, to, 0..pages, 1);
        }
    }
}

/// Old and new place are not counted together, and a child begins with its own size.
#[test]
fn the_peak_of_mapped_memory_does_not_count_a_move_twice() {
    let machine = Setup::of(HostConfig::with_ram(16 << 20)).build();
    let _cpu = machine.vcpu(0).unwrap();
    let space = create_space(&machine).audited(&machine);
    let peak = |space: &HostSpace<'_>| space.figures().peak_mapped / PAGE;
    map_at(&space, BASE.0, 16 * PAGE, RW);
    // The next mapping blocks growth in place.
    map_at(&space, BASE.0 + 16 * PAGE, PAGE, RW);
    let grown = space.mremap(BASE, 16 * PAGE, 20 * PAGE, RemapFlags::MAYMOVE, None).unwrap();
    assert_ne!(grown, BASE);
    assert_eq!(peak(&space), 21);
    let there = VirtAddr(BASE.0 + MIB2);
    space.mremap(grown, 20 * PAGE, 20 * PAGE, MOVE, there).unwrap();
    assert_eq!(peak(&space), 21);
    // The source stays mapped.
    space.mremap(there, 20 * PAGE, 20 * PAGE, LEAVE, None).unwrap();
    assert_eq!(peak(&space), 41);
    space.munmap(there, 20 * PAGE).unwrap();
    assert_eq!((peak(&space), peak(&space.fork().unwrap())), (41, 21));
}

/// Each mapping is moved by itself: what the target of the second one removes was there after the first one.
#[test]
fn the_peak_of_mapped_memory_counts_each_of_several_moves() {
    let machine: Machine = Setup::of(HostConfig::with_ram(16 << 20)).build();
    let _cpu = machine.vcpu(0).unwrap();
    let space = create_space(&machine).audited(&machine);
    map_at(&space, BASE.0, PAGE, READ);
    map_at(&space, BASE.0 + PAGE, 4 * PAGE, RW);
    let target = VirtAddr(BASE.0 + MIB2);
    map_at(&space, target.0 + PAGE, 4 * PAGE, READ);
    // Not enough for the second one, whose source stays mapped.
    space.set_limits(Limits { data: 6 * PAGE, ..space.limits() });
    let moved = space.mremap(BASE, 5 * PAGE, 5 * PAGE, MOVE | LEAVE, target);
    assert_eq!(moved, Err(Error::DataLimit));
    let figures = space.figures();
    assert_eq!((figures.mapped / PAGE, figures.peak_mapped / PAGE), (6, 10));
}

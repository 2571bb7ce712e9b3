//! `mremap`: pages move in the largest pieces that fit, with one shootdown a call, and nothing else moves
//! along.
use crate::common::{
    GIB, HostSpace, MIB2, NOT_MAPPED, PAGE, RW, Random, Setup, assert_audit, count, in_use, map_at, page,
    setting,
};
use quire_arch::{Order, Platform, VirtAddr, VirtRange};
use quire_frame::{FaultPlan, Kind};
use quire_host::{HostConfig, Machine, Vcpu};
use quire_mm::{
    Advice, FolioCounter, OrderSet, Protection, RemapFlags, RemapTechnique, TablesTechnique, VmEvent,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

/// A border of all levels of tables.
const BASE: VirtAddr = VirtAddr(1 << 39);
const MOVE: RemapFlags = RemapFlags::MAYMOVE.union(RemapFlags::FIXED);
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
    frames.reap_all(&machine.memory().platform().pin());
    let mut tables = BTreeSet::new();
    frames.for_each_frame(|pfn, frame| {
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

/// Shootdowns that `action` sends.
fn shootdowns(machine: &Machine, action: impl FnOnce()) -> u64 {
    let before = count(machine, VmEvent::NrTlbRemoteFlush);
    action();
    count(machine, VmEvent::NrTlbRemoteFlush) - before
}

/// Pages of a range that are written to: around each border of a table, and some between.
fn some_pages(start: VirtAddr, len: u64) -> impl Iterator<Item = VirtAddr> {
    let last = start.0 + len - PAGE;
    (start.0..=last).step_by(PAGE as usize).map(VirtAddr).filter(move |addr| {
        let in_table = addr.0 / PAGE % 512;
        addr.0 == start.0 || addr.0 == last || [0, 1, 200, 511].contains(&in_table)
    })
}

fn fill(cpu: &Vcpu, space: &HostSpace<'_>, start: VirtAddr, len: u64, tag: u64) {
    for addr in some_pages(start, len) {
        cpu.program(space).write_u64(addr, tag + (addr.0 - start.0) / PAGE).unwrap();
    }
}

#[track_caller]
fn assert_filled(cpu: &Vcpu, space: &HostSpace<'_>, start: VirtAddr, moved_to: VirtAddr, len: u64, tag: u64) {
    for addr in some_pages(start, len) {
        let nth = (addr.0 - start.0) / PAGE;
        assert_eq!(cpu.program(space).read_u64(page(moved_to, nth)), Ok(tag + nth), "page {nth}");
    }
}

#[test]
fn whole_tables_move_with_all_that_they_map() {
    for technique in RemapTechnique::ALL {
        for flags in [MOVE, LEAVE] {
            let machine = small(16, 2, technique);
            let (space, cpu) = (machine.memory().create_space().unwrap(), machine.vcpu(0).unwrap());
            let to = at(BASE, GIB / 2);
            map_at(&space, BASE.0, 4 * MIB2, RW);
            fill(&cpu, &space, BASE, 4 * MIB2, 1);
            let (tables, before) = (table_frames(&machine), space.figures());
            cpu.run(|| space.mremap(BASE, 4 * MIB2, 4 * MIB2, flags, to)).unwrap();
            let new = new_tables(&machine, &tables);
            assert_eq!(new, if technique == RemapTechnique::Ptes { 4 } else { 0 }, "{technique:?}");
            let after = space.figures();
            assert_eq!((after.page_tables, after.resident), (before.page_tables, before.resident));
            assert_filled(&cpu, &space, BASE, to, 4 * MIB2, 1);
            let old = if flags == LEAVE { Ok(0) } else { Err(NOT_MAPPED) };
            assert_eq!(cpu.program(&space).read_u64(BASE), old);
            assert_audit(&machine);
        }
    }
}

/// A kept empty table does not move: else each move would leave one behind where no call looks for it.
#[test]
fn empty_tables_do_not_move() {
    for technique in RemapTechnique::ALL {
        let machine = small(16, 1, technique);
        let (space, cpu) = (machine.memory().create_space().unwrap(), machine.vcpu(0).unwrap());
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
        let (space, cpu) = (machine.memory().create_space().unwrap(), machine.vcpu(0).unwrap());
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
        assert_audit(&machine);
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
            let space = machine.memory().create_space().unwrap();
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
                fill(&cpu, &space, addr, 2 * PAGE, 100 * nth as u64 + 7);
            }
            fill(&cpu, &space, at(source, from), len, 1000);
            let tables = table_frames(&machine);
            let what = format!("{technique:?} {below:?} {above:?} {bits:#b}");
            let moved = cpu.run(|| space.mremap(at(source, from), len, len, flags, at(target, from)));
            assert_eq!(moved, Ok(at(target, from)), "{what}");
            let new = new_tables(&machine, &tables);
            assert_filled(&cpu, &space, at(source, from), at(target, from), len, 1000);
            for (nth, &addr) in kept.iter().enumerate() {
                assert_filled(&cpu, &space, addr, addr, 2 * PAGE, 100 * nth as u64 + 7);
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
            assert_audit(&machine);
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
                    let space = machine.memory().create_space().unwrap();
                    let (source, target, len) = (at(BASE, from * STEP), at(BASE, to * STEP), steps * STEP);
                    map_at(&space, source.0, len, RW);
                    fill(&cpu, &space, source, len, 1);
                    let moved = cpu.run(|| space.mremap(source, len, len, MOVE, target));
                    assert_eq!(moved, Ok(target));
                    assert_filled(&cpu, &space, source, target, len, 1);
                    assert_eq!(space.figures().resident / PAGE, some_pages(source, len).count() as u64);
                    assert_audit(&machine);
                    cpu.run(|| space.munmap(target, len)).unwrap();
                    assert_eq!(space.figures().page_tables, 0);
                }
            }
        }
    }
}

/// One call, one shootdown: several mappings with holes between them, with a source that stays mapped. Pages
/// that are replaced are flushed before others come to their place.
#[test]
fn a_move_sends_one_shootdown() {
    for technique in RemapTechnique::ALL {
        for (pages, offset) in [(1, 0), (30, 0), (600, 0), (2048, 0), (2048, 3)] {
            for (over, several) in [(false, false), (true, false), (false, true), (true, true)] {
                let machine = small(64, 3, technique);
                let space = machine.memory().create_space().unwrap();
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
                    fill(cpu, &space, BASE, 5 * PAGE.min(len / 5), 1);
                    cpu.program(&space).write_u64(BASE, 1).unwrap();
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
                assert_eq!(
                    sent,
                    1 + replaced,
                    "{technique:?}, {pages} pages, over {over}, several {several}"
                );
                for cpu in &cpus {
                    assert_eq!(cpu.program(&space).read_u64(BASE), Err(NOT_MAPPED));
                    assert_eq!(cpu.program(&space).read_u64(to), Ok(1));
                    assert_eq!(cpu.program(&space).read_u64(page(to, pages - 1)), Ok(pages));
                }
                assert_audit(&machine);
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
        let (space, cpu) = (machine.memory().create_space().unwrap(), machine.vcpu(0).unwrap());
        let (source, target) = if target_below { (at(BASE, MIB2), BASE) } else { (BASE, at(BASE, 2 * MIB2)) };
        for start in [source, target] {
            map_at(&space, start.0, 400 * PAGE, RW);
            for nth in 0..400 {
                cpu.program(&space).write_u64(page(start, nth), start.0 + nth).unwrap();
            }
        }
        let child = space.fork().unwrap();
        cpu.run(|| space.mremap(source, 300 * PAGE, 100 * PAGE, MOVE, target)).unwrap();
        for nth in 0..100 {
            assert_eq!(cpu.program(&space).read_u64(page(target, nth)), Ok(source.0 + nth), "page {nth}");
        }
        for nth in 100..400 {
            assert_eq!(cpu.program(&space).read_u64(page(target, nth)), Ok(target.0 + nth), "page {nth}");
        }
        for nth in 300..400 {
            assert_eq!(cpu.program(&space).read_u64(page(source, nth)), Ok(source.0 + nth), "page {nth}");
        }
        assert_audit(&machine);
        for nth in 0..400 {
            assert_eq!(cpu.program(&child).read_u64(page(source, nth)), Ok(source.0 + nth));
        }
    }
}

/// The same where each of the two parts begins and ends in the middle of a PMD leaf.
#[test]
fn both_removed_parts_split_pmd_leaves() {
    for shared in [false, true] {
        let machine =
            machine_by(64, 2, RemapTechnique::Puds, TablesTechnique::Free, OrderSet::of(Order::PMD));
        let (space, cpu) = (machine.memory().create_space().unwrap(), machine.vcpu(0).unwrap());
        let (source, target) = (at(BASE, 16 * MIB2), BASE);
        for start in [source, target] {
            map_at(&space, start.0, 4 * MIB2, RW);
            fill(&cpu, &space, start, 4 * MIB2, start.0);
        }
        assert_eq!(machine.memory().frames().events().pmd_mapped(), 8);
        let child = shared.then(|| space.fork().unwrap());
        // Of the source 1 MiB to 7 MiB, shrunk by 3 MiB; of the target 1 MiB to 3 MiB.
        let half = MIB2 / 2;
        cpu.run(|| space.mremap(at(source, half), 6 * half, 2 * half, MOVE, at(target, half))).unwrap();
        for addr in some_pages(source, 4 * MIB2) {
            let nth = addr.0 - source.0;
            let value = |start: VirtAddr| Ok(start.0 + nth / PAGE);
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
        assert_audit(&machine);
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
                    let space = machine.memory().create_space().unwrap();
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
                        let spared = if flags == LEAVE { 2 * PAGE } else { 0 };
                        let tables = space.figures().page_tables;
                        assert!((figures.page_tables..=figures.page_tables + spared).contains(&tables));
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
                    assert_audit(&machine);
                }
                machine.memory().spaces().shrink_huge_zero();
                assert_eq!(in_use(&machine), before);
            }
        }
    }
}

/// A PMD table that moved has its new address, so that a flush of what a leaf in it maps is right.
#[test]
fn a_leaf_in_a_moved_pmd_table_is_flushed_at_its_new_place() {
    let machine = machine_by(64, 2, RemapTechnique::Puds, TablesTechnique::Free, OrderSet::of(Order::PMD));
    let space = machine.memory().create_space().unwrap();
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
    assert_audit(&machine);
}

/// Hazard: failure half way. Whichever table or object cannot be allocated, nothing has moved.
#[test]
fn a_move_without_memory_moves_nothing() {
    for technique in RemapTechnique::ALL {
        for (offset, flags) in [(0, MOVE), (3, MOVE), (0, LEAVE), (3, LEAVE)] {
            let machine = small(16, 1, technique);
            let (space, cpu) = (machine.memory().create_space().unwrap(), machine.vcpu(0).unwrap());
            let to = at(BASE, (1 << 40) + offset * PAGE);
            let start = at(BASE, GIB - MIB2);
            map_at(&space, start.0, 2 * MIB2, RW);
            fill(&cpu, &space, start, 2 * MIB2, 1);
            let figures = || {
                let figures = space.figures();
                (figures.mapped, figures.resident, figures.page_tables, figures.mappings)
            };
            let (tables, before) = (table_frames(&machine), figures());
            let faults = machine.memory().frames().faults();
            let mut failed = 0;
            loop {
                faults.set(FaultPlan::nth(failed + 1));
                let result = cpu.run(|| space.mremap(start, 2 * MIB2, 2 * MIB2, flags, to));
                faults.set(FaultPlan::OFF);
                assert_audit(&machine);
                if result.is_ok() {
                    break;
                }
                failed += 1;
                assert_eq!(table_frames(&machine), tables, "after failure {failed}");
                assert_eq!(figures(), before);
                assert_filled(&cpu, &space, start, start, 2 * MIB2, 1);
                assert_eq!(cpu.program(&space).read_u64(to), Err(NOT_MAPPED));
            }
            assert!(failed >= 2, "{technique:?}: only {failed} allocations failed");
            assert_filled(&cpu, &space, start, to, 2 * MIB2, 1);
        }
    }
}

/// A fault in another mapping does not wait for a move: it completes while the move waits for an rmap walk,
/// with the mmap lock and the locks of its mappings.
#[test]
fn a_fault_elsewhere_is_done_while_a_move_waits() {
    let machine = small(16, 3, RemapTechnique::Puds);
    let space = machine.memory().create_space().unwrap();
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
    machine.memory().frames().for_each_frame(|pfn, frame| {
        if frame.kind() == Kind::Anonymous && frame.as_folio().index() == moving.start().0 / PAGE {
            found = Some(pfn);
        }
    });
    let (walking, done, moved) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
    let tables = space.figures().page_tables;
    // Enough looks to tell a thread that waits from one that does not.
    let within_reason = |fact: &dyn Fn() -> bool| {
        (0..2_000_000).any(|_| {
            std::thread::yield_now();
            fact()
        })
    };
    let told = |fact: &AtomicBool| within_reason(&|| fact.load(Ordering::SeqCst));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            machine.memory().spaces().for_each_map(found.unwrap(), |_, addr| {
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
            assert!(within_reason(&|| space.figures().page_tables > tables));
            for nth in 256..511 {
                cpu.program(&space).write_u64(page(other, nth), nth).unwrap();
            }
            done.store(true, Ordering::SeqCst);
        });
    });
    let cpu = machine.vcpu(0).unwrap();
    assert_eq!(cpu.program(&space).read_u64(to), Ok(7));
    assert_audit(&machine);
}

/// While the old place of what moved is not flushed yet, every flush of the space is one of all addresses: an
/// unmap of a page at its new place does not know the old one. Here another flush comes while that of the
/// move waits.
#[test]
fn a_flush_beside_a_move_is_one_of_all_addresses() {
    let machine = small(16, 3, RemapTechnique::Puds);
    let space = machine.memory().create_space().unwrap();
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
    let within_reason = |fact: &dyn Fn() -> bool| {
        (0..2_000_000).any(|_| {
            std::thread::yield_now();
            fact()
        })
    };
    let inside = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let cpu = machine.vcpu(0).unwrap();
            cpu.program(&space).inside(|guest| {
                guest.write_u64(BASE, 8).unwrap();
                inside.store(true, Ordering::SeqCst);
                // It acknowledges neither flush before both are posted.
                assert!(within_reason(&|| flushes().0 + flushes().1 == ranges + spaces + 2));
            });
        });
        scope.spawn(|| {
            let cpu = machine.vcpu(1).unwrap();
            assert!(within_reason(&|| inside.load(Ordering::SeqCst)));
            cpu.run(|| space.mremap(BASE, PAGE, PAGE, MOVE, to)).unwrap();
        });
        scope.spawn(|| {
            let cpu = machine.vcpu(2).unwrap();
            assert!(within_reason(&|| flushes() == (ranges + 1, spaces)));
            cpu.program(&space).write_u64(other, 2).unwrap();
        });
    });
    assert_eq!(flushes(), (ranges + 1, spaces + 1));
    let cpu = machine.vcpu(0).unwrap();
    assert_eq!(cpu.program(&space).read_u64(to), Ok(8));
    cpu.program(&space).write_u64(page(other, 1), 3).unwrap();
    assert_eq!(flushes(), (ranges + 2, spaces + 1), "the move is over");
    assert_audit(&machine);
}

/// Random moves against a map from pages to what was written there.
#[test]
fn random_moves_agree_with_a_simple_model() {
    let seed = setting("QUIRE_SEED", 63);
    println!("QUIRE_SEED={seed}");
    let sizes: OrderSet = [2, 4, 9].into_iter().filter_map(Order::new).collect();
    for technique in RemapTechnique::ALL {
        for tables in TablesTechnique::ALL {
            for orders in [OrderSet::EMPTY, sizes] {
                random_moves(
                    seed,
                    &machine_by(96, 2, technique, tables, orders),
                    setting("QUIRE_ROUNDS", 250),
                );
            }
        }
    }
}

/// Places and lengths in pages: most at borders, or beside them.
fn somewhere(random: &mut Random, bound: u64) -> u64 {
    let any = random.below(bound);
    match random.below(4) {
        0 => any,
        1 => any & !511,
        2 => any & !255,
        _ => ((any & !511) + random.below(3)).saturating_sub(1),
    }
}

fn random_moves(seed: u64, machine: &Machine, rounds: u64) {
    /// Pages of the test's range: a border of all levels is in its middle.
    const PAGES: u64 = 10 * 512;
    let start = VirtAddr(BASE.0 - PAGES / 2 * PAGE);
    let mut random = Random(seed);
    let mut spaces = vec![(machine.memory().create_space().unwrap(), BTreeMap::<u64, u64>::new())];
    let cpus = [0, 1].map(|number| machine.vcpu(number).unwrap());
    for round in 1..=rounds {
        let living = spaces.len();
        let nth = random.below(living as u64) as usize;
        let cpu = &cpus[random.below(2) as usize];
        let (space, model) = &mut spaces[nth];
        let from = somewhere(&mut random, PAGES - 1);
        let len = somewhere(&mut random, (PAGES - from).min(1600)).max(1);
        let range = from..from + len;
        match random.below(12) {
            0..3 => {
                let protection = if random.chance(80) { RW } else { RW | Protection::EXECUTE };
                map_at(space, page(start, from).0, len * PAGE, protection);
                model.extend(range.map(|at| (at, 0)));
            }
            3 => {
                cpu.run(|| space.munmap(page(start, from), len * PAGE)).unwrap();
                model.retain(|at, _| !range.contains(at));
            }
            4 => {
                // Where a hole is in the range the rest is dropped all the same.
                let _ = cpu.run(|| space.madvise(page(start, from), len * PAGE, Advice::DontNeed));
                model.range_mut(range).for_each(|(_, value)| *value = 0);
            }
            5 if living < 3 => {
                let child = cpu.run(|| space.fork()).unwrap();
                let model = model.clone();
                spaces.push((child, model));
            }
            5 if living > 1 => drop(spaces.swap_remove(nth)),
            5..8 => {
                for at in 0..40 {
                    let at = if at == 0 { from } else { from + random.below(len) };
                    let written = cpu.program(space).write_u64(page(start, at), round << 16 | at);
                    assert_eq!(written.is_ok(), model.contains_key(&at));
                    model.entry(at).and_modify(|value| *value = round << 16 | at);
                }
            }
            8 => drop(space.split_folio(page(start, from), Order::new(random.below(4) as u8).unwrap())),
            kind => {
                let to = somewhere(&mut random, PAGES - len);
                let flags = if kind == 9 { LEAVE } else { MOVE };
                let new_len = if kind == 10 { len - random.below(len) } else { len };
                let (old, new) = (page(start, from), page(start, to));
                let moved = cpu.run(|| space.mremap(old, len * PAGE, new_len * PAGE, flags, new));
                if let Ok(there) = moved {
                    let there = (there.0 - start.0) / PAGE;
                    let taken: Vec<_> = model.range(range.clone()).map(|(at, value)| (*at, *value)).collect();
                    if flags == LEAVE {
                        model.range_mut(range).for_each(|(_, value)| *value = 0);
                    } else {
                        model.retain(|at, _| !range.contains(at) && !(there..there + new_len).contains(at));
                    }
                    for (at, value) in taken.into_iter().filter(|(at, _)| at - from < new_len) {
                        model.insert(at - from + there, value);
                    }
                } else {
                    // What a failed call had unmapped or moved by then is not modelled.
                    *model = (0..PAGES)
                        .filter_map(|at| Some((at, cpu.program(space).read_u64(page(start, at)).ok()?)))
                        .collect();
                }
            }
        }
        if round % 8 == 0 {
            assert_audit(machine);
        }
        if round % 32 == 0 {
            for (space, model) in &spaces {
                for at in 0..PAGES {
                    let seen = cpus[0].program(space).read_u64(page(start, at)).ok();
                    assert_eq!(seen, model.get(&at).copied(), "seed {seed}, round {round}, page {at:#x}");
                }
            }
        }
    }
    assert_audit(machine);
}

/// Old and new place are not counted together, and a child begins with its own size.
#[test]
fn the_peak_of_mapped_memory_does_not_count_a_move_twice() {
    let machine = Setup::of(HostConfig::with_ram(16 << 20)).build();
    let _cpu = machine.vcpu(0).unwrap();
    let space = machine.memory().create_space().unwrap();
    let peak = |space: &HostSpace<'_>| space.figures().peak_mapped / PAGE;
    map_at(&space, BASE.0, 16 * PAGE, RW);
    // The next mapping blocks growth in place.
    map_at(&space, BASE.0 + 16 * PAGE, PAGE, RW);
    let grown = space.mremap(BASE, 16 * PAGE, 20 * PAGE, RemapFlags::MAYMOVE, VirtAddr(0)).unwrap();
    assert_ne!(grown, BASE);
    assert_eq!(peak(&space), 21);
    let there = VirtAddr(BASE.0 + MIB2);
    space.mremap(grown, 20 * PAGE, 20 * PAGE, MOVE, there).unwrap();
    assert_eq!(peak(&space), 21);
    // The source stays mapped.
    space.mremap(there, 20 * PAGE, 20 * PAGE, LEAVE, VirtAddr(0)).unwrap();
    assert_eq!(peak(&space), 41);
    space.munmap(there, 20 * PAGE).unwrap();
    assert_eq!((peak(&space), peak(&space.fork().unwrap())), (41, 21));
    assert_audit(&machine);
}

//! Page tables that are left empty are freed, whatever call emptied them, and no walker uses a freed one.
use crate::common::*;
use std::sync::atomic::{AtomicBool, Ordering};

const BASE: VirtAddr = VirtAddr(1 << 39);
/// A space keeps two empty PTE tables, and one of each level above.
const KEPT: u64 = 4 * PAGE;

/// A machine that overcommits memory.
fn roomy(mib: u64, technique: TablesTechnique) -> Machine {
    Setup::mib(mib).cpus(3).overcommit().with(|memory| memory.techniques.tables = technique).build()
}

fn tables(space: &HostSpace<'_>) -> u64 {
    space.figures().page_tables
}

fn dontneed(space: &HostSpace<'_>, addr: VirtAddr, len: u64) {
    space.madvise(addr, len, Advice::DontNeed).unwrap();
}

/// How a stretch of 2 MiB is emptied.
type Emptying = fn(&HostSpace<'_>, VirtAddr);

/// Touches one page in 32 of each block of 2 MiB of a mapping and empties the block at once. Returns the
/// bytes of tables at the end.
fn walk(technique: TablesTechnique, offset: u64, access: Access, empty: Emptying) -> u64 {
    let machine = roomy(64, technique);
    let (cpu, space, _) = mapped(&machine, BASE.0, GIB);
    let program = cpu.program(&space);
    let mut at = VirtAddr(BASE.0 + offset);
    while at.0 + MIB2 <= BASE.0 + GIB {
        for page_in in (0..512).step_by(32) {
            match access {
                Access::Write => program.write_u64(page(at, page_in), 1).unwrap(),
                _ => assert_eq!(program.read_u64(page(at, page_in)), Ok(0)),
            }
        }
        cpu.run(|| empty(&space, at));
        at = VirtAddr(at.0 + MIB2);
    }
    assert_audit(&machine);
    assert_eq!(space.figures().resident, 0);
    tables(&space)
}

const DROPPED: Emptying = |space, at| dontneed(space, at, MIB2);
const IN_PIECES: Emptying = |space, at| {
    for piece in 0..32 {
        dontneed(space, page(at, 16 * piece), 16 * PAGE);
    }
};
/// Every other page stays mapped, so that no mapping's end frees a table.
const UNMAPPED: Emptying = |space, at| {
    for touched in (0..512).step_by(32) {
        space.munmap(page(at, touched), PAGE).unwrap();
    }
};
const MOVED_AWAY: Emptying = |space, at| {
    for touched in (0..512).step_by(32) {
        let elsewhere = VirtAddr(BASE.0 + 4 * GIB);
        space.mremap(page(at, touched), PAGE, PAGE, MOVE, elsewhere).unwrap();
    }
    space.munmap(VirtAddr(BASE.0 + 4 * GIB), PAGE).unwrap();
};

#[test]
fn every_call_that_empties_tables_frees_them() {
    use Access::{Read, Write};
    for (name, offset, access, empty) in [
        ("one call for each table", 0, Write, DROPPED),
        ("calls that cover no table", PAGE, Write, DROPPED),
        ("half a table off", MIB2 / 2, Write, DROPPED),
        ("pieces of 64 KiB", 0, Write, IN_PIECES),
        ("pieces that cross borders", 8 * PAGE, Write, IN_PIECES),
        ("pages of zeros only", 0, Read, DROPPED),
        ("pages of zeros only, in pieces", 0, Read, IN_PIECES),
        ("munmap of parts", 0, Write, UNMAPPED),
        ("mremap of parts", 0, Write, MOVED_AWAY),
    ] {
        let left = walk(TablesTechnique::Free, offset, access, empty);
        assert!(left <= KEPT, "{name}: {left} bytes");
        let kept = walk(TablesTechnique::Keep, offset, access, empty);
        assert!(kept >= 511 * PAGE, "{name}, before: {kept} bytes");
    }
}

/// So many runs of pages in a table that it goes with its entries: the tables above it go, too.
#[test]
fn a_table_that_goes_with_its_runs_leaves_none_above_it() {
    let machine = roomy(64, TablesTechnique::Free);
    let cpu = machine.vcpu(0).unwrap();
    let space = create_space(&machine);
    const BLOCKS: u64 = 16;
    for nth in 0..BLOCKS {
        let at = VirtAddr(BASE.0 + nth * GIB);
        for (start, pages) in [(at, 1), (page(at, 2), 200)] {
            let request = MapRequest::anonymous(pages * PAGE, RW).at(start, MapFlags::FIXED);
            cpu.run(|| space.mmap(&request)).unwrap();
        }
        for nth in (0..200).step_by(2) {
            cpu.program(&space).write_u64(page(at, 2 + nth), 1).unwrap();
        }
    }
    // Pages that others map are unmapped as runs.
    let child = cpu.run(|| space.fork()).unwrap();
    for nth in 0..BLOCKS {
        cpu.run(|| space.munmap(page(VirtAddr(BASE.0 + nth * GIB), 2), 200 * PAGE)).unwrap();
    }
    assert!(tables(&space) <= KEPT, "{} bytes", tables(&space));
    drop(child);
    assert_audit(&machine);
}

/// A call that covers the whole range of a table frees it at once, and the tables above with it.
#[test]
fn a_call_over_everything_leaves_no_table() {
    let machine = roomy(16, TablesTechnique::Free);
    let (cpu, space, _) = mapped(&machine, BASE.0, 512 * GIB);
    for at in [0, 3 * MIB2, 7 * GIB, 511 * GIB] {
        cpu.program(&space).write_u64(VirtAddr(BASE.0 + at), 1).unwrap();
    }
    assert_eq!(tables(&space), (4 + 3 + 1) * PAGE);
    cpu.run(|| dontneed(&space, BASE, 512 * GIB));
    assert_eq!(tables(&space), 0);
    cpu.program(&space).write_u64(BASE, 2).unwrap();
    assert_eq!(tables(&space), 3 * PAGE);
}

/// A program that uses and drops the same pages again and again finds its tables still there.
#[test]
fn a_border_that_is_crossed_to_and_fro_keeps_its_tables() {
    let machine = roomy(16, TablesTechnique::Free);
    let (cpu, space, _) = mapped(&machine, BASE.0, GIB);
    let retired = || count(&machine, VmEvent::LimboRetired);
    cpu.program(&space).write_u64(BASE, 1).unwrap();
    let before = retired();
    for value in 2..50 {
        cpu.run(|| dontneed(&space, BASE, PAGE));
        assert_eq!(tables(&space), 3 * PAGE);
        cpu.program(&space).write_u64(BASE, value).unwrap();
    }
    assert_eq!(retired(), before, "tables were freed");
    // The next table that is emptied is kept in its place.
    cpu.run(|| dontneed(&space, BASE, PAGE));
    for block in 1..5 {
        cpu.program(&space).write_u64(VirtAddr(BASE.0 + block * MIB2), 1).unwrap();
        cpu.run(|| dontneed(&space, VirtAddr(BASE.0 + block * MIB2), PAGE));
        assert_eq!(tables(&space), 4 * PAGE);
    }
    // Two that are used in turn both stay.
    let before = retired();
    for round in 0..20 {
        let at = VirtAddr(BASE.0 + (3 + round % 2) * MIB2);
        cpu.program(&space).write_u64(at, round).unwrap();
        cpu.run(|| dontneed(&space, at, PAGE));
    }
    assert_eq!(retired(), before, "tables were freed");
}

/// The kept table may have been freed with its mapping, and its place may be another table's.
#[test]
fn a_kept_empty_table_is_checked_before_it_is_freed() {
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let program = cpu.program(&space);
    let other = VirtAddr(BASE.0 + 4 * MIB2);
    map_at(&space, BASE.0, MIB2, RW);
    map_at(&space, other.0, MIB2, RW);
    program.write_u64(BASE, 1).unwrap();
    cpu.run(|| dontneed(&space, BASE, PAGE));
    // It is freed, another takes its place, and has a page when the next but one is emptied.
    cpu.run(|| space.munmap(BASE, MIB2)).unwrap();
    map_at(&space, BASE.0, MIB2, RW);
    program.write_u64(page(BASE, 9), 2).unwrap();
    program.write_u64(other, 3).unwrap();
    cpu.run(|| dontneed(&space, other, PAGE));
    let third = VirtAddr(other.0 + 4 * MIB2);
    map_at(&space, third.0, MIB2, RW);
    program.write_u64(third, 4).unwrap();
    cpu.run(|| dontneed(&space, third, PAGE));
    assert_eq!(program.read_u64(page(BASE, 9)), Ok(2));
    assert_eq!(tables(&space), 5 * PAGE);
}

/// Shared pages wait in the gather, which holds 64: the rest is taken out after the flush, and with it the
/// table.
#[test]
fn a_table_whose_last_pages_wait_for_the_flush_is_freed() {
    let machine = machine(16, 2);
    let (cpu, space, _) = mapped(&machine, BASE.0, MIB2);
    // It has no page, but it keeps the table from being freed with the mapping.
    space.mprotect(page(BASE, 300), PAGE, READ, false).unwrap();
    fill(&cpu, &space, BASE, 0..200, 0);
    let child = space.fork().unwrap();
    assert_eq!(tables(&space), 3 * PAGE);
    cpu.run(|| space.munmap(BASE, 200 * PAGE)).unwrap();
    assert!(tables(&space) < 3 * PAGE, "{}", tables(&space));
    assert_eq!(cpu.program(&child).read_u64(page(BASE, 199)), Ok(199));
    assert_eq!(cpu.program(&space).read_u64(page(BASE, 199)), Err(NOT_MAPPED));
    assert_eq!(cpu.program(&space).read_u64(page(BASE, 300)), Ok(0));
}

/// What waits only for a fault's own section of the epoch is memory for that fault.
#[test]
fn a_fault_without_memory_reaps_retired_tables() {
    let machine = roomy(2, TablesTechnique::Free);
    let (cpu, space) = cpu_and_space(&machine);
    let program = cpu.program(&space);
    map_at(&space, BASE.0, GIB, RW);
    // Tables that are emptied, one after the other, by a program that needs nearly all of RAM.
    fill_memory(&cpu, &space, BASE);
    for round in 1..64 {
        cpu.run(|| dontneed(&space, page(BASE, 0), 8 * PAGE));
        // Three tables and a page, four times.
        for block in 0..2 {
            let at = VirtAddr(BASE.0 + (round * 2 + block) * MIB2 + MIB2 * 8);
            program.write_u64(at, round).unwrap_or_else(|error| panic!("round {round}: {error:?}"));
            cpu.run(|| dontneed(&space, at, PAGE));
        }
        for at in 0..4 {
            program
                .write_u64(page(BASE, at), round)
                .unwrap_or_else(|error| panic!("round {round}: {error:?}"));
        }
    }
}

/// Threads that fault, and one that empties tables under them in every way. What a thread wrote is there
/// until it is dropped, and pages that were not written read zero.
#[test]
fn faults_continue_while_tables_are_freed() {
    let seed = setting("QUIRE_SEED", 61);
    println!("QUIRE_SEED={seed}");
    let machine = machine(32, 3);
    let space = create_space(&machine).audited(&machine);
    const BLOCKS: u64 = 6;
    // Of each block the first half is dropped all the time; the second halves belong to one thread each.
    map_at(&space, BASE.0, BLOCKS * MIB2, RW);
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let (machine, space) = (&machine, &space);
            scope.spawn(move || {
                let cpu = machine.vcpu(thread as usize).unwrap();
                let (program, mut random) = (cpu.program(space), Random(seed + thread));
                for round in 1..3000u64 {
                    let block = VirtAddr(BASE.0 + random.below(BLOCKS) * MIB2);
                    let seen = program.read_u64(page(block, random.below(256))).unwrap();
                    assert!(seen < 3000, "{seen}");
                    program.write_u64(page(block, random.below(256)), round).unwrap();
                    let own = page(block, 256 + thread * 128 + random.below(128));
                    program.write_u64(own, round).unwrap();
                    assert_eq!(program.read_u64(own), Ok(round));
                    if random.chance(70) {
                        cpu.run(|| dontneed(space, own, PAGE));
                        assert_eq!(program.read_u64(own), Ok(0));
                        cpu.run(|| dontneed(space, own, PAGE));
                    }
                }
            });
        }
        let (machine, space) = (&machine, &space);
        scope.spawn(move || {
            let cpu = machine.vcpu(2).unwrap();
            let mut random = Random(seed + 2);
            for _ in 0..3000 {
                let block = VirtAddr(BASE.0 + random.below(BLOCKS) * MIB2);
                cpu.run(|| dontneed(space, block, 256 * PAGE));
            }
        });
    });
}

/// Whole tables: what one call covers while others fault in it.
#[test]
fn whole_blocks_are_unmapped_beside_faults() {
    let seed = setting("QUIRE_SEED", 62);
    println!("QUIRE_SEED={seed}");
    let machine = machine(32, 3);
    let space = create_space(&machine);
    map_at(&space, BASE.0, 4 * MIB2, RW);
    on_cpus(&machine, 3, |number, cpu| {
        let thread = number as u64;
        let (program, mut random) = (cpu.program(&space), Random(seed + thread));
        for round in 1..4000u64 {
            let at = page(BASE, random.below(4 * 512));
            if random.chance(60) {
                program.write_u64(at, round << 2 | thread).unwrap();
            } else if random.chance(50) {
                program.read_u64(at).unwrap();
            } else {
                let block = VirtAddr(BASE.0 + random.below(4) * MIB2);
                cpu.run(|| dontneed(&space, block, MIB2));
            }
        }
    });
    assert_audit(&machine);
    let cpu = machine.vcpu(0).unwrap();
    cpu.run(|| dontneed(&space, BASE, 4 * MIB2));
    assert_eq!(space.figures().resident, 0);
    assert!(tables(&space) <= 4 * PAGE);
}

/// A CPU may cache the walk to a table in which no entry was usable, so freeing it is flushed too.
#[test]
fn a_table_that_nothing_used_is_flushed_when_it_goes() {
    let machine = machine(16, 2);
    let space = create_space(&machine).audited(&machine);
    let cpus = [0, 1].map(|number| machine.vcpu(number).unwrap());
    map_at(&space, BASE.0, 2 * MIB2, RW);
    cpus[0].program(&space).write_u64(page(BASE, 3), 1).unwrap();
    cpus[0].run(|| space.mprotect(BASE, 2 * MIB2, NONE, false)).unwrap();
    assert!(cpus[1].program(&space).read_u64(BASE).is_err());
    let sent = || count(&machine, VmEvent::NrTlbRemoteFlush);
    let before = (sent(), tables(&space));
    assert_eq!(before.1, 3 * PAGE);
    cpus[0].run(|| dontneed(&space, BASE, MIB2));
    assert!(tables(&space) < 3 * PAGE);
    assert_eq!(sent(), before.0 + 1);
}

/// A table that is freed while a fault is in its section of the epoch stays in limbo until that ends. If it
/// is all the memory that there is, the fault has to leave first. Here it waits, in between, for a CPU that
/// does not acknowledge.
#[test]
fn a_fault_finds_the_table_that_it_held_in_limbo() {
    let machine = roomy(8, TablesTechnique::Free);
    let (space, frames) = (create_space(&machine), machine.memory().frames());
    let (small, full) = (VirtAddr(BASE.0 + GIB), VirtAddr(BASE.0 + 2 * GIB));
    map_at(&space, BASE.0, MIB2, RW);
    space.madvise(BASE, MIB2, Advice::HugePage).unwrap();
    machine.vcpu(0).unwrap().program(&space).write_u64(BASE, 1).unwrap();
    assert_eq!(frames.events().pmd_mapped(), 1);
    let child = space.fork().unwrap();
    {
        let cpu = machine.vcpu(1).unwrap();
        let program = cpu.program(&child);
        for start in [small, full] {
            map_at(&child, start.0, GIB, RW);
        }
        // A table with nothing but a zero page, and then all of RAM.
        assert_eq!(program.read_u64(small), Ok(0));
        fill_memory(&cpu, &child, full);
        assert_eq!(frames.reports().totals().free, 0);
    }
    let sent = || machine.memory().platform().counters().shootdowns;
    let before = sent();
    let (inside, dropped) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let cpu = machine.vcpu(2).unwrap();
            cpu.program(&space).inside(|guest| {
                assert_eq!(guest.read_u64(BASE), Ok(1));
                inside.store(true, Ordering::SeqCst);
                assert!(within_reason(|| dropped.load(Ordering::SeqCst)));
            });
        });
        scope.spawn(|| {
            let cpu = machine.vcpu(0).unwrap();
            assert!(within_reason(|| inside.load(Ordering::SeqCst)));
            // The leaf is split and flushed, then a page is copied.
            cpu.program(&space).write_u64(BASE, 2).unwrap();
        });
        scope.spawn(|| {
            let cpu = machine.vcpu(1).unwrap();
            assert!(within_reason(|| sent() > before));
            cpu.run(|| dontneed(&child, small, MIB2));
            dropped.store(true, Ordering::SeqCst);
        });
    });
    assert_eq!(machine.vcpu(1).unwrap().program(&child).read_u64(BASE), Ok(1));
    assert_audit(&machine);
}

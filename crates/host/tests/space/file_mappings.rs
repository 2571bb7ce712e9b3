//! Which mappings a file has, and who holds its openings.

use crate::common::*;
use crate::short_pins::machine::after_all_holds;
use crate::shortage::memory_of;
use quire_file::IndexRange;
use quire_frame::FailPlan;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;

const PRIVATE: MapFlags = MapFlags::empty();

fn at(page: u64, pages: u64) -> VirtRange {
    VirtRange::from_len(VirtAddr(GIB + page * PAGE), pages * PAGE).unwrap()
}

fn unmap(space: &HostSpace<'_>, range: VirtRange) {
    space.munmap(range.start(), range.len()).unwrap();
}

#[test]
fn each_part_of_a_mapping_holds_the_opening_until_it_goes() {
    let machine = machine(16, 1);
    let file = TestFile::opened(machine.memory(), 1);
    let (_cpu, space) = cpu_and_space(&machine);
    file.map(&space, (0, 10), at(0, 9), (RW, PRIVATE)).unwrap();
    assert_eq!((file.holders(0), file.mappings().is_empty()), (2, false));
    unmap(&space, at(3, 3));
    assert_eq!(file.holders(0), 3);
    assert_eq!(file.places(&machine, IndexRange::ALL).1, 2);
    assert!(file.places(&machine, IndexRange::new(13, 16)).0.is_empty(), "it is unmapped");
    space.mprotect(at(1, 1).start(), PAGE, READ, false).unwrap();
    assert_eq!(file.holders(0), 5, "two mappings, one of which was split in three");
    space.mprotect(at(1, 1).start(), PAGE, RW, false).unwrap();
    assert_eq!(file.holders(0), 3, "they have merged again");
    unmap(&space, at(0, 9));
    assert_eq!((file.holders(0), file.mappings().is_empty()), (1, true));
    file.let_go(0);
    assert!(file.open().is_empty());
}

#[test]
fn mappings_of_one_opening_merge_and_those_of_two_do_not() {
    let machine = machine(16, 1);
    let file = TestFile::opened(machine.memory(), 2);
    let (_cpu, space) = cpu_and_space(&machine);
    for (number, page) in [(0, 0), (0, 8), (1, 12), (0, 4)] {
        file.map(&space, (number, page), at(page, 4), (RW, MapFlags::SHARED)).unwrap();
    }
    // Pages 0 to 11 are one mapping, and the rest follows in the file and in memory.
    assert_eq!((file.holders(0), file.holders(1)), (2, 2));
    assert_eq!(mappings(&space).len(), 2);
}

#[test]
fn a_mapping_that_is_the_last_holder_leaves_its_file_to_be_closed() {
    let machine = machine(16, 1);
    let file = TestFile::opened(machine.memory(), 3);
    let (_cpu, space) = cpu_and_space(&machine);
    for number in 0..3 {
        file.map(&space, (number, 0), at(8 * number as u64, 4), (RW, PRIVATE)).unwrap();
    }
    let child = space.fork().unwrap();
    file.let_go(0);
    file.let_go(1);
    unmap(&space, at(0, 4));
    assert_eq!(file.open(), [0, 1, 2], "the child has it");
    unmap(&child, at(0, 4));
    assert_eq!(file.open(), [1, 2]);
    drop(child);
    assert_eq!(file.open(), [1, 2], "the parent has it");
    drop(space);
    assert_eq!(file.open(), [2]);
    file.let_go(2);
    assert!(file.open().is_empty());
}

/// Hazard: a page that a fork copies from a mapping that a walk has left behind is never found by that walk.
#[test]
fn a_mapping_is_visited_before_its_copies() {
    let machine = machine(16, 1);
    let file = TestFile::opened(machine.memory(), 1);
    let (_cpu, first) = cpu_and_space(&machine);
    file.map(&first, (0, 7), at(0, 4), (RW, MapFlags::SHARED)).unwrap();
    let mut family = vec![first];
    for parent in [0, 1, 0, 2, 3, 1, 0, 5] {
        family.push(family[parent].fork().unwrap());
    }
    let order: Vec<u64> =
        file.places(&machine, IndexRange::new(7, 8)).0.iter().map(|place| place.0).collect();
    assert_eq!(order, family.iter().map(|space| space.id().get()).collect::<Vec<_>>());
}

/// Hazard: a program writes to a page of a file that is clean for the file, and the file never learns of it.
#[test]
fn only_a_write_makes_a_page_of_a_shared_file_writable() {
    let machine = machine(16, 1);
    let file = TestFile::opened(machine.memory(), 1);
    let (cpu, space) = cpu_and_space(&machine);
    let area = file.map(&space, (0, 0), at(0, 8), (RW, MapFlags::SHARED)).unwrap();
    let faults_of = |work: &dyn Fn()| {
        let before = count(&machine, VmEvent::Pgfault);
        work();
        count(&machine, VmEvent::Pgfault) - before
    };
    assert_eq!(faults_of(&|| _ = read(&cpu, &space, area)), 1);
    assert_eq!(faults_of(&|| write(&cpu, &space, area, 1)), 1, "the file is told of the first write");
    assert_eq!(faults_of(&|| write(&cpu, &space, area, 2)), 0);
    assert_eq!(faults_of(&|| write(&cpu, &space, page(area, 1), 3)), 1);
    assert_eq!(faults_of(&|| write(&cpu, &space, page(area, 1), 4)), 0);
    space.mprotect(area, 2 * PAGE, READ, false).unwrap();
    space.mprotect(area, 2 * PAGE, RW, false).unwrap();
    assert_eq!(faults_of(&|| write(&cpu, &space, area, 5)), 1, "mprotect knows nothing of the file");
    assert_eq!((read(&cpu, &space, area), read(&cpu, &space, page(area, 1))), (5, 4));
}

/// Hazard: a file is closed, and what it had in memory freed, while a program still has its pages in the
/// tables.
#[test]
fn an_opening_is_held_until_the_pages_are_out_of_the_tables() {
    let memory = memory_of(2048, 1, |_| ());
    let file = TestFile::opened(memory, 1);
    let space = memory.create_space().unwrap();
    let range = at(0, 64);
    for replaces in [false, true] {
        file.map(&space, (0, 0), range, (RW, MapFlags::SHARED)).unwrap();
        (0..64).for_each(|nth| space.fault(page(range.start(), nth), Access::Write).unwrap());
        // Who holds it at the last release of the lock of a page table, which ends the unmapping.
        let (seen, watched) = (Rc::new(Cell::new(0)), file.place(0));
        let last = Rc::clone(&seen);
        let step = move |class| {
            if matches!(class, LockClass::PteTable | LockClass::UpperTable) {
                // SAFETY: the test holds it.
                last.set(unsafe { watched.as_ref() }.holders());
            }
        };
        after_all_holds(step, || {
            if replaces {
                map_at(&space, range.start().0, range.len(), RW);
            } else {
                space.munmap(range.start(), range.len()).unwrap();
            }
        });
        assert_eq!((seen.get(), file.holders(0)), (2, 1), "replaces: {replaces}");
    }
}

/// Walks of a file beside calls of two processes that change its mappings: a walk finds each mapping as it
/// was before or as it is after a change, and never one twice.
#[test]
fn walks_beside_calls_find_whole_mappings() {
    let machine = machine(64, 3);
    let file = &TestFile::opened(machine.memory(), 1);
    let spaces = [create_space(&machine), create_space(&machine)];
    let stays = at(40, 4);
    for space in &spaces {
        file.map(space, (0, 40), stays, (RW, MapFlags::SHARED)).unwrap();
        file.map(space, (0, 0), at(0, 16), (RW, MapFlags::SHARED)).unwrap();
    }
    let walking = &AtomicBool::new(true);
    std::thread::scope(|scope| {
        let changing: Vec<_> = spaces.iter().zip(1..).map(|(space, cpu)| (space, cpu, &machine)).collect();
        let changing: Vec<_> = changing
            .into_iter()
            .map(|(space, cpu, machine)| {
                scope.spawn(move || {
                    let _cpu = machine.vcpu(cpu).unwrap();
                    for turn in 0..400 {
                        let part = at(turn % 12, 1 + turn % 4);
                        unmap(space, part);
                        let fixed = RemapFlags::MAYMOVE | RemapFlags::FIXED;
                        let target = at(20, 1).start();
                        _ = space.fault(at(15, 1).start(), Access::Write);
                        space.mremap(at(15, 1).start(), PAGE, PAGE, fixed, target).unwrap();
                        space.mremap(target, PAGE, PAGE, fixed, at(15, 1).start()).unwrap();
                        _ = space.mprotect(at(2, 3).start(), PAGE, READ, false);
                        drop(space.fork().unwrap());
                        file.map(space, (0, 0), at(0, 16), (RW, MapFlags::SHARED)).unwrap();
                    }
                })
            })
            .collect();
        let walker = scope.spawn(|| {
            let _cpu = machine.vcpu(0).unwrap();
            // Once more when all is done: the calls may be over before this thread runs.
            let mut goes_on = true;
            while goes_on {
                goes_on = walking.load(Ordering::Relaxed);
                let (mut found, _) = file.places(&machine, IndexRange::ALL);
                let all = found.len();
                found.sort_unstable();
                found.dedup();
                assert_eq!(found.len(), all, "a page was visited twice");
                let kept = found.iter().filter(|place| place.1 == stays.start().0).count();
                assert!(kept >= 2, "a mapping that stays was missed");
            }
        });
        // The walker ends also when one of them has failed.
        let ended: Vec<_> = changing.into_iter().map(ScopedJoinHandle::join).collect();
        walking.store(false, Ordering::Relaxed);
        walker.join().unwrap();
        ended.into_iter().for_each(Result::unwrap);
    });
    drop(spaces);
    assert_eq!(file.holders(0), 1);
}

/// What a fork that fails has copied lets the file go.
#[test]
fn a_fork_that_fails_holds_nothing() {
    let machine = machine(16, 1);
    let file = TestFile::opened(machine.memory(), 1);
    let (_cpu, space) = cpu_and_space(&machine);
    for nth in 0..4 {
        file.map(&space, (0, 0), at(8 * nth, 4), (RW, MapFlags::SHARED)).unwrap();
        space.fault(at(8 * nth, 1).start(), Access::Write).unwrap();
    }
    let failed = (0..64).filter(|&nth| {
        let forked = failing(&machine, FailPlan::nth(nth), || space.fork());
        assert_eq!(file.holders(0), if forked.is_ok() { 9 } else { 5 }, "allocation {nth}");
        forked.is_err()
    });
    assert!(failed.count() > 2);
    assert_eq!(file.holders(0), 5);
}

/// What a page of a space maps: a page of an opening, or memory of its own.
type Page = Option<(usize, u64)>;

/// Random calls of several processes on two files. After each the files have the mappings, and the openings
/// the holders, that the calls leave.
#[test]
fn random_calls_leave_every_mapping_with_its_file() {
    const PAGES: u64 = 48;
    const OPENINGS: usize = 3;
    for seed in 0..setting("QUIRE_SEEDS", 6) {
        let (mut random, machine) = (Random(seed), machine(64, 1));
        let files = [0; 2].map(|_| TestFile::opened(machine.memory(), OPENINGS));
        let mut held = [[true; OPENINGS]; 2];
        let (_cpu, first) = cpu_and_space(&machine);
        let mut spaces: Vec<(HostSpace<'_>, BTreeMap<u64, Page>)> = vec![(first, BTreeMap::new())];
        for _ in 0..600 {
            let who = random.below(spaces.len() as u64) as usize;
            let start = random.below(PAGES);
            let pages = 1 + random.below((PAGES - start).min(12));
            let (range, first) = (at(start, pages), start);
            let (space, model) = &mut spaces[who];
            match random.below(16) {
                0..=4 => {
                    let (which, number) = (random.below(2) as usize, random.below(OPENINGS as u64) as usize);
                    // Often what follows in memory follows in the file.
                    let index = if random.chance(60) { start } else { random.below(PAGES) };
                    let flags = if random.chance(50) { MapFlags::SHARED } else { PRIVATE };
                    if held[which][number] {
                        files[which].map(space, (number, index), range, (RW, flags)).unwrap();
                        let opening = which * OPENINGS + number;
                        model.extend((0..pages).map(|nth| (first + nth, Some((opening, index + nth)))));
                    }
                }
                5 => {
                    let request = MapRequest::anonymous(range.len(), RW).at(range.start(), MapFlags::FIXED);
                    space.mmap(&request).unwrap();
                    model.extend((0..pages).map(|nth| (first + nth, None)));
                }
                6..=7 => {
                    unmap(space, range);
                    model.retain(|page, _| !(first..first + pages).contains(page));
                }
                8..=9 => {
                    _ = space.mprotect(range.start(), range.len(), random.pick(&[RW, READ]), false);
                }
                10 => _ = space.madvise(range.start(), range.len(), Advice::DontNeed),
                11..=12 => _ = space.fault(range.start(), random.pick(&[Access::Read, Access::Write])),
                13 => {
                    let to = if start + pages <= PAGES / 2 { start + PAGES / 2 } else { start % pages };
                    let apart = to + pages <= start || start + pages <= to;
                    let is_whole = (first..first + pages).all(|page| model.contains_key(&page));
                    if apart && is_whole && to + pages <= PAGES {
                        let fixed = RemapFlags::MAYMOVE | RemapFlags::FIXED;
                        let target = at(to, pages).start();
                        space.mremap(range.start(), range.len(), range.len(), fixed, target).unwrap();
                        for nth in 0..pages {
                            let moved = model.remove(&(first + nth)).unwrap();
                            model.insert(to + nth, moved);
                        }
                    }
                }
                14 if spaces.len() < 6 => {
                    let child = (spaces[who].0.fork().unwrap(), spaces[who].1.clone());
                    spaces.push(child);
                }
                15 if spaces.len() > 1 && random.chance(40) => drop(spaces.swap_remove(who)),
                _ => {}
            }
            if random.chance(2) {
                let (which, number) = (random.below(2) as usize, random.below(OPENINGS as u64) as usize);
                if std::mem::take(&mut held[which][number]) {
                    files[which].let_go(number);
                }
            }
            check(&machine, &mut random, &files, &held, &spaces);
        }
        spaces.clear();
        for (file, held) in files.iter().zip(held) {
            assert!(file.mappings().is_empty());
            for (number, held) in held.into_iter().enumerate() {
                assert_eq!(file.holders(number), usize::from(held));
            }
        }
    }

    fn check(
        machine: &Machine,
        random: &mut Random,
        files: &[TestFile<'_>; 2],
        held: &[[bool; OPENINGS]; 2],
        spaces: &[(HostSpace<'_>, BTreeMap<u64, Page>)],
    ) {
        assert_audit(machine);
        let start = random.below(2 * PAGES);
        for pages in [IndexRange::ALL, IndexRange::new(start, start + random.below(8))] {
            for (which, file) in files.iter().enumerate() {
                let mut wanted = Vec::new();
                for (space, model) in spaces {
                    for (&page, mapped) in model {
                        if let &Some((opening, index)) = mapped
                            && opening / OPENINGS == which
                            && pages.start() <= index
                            && index < pages.end()
                        {
                            wanted.push((space.id().get(), at(page, 1).start().0));
                        }
                    }
                }
                wanted.sort_unstable();
                let mut found = file.places(machine, pages).0;
                found.sort_unstable();
                assert_eq!(found, wanted, "file {which}, {pages:?}");
            }
        }
        for (file, held) in files.iter().zip(held) {
            for (number, &held) in held.iter().enumerate() {
                assert_eq!(file.holders(number), usize::from(held) + file.named(number));
            }
        }
    }
}

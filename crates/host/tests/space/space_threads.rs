//! Real threads as vCPUs: faults on one space against calls that change it, in paranoid mode.
//!
//! Each word that a program writes names the generation and the page that it belongs to, so that a value from
//! another mapping, page or time is recognised. Work is bounded, seeds are fixed and printed. `QUIRE_ROUNDS`
//! makes the runs longer.

use crate::common::*;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// At the border of every level of tables.
const BASE: u64 = (1 << 39) - 8 * PAGE;
const PAGES: u64 = 16;

fn rounds(default: u64) -> u64 {
    setting("QUIRE_ROUNDS", default)
}

/// Runs `program` on each of the CPUs from 1 on while `changes` runs on CPU 0, and audits the machine.
fn against<'m>(
    machine: &'m Machine,
    space: &HostSpace<'m>,
    seed: u64,
    program: impl Fn(&HostProgram<'_, 'm>, &mut Random) + Sync,
    changes: impl FnOnce(&HostSpace<'m>, &mut Random),
) {
    println!("seed {seed}");
    let done = AtomicBool::new(false);
    let cpus = Platform::cpu_count(machine.memory().platform());
    let started = Barrier::new(cpus);
    thread::scope(|scope| {
        for number in 1..cpus {
            let (done, program, started) = (&done, &program, &started);
            scope.spawn(move || {
                let cpu = machine.vcpu(number).expect("each CPU has one thread");
                let mut random = Random(seed << 8 | number as u64);
                let guest = cpu.program(space);
                started.wait();
                while !done.load(Ordering::Relaxed) {
                    program(&guest, &mut random);
                }
            });
        }
        let cpu = machine.vcpu(0).expect("each CPU has one thread");
        // Also when the changes panic: the others must end.
        struct Finish<'d>(&'d AtomicBool);
        impl Drop for Finish<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _finish = Finish(&done);
        started.wait();
        cpu.run(|| changes(space, &mut Random(seed)));
    });
    assert_audit(machine);
}

fn any_page(random: &mut Random) -> (u64, VirtAddr) {
    let at = random.below(PAGES);
    (at, VirtAddr(BASE + at * PAGE))
}

#[test]
fn every_cpu_faults_every_page_once() {
    for cpus in [2, 4] {
        let machine = machine(32, cpus);
        let space = create_space(&machine).audited(&machine);
        let pages = 4 * MIB2 / PAGE;
        map_at(&space, (1 << 39) - 2 * MIB2, pages * PAGE, RW);
        let sum = AtomicU64::new(0);
        on_cpus(&machine, cpus, |number, cpu| {
            let program = cpu.program(&space);
            for at in 0..pages {
                let addr = VirtAddr((1 << 39) - 2 * MIB2 + at * PAGE + 8 * number as u64);
                assert_eq!(program.read_u64(addr), Ok(0));
                program.write_u64(addr, at + 1).unwrap();
                sum.fetch_add(program.read_u64(addr).unwrap(), Ordering::Relaxed);
            }
        });
        assert_eq!(space.figures().resident, pages * PAGE);
        assert_eq!(sum.into_inner(), cpus as u64 * pages * (pages + 1) / 2);
    }
}

/// What is known of a page: a generation that grows with each change, and whether it is mapped for sure.
struct Life(AtomicU64);

impl Life {
    const CHANGING: u64 = 0;
    const UNMAPPED: u64 = 1;
    const MAPPED: u64 = 2;

    fn get(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn state(life: u64) -> u64 {
        life % 4
    }

    fn generation(life: u64) -> u64 {
        life / 4
    }

    fn begin_change(&self) {
        self.0.store((Self::generation(self.get()) + 1) * 4 + Self::CHANGING, Ordering::SeqCst);
    }

    fn end_change(&self, state: u64) {
        self.0.store(Self::generation(self.get()) * 4 + state, Ordering::SeqCst);
    }
}

/// After `munmap` returned no access succeeds; each page holds zero or what was written to that very page.
#[test]
fn an_unmapped_page_is_gone_and_a_new_one_is_fresh() {
    for (seed, cpus) in [(1, 2), (2, 2), (3, 4)] {
        let machine = machine(16, cpus);
        let space = create_space(&machine);
        let lives: Vec<Life> = (0..PAGES).map(|_| Life(AtomicU64::new(Life::UNMAPPED))).collect();
        against(
            &machine,
            &space,
            seed,
            |program, random| {
                let (at, addr) = any_page(random);
                let before = lives[at as usize].get();
                let write = random.chance(50);
                let value = Life::generation(before) << 16 | at << 8 | 1;
                let result =
                    if write { program.write_u64(addr, value).map(|()| 0) } else { program.read_u64(addr) };
                let after = lives[at as usize].get();
                let state = if before == after { Life::state(before) } else { Life::CHANGING };
                match result {
                    Ok(seen) => {
                        assert_ne!(state, Life::UNMAPPED, "an access after munmap had returned");
                        if seen != 0 {
                            assert_eq!(seen >> 8 & 0xff, at, "a value of another page: {seen:#x}");
                            assert!(seen >> 16 <= Life::generation(after), "{seen:#x} in life {after}");
                        }
                    }
                    Err(error) => {
                        assert_eq!(error, NOT_MAPPED);
                        assert_ne!(state, Life::MAPPED, "a mapped page was refused");
                    }
                }
            },
            |space, random| {
                for _ in 0..rounds(2000) {
                    let first = random.below(PAGES);
                    let count = 1 + random.below(PAGES - first);
                    let addr = BASE + first * PAGE;
                    let changed = &lives[first as usize..(first + count) as usize];
                    changed.iter().for_each(Life::begin_change);
                    let state = if random.chance(50) {
                        space.munmap(VirtAddr(addr), count * PAGE).unwrap();
                        Life::UNMAPPED
                    } else {
                        map_at(space, addr, count * PAGE, RW);
                        Life::MAPPED
                    };
                    changed.iter().for_each(|life| life.end_change(state));
                }
            },
        );
    }
}

#[test]
fn faults_go_on_beside_changes_of_neighbouring_ranges() {
    for (seed, cpus) in [(11, 2), (12, 4)] {
        let machine = machine(16, cpus);
        let space = create_space(&machine);
        map_at(&space, BASE, PAGES * PAGE, RW);
        against(
            &machine,
            &space,
            seed,
            |program, random| {
                let (_, addr) = any_page(random);
                // Each CPU has its own word, so what it reads is what it wrote.
                let word = VirtAddr(addr.0 + 8 * (random.0 % 4));
                program.write_u64(word, 1).unwrap();
                assert_eq!(program.read_u64(word), Ok(1));
            },
            |space, random| {
                for _ in 0..rounds(1500) {
                    // Touching neighbours merge with the range and split from it again.
                    let count = 1 + random.below(6);
                    let addr = if random.chance(50) { BASE - count * PAGE } else { BASE + PAGES * PAGE };
                    map_at(space, addr, count * PAGE, RW);
                    if random.chance(50) {
                        space.mprotect(VirtAddr(addr), PAGE, READ, false).unwrap();
                    }
                    space.munmap(VirtAddr(addr), count * PAGE).unwrap();
                }
            },
        );
        space.munmap(VirtAddr(BASE), PAGES * PAGE).unwrap();
        assert_eq!(space.figures().page_tables, 0);
    }
}

#[test]
fn protection_holds_once_it_was_set() {
    let seed = 21;
    let machine = machine(16, 2);
    let space = create_space(&machine);
    map_at(&space, BASE, PAGES * PAGE, RW);
    // Odd while the page is read-only.
    let turn = AtomicU64::new(0);
    against(
        &machine,
        &space,
        seed,
        |program, random| {
            let (_, addr) = any_page(random);
            let before = turn.load(Ordering::SeqCst);
            let result = program.write_u64(addr, before);
            let quiet = turn.load(Ordering::SeqCst) == before;
            match result {
                Ok(()) => assert!(!quiet || before % 4 != 2, "a write to what is protected"),
                Err(error) => {
                    assert_eq!(error, DENIED);
                    assert!(!quiet || !before.is_multiple_of(4), "a write was refused though it is allowed");
                }
            }
            assert!(program.read_u64(addr).is_ok());
        },
        |space, _| {
            for round in 0..rounds(2000) {
                // 0: writable. 1: being protected. 2: protected. 3: being unprotected.
                turn.fetch_add(1, Ordering::SeqCst);
                let protection = if round % 2 == 0 { READ } else { RW };
                space.mprotect(VirtAddr(BASE), PAGES * PAGE, protection, false).unwrap();
                turn.fetch_add(1, Ordering::SeqCst);
            }
        },
    );
}

#[test]
fn dropped_pages_read_zero_or_what_was_written_since() {
    let seed = 31;
    let machine = machine(16, 2);
    let space = create_space(&machine);
    map_at(&space, BASE, PAGES * PAGE, RW);
    let drops = AtomicU64::new(0);
    against(
        &machine,
        &space,
        seed,
        |program, random| {
            let (_, addr) = any_page(random);
            let before = drops.load(Ordering::SeqCst);
            program.write_u64(addr, before + 1).unwrap();
            let seen = program.read_u64(addr).unwrap();
            if drops.load(Ordering::SeqCst) == before && before.is_multiple_of(2) {
                assert_eq!(seen, before + 1, "a write was lost with no drop under way");
            }
            assert!(seen == 0 || seen == before + 1, "{seen} after {before}");
        },
        |space, _| {
            for _ in 0..rounds(2000) {
                drops.fetch_add(1, Ordering::SeqCst);
                space.madvise(VirtAddr(BASE), PAGES * PAGE, Advice::DontNeed).unwrap();
                drops.fetch_add(1, Ordering::SeqCst);
            }
        },
    );
}

#[test]
fn contents_follow_moves_under_accesses() {
    for (seed, cpus) in [(41, 2), (42, 4)] {
        let machine = machine(16, cpus);
        let space = create_space(&machine);
        let elsewhere = BASE + MIB2 / 2 + 3 * PAGE;
        map_at(&space, BASE, PAGES * PAGE, RW);
        for at in 0..PAGES {
            let cpu = machine.vcpu(0).unwrap();
            cpu.program(&space).write_u64(VirtAddr(BASE + at * PAGE), at).unwrap();
        }
        against(
            &machine,
            &space,
            seed,
            |program, random| {
                let (at, addr) = any_page(random);
                for addr in [addr, VirtAddr(elsewhere + at * PAGE)] {
                    match program.read_u64(addr) {
                        Ok(seen) => assert_eq!(seen, at, "the page of another address"),
                        Err(error) => assert_eq!(error, NOT_MAPPED),
                    }
                    if let Err(error) = program.write_u64(addr, at) {
                        assert_eq!(error, NOT_MAPPED);
                    }
                }
            },
            |space, _| {
                for round in 0..rounds(1000) {
                    let (from, to) = if round % 2 == 0 { (BASE, elsewhere) } else { (elsewhere, BASE) };
                    space.mremap(VirtAddr(from), PAGES * PAGE, PAGES * PAGE, MOVE, VirtAddr(to)).unwrap();
                }
            },
        );
    }
}

#[test]
fn a_child_is_a_copy_of_one_moment() {
    let seed = 51;
    let machine = machine(32, 2);
    let space = create_space(&machine);
    let before = in_use(&machine);
    map_at(&space, BASE, PAGES * PAGE, RW);
    against(
        &machine,
        &space,
        seed,
        |program, random| {
            let (at, addr) = any_page(random);
            // Upper half: the page. Words are written whole.
            program.write_u64(addr, at << 32 | random.below(1 << 20)).unwrap();
        },
        |space, _| {
            for _ in 0..rounds(300) {
                let child = space.fork().unwrap();
                let cpu = machine.vcpu(0);
                assert!(cpu.is_err(), "this thread has the CPU");
                child.munmap(VirtAddr(BASE + 3 * PAGE), PAGE).unwrap();
                assert!(child.figures().resident <= PAGES * PAGE);
            }
        },
    );
    let child = space.fork().unwrap();
    let cpus = [machine.vcpu(0).unwrap(), machine.vcpu(1).unwrap()];
    for at in 0..PAGES {
        let addr = page(VirtAddr(BASE), at);
        let seen = cpus[1].program(&child).read_u64(addr).unwrap();
        assert_eq!(cpus[0].program(&space).read_u64(addr), Ok(seen));
        assert!(seen == 0 || seen >> 32 == at);
    }
    drop(child);
    space.munmap(VirtAddr(BASE), PAGES * PAGE).unwrap();
    assert_eq!(in_use(&machine).frames, before.frames);
}

/// Tags that are used again: a space sees no translation of the one that had its tag before, or has it too.
#[test]
fn spaces_that_share_or_inherit_a_tag_stay_apart() {
    for asids in [1, 2] {
        let machine: Machine = Setup::mib(16).cpus(2).asids(asids).build();
        let lives = AtomicU64::new(1);
        on_cpus(&machine, 2, |_, cpu| {
            for _ in 0..rounds(300) {
                let tag = lives.fetch_add(2, Ordering::Relaxed);
                let spaces = [0, 1].map(|_| create_space(&machine));
                for space in &spaces {
                    map_at(space, BASE, PAGES * PAGE, RW);
                }
                let programs = [cpu.program(&spaces[0]), cpu.program(&spaces[1])];
                for at in 0..2 * PAGES {
                    let addr = VirtAddr(BASE + at / 2 * PAGE);
                    let which = (at % 2) as usize;
                    assert_eq!(programs[which].read_u64(addr), Ok(0), "a page of another space");
                    programs[which].write_u64(addr, tag + which as u64).unwrap();
                }
                for at in 0..2 * PAGES {
                    let addr = VirtAddr(BASE + at / 2 * PAGE);
                    let which = (at % 2) as usize;
                    assert_eq!(programs[which].read_u64(addr), Ok(tag + which as u64));
                }
            }
        });
        assert_audit(&machine);
        assert_eq!(machine.memory().spaces().count(), 0);
    }
}

#[test]
fn two_threads_grow_one_stack() {
    let machine = machine(16, 2);
    for round in 0..20 {
        let space = create_space(&machine).audited(&machine);
        let top = (1 << 39) + 64 * PAGE;
        let request =
            MapRequest::anonymous(PAGE, RW).at(VirtAddr(top - PAGE), MapFlags::FIXED | MapFlags::GROWSDOWN);
        space.mmap(&request).unwrap();
        on_cpus(&machine, 2, |number, cpu| {
            let program = cpu.program(&space);
            for at in 1..128u64 {
                let step = if (at + round) % 3 == 0 { 2 } else { 1 };
                let addr = VirtAddr(top - at.next_multiple_of(step) * PAGE + 8 * number as u64);
                program.write_u64(addr, at).unwrap();
                assert_eq!(program.read_u64(addr), Ok(at));
            }
        });
        let mut stacks = 0;
        space.mappings().for_each(|_| stacks += 1);
        assert_eq!(stacks, 1, "the stack stayed one mapping");
        assert_eq!(space.figures().stack, space.figures().mapped);
    }
}

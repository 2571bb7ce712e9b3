//! Allocations fail while two threads change one space: each finds its own pages as it left them.

use crate::common::{
    HostProgram, HostSpace, PAGE, RW, Random, assert_audit, in_use, machine, map_at, setting,
};
use crate::scene::{BASE, access};
use quire_arch::VirtAddr;
use quire_frame::FaultPlan;
use quire_host::{Machine, Vcpu};
use quire_mm::{Advice, Errno, Error, MapFlags, MapRequest, RemapFlags};
use std::thread;

/// Pages of each thread; the threads' areas lie side by side, so they share tables, and the border of tables
/// is inside of the first.
const PAGES: u64 = 24;
const STEPS: u64 = 4000;

/// One thread: its pages, and what it wrote there last. A page that it never wrote to, or dropped, reads as
/// zero.
struct Owner<'t, 'm> {
    cpu: &'t Vcpu,
    space: &'t HostSpace<'m>,
    program: HostProgram<'t, 'm>,
    start: u64,
    words: [u64; PAGES as usize],
    random: Random,
    refused: u64,
}

impl Owner<'_, '_> {
    fn at(&self, page: u64) -> VirtAddr {
        VirtAddr(self.start + page * PAGE)
    }

    /// Counts a failure for want of memory. Any other is an error: the thread is alone with its pages.
    fn done(&mut self, result: Result<(), Error>) -> bool {
        match result {
            Ok(()) => true,
            Err(error) => {
                assert!([Errno::ENOMEM, Errno::EAGAIN].contains(&error.errno()), "{error}");
                self.refused += 1;
                false
            }
        }
    }

    fn step(&mut self, turn: u64) {
        let page = self.random.below(PAGES);
        let pages = 1 + self.random.below(PAGES - page);
        let range = page as usize..(page + pages) as usize;
        let (at, len) = (self.at(page), pages * PAGE);
        match self.random.below(10) {
            0..4 => {
                let result = access(self.program.write_u64(at, turn));
                if self.done(result) {
                    self.words[page as usize] = turn;
                }
            }
            4 => {
                let request = MapRequest::anonymous(len, RW).at(at, MapFlags::FIXED);
                let result = self.space.mmap(&request).map(drop);
                if self.done(result) {
                    self.words[range].fill(0);
                }
            }
            5 => {
                let result = self.space.madvise(at, len, Advice::DontNeed);
                assert_eq!(result, Ok(()), "dropping pages allocates nothing");
                self.words[range].fill(0);
            }
            6 => {
                let advice = self.random.pick(&[Advice::DontDump, Advice::DoDump]);
                let result = self.space.madvise(at, len, advice);
                self.done(result);
            }
            7 => {
                let result = self.space.madvise(at, len, Advice::PopulateWrite);
                self.done(result);
            }
            8 => self.move_there_and_back(page),
            _ => self.fork(),
        }
        let page = self.random.below(PAGES);
        let read = self.program.read_u64(self.at(page));
        if self.done(access(read)) {
            assert_eq!(read, Ok(self.words[page as usize]), "page {page} of {:#x}", self.start);
        }
    }

    /// Moves a page far away and back, however often that takes.
    fn move_there_and_back(&mut self, page: u64) {
        let near = self.at(page);
        let far = VirtAddr(near.0 + (1 << 40));
        for (from, to) in [(near, far), (far, near)] {
            let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
            let attempt = |owner: &mut Self| {
                let result = owner.space.mremap(from, PAGE, PAGE, flags, to).map(drop);
                owner.done(result)
            };
            assert!((0..1000).any(|_| attempt(self)), "a page cannot be moved");
        }
    }

    /// A child has the pages of the thread that forks; what the other thread writes meanwhile may be there or
    /// not.
    fn fork(&mut self) {
        let child = match self.space.fork() {
            Ok(child) => child,
            Err(error) => {
                self.done(Err(error));
                return;
            }
        };
        let program = self.cpu.program(&child);
        for page in 0..PAGES {
            let read = program.read_u64(self.at(page));
            if self.done(access(read)) {
                assert_eq!(read, Ok(self.words[page as usize]), "page {page} of a child");
            }
        }
    }
}

fn live(machine: &Machine, space: &HostSpace<'_>, number: usize, seed: u64) -> u64 {
    let cpu = machine.vcpu(number).expect("the CPU is free");
    let mut owner = Owner {
        cpu: &cpu,
        space,
        program: cpu.program(space),
        start: BASE + number as u64 * PAGES * PAGE,
        words: [0; PAGES as usize],
        random: Random(seed * 2 + number as u64),
        refused: 0,
    };
    for turn in 1..=STEPS {
        owner.step(turn);
    }
    owner.refused
}

#[test]
fn two_threads_lose_nothing_while_allocations_fail() {
    let first = setting("QUIRE_SEED", 1);
    for seed in first..first + 3 {
        println!("seed {seed}");
        let machine = machine(16, 2);
        let before = in_use(&machine);
        let space = machine.memory().create_space().expect("nothing fails yet");
        map_at(&space, BASE, 2 * PAGES * PAGE, RW);
        let faults = machine.memory().frames().faults();
        faults.set(FaultPlan::seeded(seed, 20));
        let refused: u64 = thread::scope(|scope| {
            let threads = [0, 1].map(|number| {
                let (machine, space) = (&machine, &space);
                scope.spawn(move || live(machine, space, number, seed))
            });
            threads.map(|thread| thread.join().expect("a thread found something wrong")).into_iter().sum()
        });
        faults.set(FaultPlan::OFF);
        // Each failure is reported once: nothing here hides one.
        assert_eq!(refused, faults.failed());
        assert!(refused > 20, "only {refused} failures");
        assert_audit(&machine);
        drop(space);
        assert_audit(&machine);
        assert_eq!(in_use(&machine), before, "frames or objects are lost");
    }
}

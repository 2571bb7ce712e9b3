//! Allocations fail while two threads change one space: each finds its own pages as it left them.

use crate::common::*;
use crate::scene::{BASE, access};
use quire_frame::FailPlan;
use std::ops::Range;
use std::sync::Arc;
use std::thread;

/// Pages of each thread; the threads' areas lie side by side, so they share tables, and the border of tables
/// is inside of the first.
const PAGES: u64 = 24;
const STEPS: u64 = 4000;

/// One thread, and its pages.
struct Owner<'t, 'm> {
    cpu: &'t Vcpu,
    process: Process<'m>,
    random: Random,
    refused: u64,
}

impl Owner<'_, '_> {
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

    fn call(&mut self, call: Call, range: Range<u64>) -> bool {
        let result = self.process.call(call, range);
        self.done(result)
    }

    fn step(&mut self, turn: u64) {
        let page = self.random.below(PAGES);
        let pages = 1 + self.random.below(PAGES - page);
        let range = page..page + pages;
        match self.random.below(10) {
            0..4 => {
                let result = self.process.write(self.cpu, page, turn);
                self.done(access(result));
            }
            4 => drop(self.call(Call::Map(RW), range)),
            5 => {
                let dropped = self.call(Call::Advise(Advice::DontNeed), range);
                assert!(dropped, "dropping pages allocates nothing");
            }
            6 => {
                let advice = self.random.pick(&[Advice::DontDump, Advice::DoDump]);
                self.call(Call::Advise(advice), range);
            }
            7 => drop(self.call(Call::Advise(Advice::PopulateWrite), range)),
            8 => self.move_there_and_back(page),
            _ => self.fork(),
        }
        let page = self.random.below(PAGES);
        let read = self.process.check(self.cpu, page);
        self.done(access(read));
    }

    /// Moves a page far away and back, however often that takes.
    fn move_there_and_back(&mut self, page: u64) {
        let far = page + (1 << 40) / PAGE;
        for (from, to) in [(page, far), (far, page)] {
            let moved = (0..1000).any(|_| self.call(Call::move_to(to, 1), from..from + 1));
            assert!(moved, "a page cannot be moved");
        }
    }

    /// A child has the pages of the thread that forks; what the other thread writes meanwhile may be there or
    /// not.
    fn fork(&mut self) {
        match self.process.fork() {
            Ok(child) => {
                for page in 0..PAGES {
                    self.done(access(child.check(self.cpu, page)));
                }
            }
            Err(error) => drop(self.done(Err(error))),
        }
    }
}

fn live(machine: &Machine, process: Process<'_>, number: usize, seed: u64) -> u64 {
    let cpu = machine.vcpu(number).expect("the CPU is free");
    let random = Random(seed * 2 + number as u64);
    let mut owner = Owner { cpu: &cpu, process, random, refused: 0 };
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
        let space = Arc::new(create_space(&machine));
        map_at(&space, BASE, 2 * PAGES * PAGE, RW);
        let fail_points = machine.memory().frames().fail_points();
        fail_points.set(FailPlan::seeded(seed, 20));
        let refused: u64 = thread::scope(|scope| {
            let threads = [0, 1].map(|number| {
                let start = VirtAddr(BASE + number as u64 * PAGES * PAGE);
                let process = Process::new(Arc::clone(&space), start, 0..PAGES);
                let machine = &machine;
                scope.spawn(move || live(machine, process, number, seed))
            });
            threads.map(|thread| thread.join().expect("a thread found something wrong")).into_iter().sum()
        });
        fail_points.set(FailPlan::OFF);
        // Each failure is reported once: nothing here hides one.
        assert_eq!(refused, fail_points.failed());
        assert!(refused > 20, "only {refused} failures");
        assert_audit(&machine);
        drop(space);
        assert_audit(&machine);
        assert_eq!(in_use(&machine), before, "frames or objects are lost");
    }
}

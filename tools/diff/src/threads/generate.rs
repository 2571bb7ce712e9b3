//! Random programs.

use super::program::{MAX_PAGES, MAX_STEPS, Op, Pause, Program, Rights, Span, Turn};
use crate::random::Random;

/// The kinds of calls that a program may be made of. Each program leaves some out and prefers some: a bug
/// needs a few operations to meet, and they do so more often in programs that make little else.
const KINDS: usize = 9;
const WEIGHTS: [usize; 6] = [0, 0, 1, 2, 4, 8];

struct Generator {
    random: Random,
    pages: u8,
    /// Accesses and calls gather around this page.
    hot: u8,
    weights: [(usize, usize); KINDS],
    /// Percentage of accesses among the operations.
    accesses: u8,
    values: u8,
}

/// Program `number` of the run with `seed`, for `threads` threads.
pub(super) fn program(seed: u64, number: u64, threads: usize) -> Program {
    let mut random = Random::new(seed, number);
    let pages = 4 + random.below(u64::from(MAX_PAGES) - 3) as u8;
    let mut weights = [(0, 0); KINDS];
    while weights.iter().all(|&(_, weight)| weight == 0) {
        weights = core::array::from_fn(|kind| (kind, random.pick(&WEIGHTS)));
    }
    let hot = random.below(u64::from(pages)) as u8;
    let accesses = random.pick(&[30, 50, 70, 90]);
    let mut generator = Generator { random, pages, hot, weights, accesses, values: 0 };
    let setup = generator.setup();
    let longest = generator.random.pick(&[8, 16, MAX_STEPS as u64]);
    let waiting = generator.random.pick(&[0, 0, 30, 60]);
    let threads = (0..threads).map(|_| generator.thread(longest, waiting)).collect();
    Program { serial: number, pages, setup, threads }
}

impl Generator {
    fn setup(&mut self) -> Vec<Op> {
        let mut setup = Vec::new();
        if self.random.chance(80) {
            let span = Span { first: 0, count: self.pages };
            setup.push(Op::Map { span, rights: Rights::Write, populate: self.random.chance(20) });
        }
        for _ in 0..self.random.below(10) {
            setup.push(match self.random.below(8) {
                0 => Op::Map { span: self.span(), rights: self.rights(), populate: false },
                1 => Op::Protect { span: self.span(), rights: self.rights() },
                2 => Op::Read { page: self.page() },
                _ => self.write(),
            });
        }
        setup
    }

    fn thread(&mut self, longest: u64, waiting: u8) -> Vec<Turn> {
        let count = 4 + self.random.below(longest - 3);
        let step = |_| {
            let op = self.op();
            let pause = if !self.random.chance(waiting) {
                Pause::Turns(0)
            } else if self.random.chance(15) {
                Pause::Yield
            } else {
                Pause::Turns(self.random.below(400) as u16)
            };
            Turn { pause, op }
        };
        (0..count).map(step).collect()
    }

    fn op(&mut self) -> Op {
        if self.random.chance(self.accesses) {
            return if self.random.chance(50) { Op::Read { page: self.page() } } else { self.write() };
        }
        let kind = self.random.weighted(&self.weights);
        let span = self.span();
        match kind {
            0 => Op::Map { span, rights: self.rights(), populate: self.random.chance(20) },
            1 => Op::Unmap { span },
            2 => Op::Protect { span, rights: self.rights() },
            3 => Op::Drop { span },
            4 => Op::Populate { span, write: self.random.chance(60) },
            5 => self.movement(),
            6 => Op::Lock { span },
            7 => Op::Unlock { span },
            // Forks cost more than everything else together.
            _ if self.random.chance(30) => Op::Fork,
            _ => Op::Read { page: self.page() },
        }
    }

    fn page(&mut self) -> u8 {
        if self.random.chance(40) { self.hot } else { self.random.below(u64::from(self.pages)) as u8 }
    }

    fn write(&mut self) -> Op {
        self.values += 1;
        Op::Write { page: self.page(), value: self.values }
    }

    fn rights(&mut self) -> Rights {
        self.random.pick(&[
            Rights::None,
            Rights::Read,
            Rights::Read,
            Rights::Write,
            Rights::Write,
            Rights::Write,
        ])
    }

    fn span(&mut self) -> Span {
        let first = self.page();
        let rest = u64::from(self.pages - first);
        let longest = if self.random.chance(70) { rest.min(4) } else { rest };
        Span { first, count: 1 + self.random.below(longest) as u8 }
    }

    fn movement(&mut self) -> Op {
        let mut from = self.span();
        from.count = from.count.min(self.pages / 2);
        let places = u64::from(self.pages - from.count + 1);
        let mut to = self.random.below(places) as u8;
        // A few overlap and are refused.
        for _ in 0..4 {
            if from.overlaps(Op::target(from, to)) {
                to = self.random.below(places) as u8;
            }
        }
        Op::Move { from, to }
    }
}

#[cfg(test)]
mod tests {
    use super::super::program::Window;
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn programs_keep_to_their_window_and_write_each_value_once() {
        for number in 0..2000 {
            let threads = 2 + (number % 3) as usize;
            let program = program(1, number, threads);
            assert_eq!(program.threads.len(), threads);
            let steps = program.threads.iter().flatten().map(|step| step.op);
            let mut values = BTreeSet::new();
            for op in program.setup.iter().copied().chain(steps) {
                match op {
                    Op::Write { page, value } => {
                        assert!(page < program.pages && values.insert(value), "{op}");
                        assert!((1..Program::CLOSING).contains(&value), "{op}");
                    }
                    Op::Read { page } => assert!(page < program.pages, "{op}"),
                    _ => {}
                }
                if let Some(call) = program.window().call(op) {
                    let (start, len) = Window::largest();
                    assert!(call.args[1] > 0, "{op}");
                    assert!(call.args[0] >= start && call.args[0] + call.args[1] <= start + len, "{op}");
                }
            }
            assert!(program.threads.iter().all(|steps| (4..=MAX_STEPS).contains(&steps.len())));
        }
    }

    #[test]
    fn the_same_seed_makes_the_same_program() {
        assert_eq!(program(7, 3, 2), program(7, 3, 2));
        assert_ne!(program(7, 3, 2).threads, program(7, 4, 2).threads);
        assert_ne!(program(7, 3, 2).threads, program(8, 3, 2).threads);
    }
}

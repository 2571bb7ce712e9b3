//! The posted loop: a large mapping of which a little is touched and dropped at a time, until all of it was.
//! Its page tables at the end, and its time.

use super::Scale;
use crate::contest::{Job, Outcome, Terms};
use crate::experiment::{Measured, Part};
use crate::linux::{RoundFigures, now, round_figures};
use crate::process::Process;
use crate::report::Metric;
use crate::rounds::Series;
use crate::scale::MIB;
use quire_arch::{Access, Order, PAGE_SIZE};
use quire_space::TablesTechnique;

const STEP: u64 = Order::PMD.bytes();

const TABLES: Metric = Metric::lower("page_tables_at_the_end", "kB");
const MOST: Metric = Metric::lower("most_page_tables", "kB");

/// How memory is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Emptying {
    /// By `DONTNEED` of pieces of this size.
    DontNeed { offset: u64, piece: u64 },
    /// The same after reads: only the zero page was mapped.
    Zeros { offset: u64 },
    /// By `munmap` of the first half of each step, which alone was touched.
    Unmap,
    /// By `mremap` of that half to elsewhere, over what was moved there before.
    Move,
    /// By `FREE` of each step: reclaim takes the pages when memory is short, and at the end all that are
    /// left.
    Free,
}

/// The cases, with the title of each and whether each page is touched whatever the scale says.
const CASES: [(&str, Emptying, bool); 10] = [
    ("DONTNEED of 2 MiB, as posted", Emptying::DontNeed { offset: 0, piece: STEP }, true),
    ("DONTNEED of 2 MiB", Emptying::DontNeed { offset: 0, piece: STEP }, false),
    ("DONTNEED of 2 MiB at an offset of 4 KiB", Emptying::DontNeed { offset: PAGE_SIZE, piece: STEP }, false),
    ("DONTNEED of 2 MiB at an offset of 1 MiB", Emptying::DontNeed { offset: MIB, piece: STEP }, false),
    ("DONTNEED of 1 MiB", Emptying::DontNeed { offset: 0, piece: MIB }, false),
    ("DONTNEED of 64 KiB", Emptying::DontNeed { offset: 0, piece: 64 << 10 }, false),
    ("DONTNEED of 2 MiB of zero pages at an offset of 4 KiB", Emptying::Zeros { offset: PAGE_SIZE }, false),
    ("munmap of every second 1 MiB", Emptying::Unmap, false),
    ("mremap of every second 1 MiB", Emptying::Move, false),
    ("FREE of 2 MiB, and reclaim", Emptying::Free, false),
];

/// The loop, a part of it a round.
#[derive(Clone, Debug)]
pub(super) struct Sweep {
    emptying: Emptying,
    stride: u64,
    span: u64,
    a_round: u64,
    rounds: u64,
    at: u64,
    /// Page tables of the process itself, which are there before.
    own: u64,
}

impl Sweep {
    pub(super) fn new(emptying: Emptying, stride: u64, span: u64, rounds: u64) -> Self {
        Self { emptying, stride, span, a_round: span / STEP / rounds, rounds, at: 0, own: 0 }
    }

    /// A place apart, at a border of PMD tables.
    fn apart(&self) -> u64 {
        self.span.next_multiple_of(1 << 30) + (1 << 30)
    }

    fn step<P: Process>(&self, at: u64, process: &mut P) -> Result<(), P::Error> {
        match self.emptying {
            Emptying::DontNeed { offset, piece } => {
                let at = at + offset;
                process.touch(at, STEP, self.stride, Access::Write)?;
                (0..STEP / piece).try_for_each(|nth| process.dont_need(at + nth * piece, piece))
            }
            Emptying::Zeros { offset } => {
                process.touch(at + offset, STEP, self.stride, Access::Read)?;
                process.dont_need(at + offset, STEP)
            }
            Emptying::Unmap => {
                process.touch(at, STEP / 2, self.stride, Access::Write)?;
                process.unmap(at, STEP / 2)
            }
            Emptying::Move => {
                process.touch(at, STEP / 2, self.stride, Access::Write)?;
                process.relocate(at, STEP / 2, self.apart())
            }
            Emptying::Free => {
                process.touch(at, STEP, self.stride, Access::Write)?;
                process.free(at, STEP)
            }
        }
    }
}

impl Job for Sweep {
    fn area(&self) -> u64 {
        self.apart() + STEP
    }

    fn round<P: Process>(&mut self, process: &mut P) -> Result<RoundFigures, P::Error> {
        if self.at == 0 {
            [self.own, _] = process.sizes()?;
            process.map(0, self.span + STEP)?;
        }
        let start = now();
        for nth in 0..self.a_round {
            self.step(self.at + nth * STEP, process)?;
        }
        let time = (now() - start) as f64 / 1000.0 / self.a_round as f64;
        self.at += self.a_round * STEP;
        if self.emptying == Emptying::Free && self.at == self.a_round * STEP * self.rounds {
            process.reclaim(0, self.at)?;
        }
        let [tables, _] = process.sizes()?;
        Ok(round_figures([time, tables.saturating_sub(self.own) as f64]))
    }
}

pub(super) fn part(scale: &Scale) -> Part<'_, TablesTechnique> {
    let gib = scale.span as f64 / f64::from(1 << 30);
    let stride = |each_page| if each_page { 1 } else { scale.stride };
    Part::new(
        format!("{gib} GiB touched and dropped 2 MiB at a time: page tables at the end"),
        CASES,
        |&(what, _, each_page)| {
            let pages = if each_page { String::new() } else { format!(", a page in {}", stride(each_page)) };
            format!("{gib} GiB, {what}{pages}")
        },
        move |name, (_, emptying, each_page)| {
            // Its tables, two mappings a step, and what is touched.
            let terms = Terms::pages(scale.span / 256 + (32 << 20), scale.sweep_rounds);
            let job = Sweep::new(emptying, stride(each_page), scale.span, scale.sweep_rounds as u64);
            let outcome = Outcome::of(terms, &job)?;
            let tables =
                [outcome.figure(name, TABLES, 1, Series::last), outcome.figure(name, MOST, 1, Series::max)];
            let times = outcome.times(name, Metric::times("us/step"), 0);
            Ok(Measured::new(tables.into_iter().chain(times), outcome.findings))
        },
    )
}

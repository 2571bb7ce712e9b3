//! Populated memory that is unmapped: by one `munmap`, in pieces, with a child that maps it too, and by an
//! exit; and `fork` with such memory, with the exit of the child that touched nothing.

use super::Scale;
use crate::contest::{Job, Outcome, Terms};
use crate::experiment::{Measured, Part};
use crate::folios::{Folios, pages};
use crate::linux::RoundFigures;
use crate::process::{Cost, Process};
use crate::report::Metric;
use crate::rounds::Series;
use quire_arch::{Access, Order};
use quire_mm::space::GatherTechnique;

/// Rounds before those that count.
const WARM_UP: usize = 1;
/// Bytes of memory that are unmapped at a time where it is unmapped in pieces.
pub(super) const PIECE: u64 = 64 << 10;

/// The folios of the cases that are not done with every kind.
const SOME: [Folios; 4] = [Folios::PAGES, Folios::of(Order::ALL[3]), Folios::of(Order::ALL[4]), Folios::PMD];
const FEW: [Folios; 3] = [Folios::PAGES, Folios::of(Order::ALL[4]), Folios::PMD];

const TIMES: [Metric; 2] = Metric::times("ns/page");
const SHOOTDOWNS: Metric = Metric::lower("shootdowns", "per call");
const INTERRUPTS: Metric = Metric::lower("interrupts", "per call");
const WAITING: Metric = Metric::lower("memory_still_waiting", "KiB");

/// What becomes of the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    /// It is unmapped at once.
    Munmap,
    /// Every second piece of it is unmapped, in calls of [`PIECE`] bytes.
    Pieces,
    /// It is unmapped while a child maps it too.
    Shared,
    /// Its process exits.
    Exit,
    /// It is written to again, so that each fork finds it as the first did.
    Fork,
}

/// An operation on `bytes` of memory in `folios`.
#[derive(Clone, Debug)]
struct Teardown {
    operation: Operation,
    bytes: u64,
    folios: Folios,
    /// There is memory of an earlier round.
    populated: bool,
}

impl Teardown {
    /// The times for each page, flushes for each of `calls`, and pages.
    fn figures(&self, cost: Cost, second: u64, calls: u64) -> RoundFigures {
        let a_page = |time: u64| time as f64 / pages(self.bytes) as f64;
        let a_call = |counts: &[u64]| counts.iter().sum::<u64>() as f64 / calls as f64;
        [
            a_page(cost.time),
            a_page(second),
            a_call(&cost.flushes.shootdowns),
            a_call(&cost.flushes.interrupts),
            cost.waiting as f64,
            0.0,
        ]
    }
}

impl Job for Teardown {
    fn area(&self) -> u64 {
        self.bytes
    }

    fn round<P: Process>(&mut self, process: &mut P) -> Result<RoundFigures, P::Error> {
        let Self { operation, bytes, folios, populated } = *self;
        let available = process.available();
        if operation != Operation::Exit && !populated {
            process.populate(0, bytes, 1, folios)?;
        }
        let (mut second, mut calls) = (0, 1);
        let cost = match operation {
            Operation::Munmap => process.timed(available, |process| process.unmap(0, bytes))?,
            Operation::Pieces => {
                let pieces = bytes / PIECE;
                calls = pieces / 2;
                // Half of it stays until then.
                let left = available.saturating_sub(pages(bytes) / 2);
                let cost = process.timed(left, |process| {
                    (0..pieces).step_by(2).try_for_each(|nth| process.unmap(nth * PIECE, PIECE))
                })?;
                process.unmap(0, bytes)?;
                Cost { time: 2 * cost.time, ..cost }
            }
            Operation::Shared => process.beside_child(|process| {
                // All of it stays.
                let left = process.available();
                process.timed(left, |process| process.unmap(0, bytes))
            })?,
            Operation::Exit => process.exit(bytes, folios)?,
            Operation::Fork => {
                self.populated = true;
                process.touch(0, bytes, 1, Access::Write)?;
                let cost;
                (cost, second) = process.fork()?;
                cost
            }
        };
        Ok(self.figures(cost, second, calls))
    }
}

/// Each operation with its name, the title of its cases, and the folios that it is done with.
fn operations() -> [(Operation, &'static str, &'static str, Vec<Folios>); 5] {
    [
        (Operation::Munmap, "munmap", "munmap of populated memory", Folios::all().collect()),
        (Operation::Exit, "exit", "exit of a process with populated memory", SOME.to_vec()),
        (Operation::Pieces, "munmap in pieces", "munmap of every second 64 KiB", SOME.to_vec()),
        (Operation::Shared, "munmap beside a child", "munmap of what a child maps too", SOME.to_vec()),
        (Operation::Fork, "fork", "fork with written memory", FEW.to_vec()),
    ]
}

pub(super) fn parts(scale: &Scale) -> impl Iterator<Item = Part<'_, GatherTechnique>> {
    operations().into_iter().map(move |(operation, name, title, folios)| {
        let bytes = if operation == Operation::Munmap { scale.munmap_bytes } else { scale.other_bytes };
        Part::new(
            format!("{title}, {} MiB: ns for each page", bytes >> 20),
            folios,
            move |folios| format!("{name}, {folios}"),
            move |case, folios| {
                let terms = Terms {
                    folios,
                    warm_up: WARM_UP,
                    host_controls: scale.host_controls,
                    ..Terms::pages(bytes, scale.rounds)
                };
                let outcome = Outcome::of(terms, &Teardown { operation, bytes, folios, populated: false })?;
                let mut figures = Vec::from(outcome.times(case, TIMES, 0));
                figures.extend([
                    outcome.own_figure(case, SHOOTDOWNS, 2, Series::mean),
                    outcome.own_figure(case, INTERRUPTS, 3, Series::mean),
                    outcome.own_figure(case, WAITING, 4, |pages| pages.median() * 4.0),
                ]);
                if operation == Operation::Fork {
                    figures.extend(outcome.times(&format!("exit of the child, {folios}"), TIMES, 1));
                }
                Ok(Measured::new(figures, outcome.findings))
            },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::{Linux, OnHost};

    #[test]
    fn linux_does_every_operation_with_pages_round_after_round() {
        for (operation, name, ..) in operations() {
            let job = Teardown { operation, bytes: 8 << 20, folios: Folios::PAGES, populated: false };
            let mut linux = Linux::start(32 << 20, OnHost::new(job, Folios::PAGES)).expect("8 MiB are free");
            for round in 0..3 {
                let figures = linux.round().expect("pages need no control");
                assert!(figures[0] > 0.0, "{name}, round {round}: {figures:?}");
            }
        }
    }
}

//! Memory that is touched and dropped again and again: where freeing tables gains nothing.

use super::Scale;
use crate::contest::{Job, Outcome, Terms};
use crate::experiment::{Measured, Part};
use crate::linux::{RoundFigures, now, round_figures};
use crate::process::Process;
use crate::report::Metric;
use quire_arch::{Access, Order, PAGE_SIZE};
use quire_space::TablesTechnique;

const TABLE: u64 = Order::PMD.bytes();
const WARM_UP: usize = 1;

/// What is touched and dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Border {
    /// A page beside others in its table, which is never empty.
    Beside,
    /// A page alone in its table.
    Page,
    /// The whole range of a table, with one page of it touched.
    Whole,
    /// A page alone in its table, in turn in two tables.
    TwoTables,
    /// The same in two tables with a PMD table each.
    TwoPmdTables,
}

impl Border {
    pub(super) const ALL: [(Self, &'static str, &'static str); 5] = [
        (Self::Beside, "a page, its table in use", "beside"),
        (Self::Page, "a page, its table empty", "page"),
        (Self::Whole, "2 MiB with a page in it", "whole"),
        (Self::TwoTables, "a page of two tables in turn", "tables"),
        (Self::TwoPmdTables, "a page of two PMD tables in turn", "pmds"),
    ];
}

#[derive(Clone, Debug)]
pub(super) struct Borders {
    border: Border,
    calls: u64,
    mapped: bool,
}

impl Borders {
    pub(super) const fn new(border: Border, calls: u64) -> Self {
        Self { border, calls, mapped: false }
    }

    fn call<P: Process>(&self, nth: u64, process: &mut P) -> Result<(), P::Error> {
        let (at, bytes) = match self.border {
            Border::Beside | Border::Page => (TABLE / 2, PAGE_SIZE),
            Border::Whole => (0, TABLE),
            Border::TwoTables => (TABLE / 2 + nth % 2 * TABLE, PAGE_SIZE),
            Border::TwoPmdTables => (TABLE / 2 + nth % 2 * (1 << 30), PAGE_SIZE),
        };
        process.touch(at, PAGE_SIZE, 1, Access::Write)?;
        process.dont_need(at, bytes)
    }
}

impl Job for Borders {
    fn area(&self) -> u64 {
        2 << 30
    }

    fn round<P: Process>(&mut self, process: &mut P) -> Result<RoundFigures, P::Error> {
        if !self.mapped {
            process.map(0, self.area())?;
            self.mapped = true;
            if self.border == Border::Beside {
                process.touch(0, PAGE_SIZE, 1, Access::Write)?;
            }
        }
        let start = now();
        (0..self.calls).try_for_each(|nth| self.call(nth, process))?;
        Ok(round_figures([(now() - start) as f64 / self.calls as f64]))
    }
}

pub(super) fn part(scale: &Scale) -> Part<'_, TablesTechnique> {
    Part::new(
        "Memory that is touched and dropped again and again: ns for both",
        Border::ALL,
        |(_, what, _)| format!("touch and DONTNEED of {what}"),
        |name, (border, ..)| {
            let terms = Terms { warm_up: WARM_UP, ..Terms::pages(16 << 20, scale.rounds) };
            let outcome = Outcome::of(terms, &Borders::new(border, scale.calls))?;
            let times = outcome.times(name, Metric::times("ns/call"), 0);
            Ok(Measured::new(times, outcome.findings))
        },
    )
}

//! The result of a run of many programs.

use super::check::Wrong;
use super::history::Event;
use super::program::{Pause, Program};
use core::fmt;
use std::collections::BTreeMap;

/// Why a program failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cause {
    /// Nothing that a right memory manager does explains what happened.
    History(Wrong),
    /// A thread panicked, or the audit found something; in these words.
    Broken(Vec<String>),
}

/// A program that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThreadFailure {
    /// Its number in the run.
    pub number: u64,
    /// Its number of operations before it was minimised.
    pub full_len: usize,
    /// The program, minimised.
    pub program: Program,
    /// What happened when it failed.
    pub events: Vec<Event>,
    /// Why that is wrong.
    pub cause: Cause,
}

/// What a run found.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct ThreadReport {
    /// Programs that ran.
    pub programs: u64,
    /// Operations by kind and outcome, those of setup and of the end included.
    pub outcomes: BTreeMap<(&'static str, &'static str), u64>,
    /// Operations that were concurrent with one of another thread.
    pub concurrent: u64,
    /// Histories with too much concurrency to be decided.
    pub undecided: u64,
    /// What failed.
    pub failures: Vec<ThreadFailure>,
}

impl ThreadReport {
    /// All operations.
    pub fn operations(&self) -> u64 {
        self.outcomes.values().sum()
    }

    /// Counts what happened in one program.
    pub(super) fn count(&mut self, events: &[Event]) {
        for event in events {
            *self.outcomes.entry((event.op.name(), event.outcome.name())).or_default() += 1;
        }
        let concurrent =
            |event: &&Event| events.iter().any(|other| other.thread != event.thread && other.overlaps(event));
        self.concurrent += events.iter().filter(concurrent).count() as u64;
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.window().addr(0).0;
        writeln!(f, "{} threads, {} pages from {first:#x}", self.threads.len(), self.pages)?;
        for op in &self.setup {
            writeln!(f, "  setup: {op}")?;
        }
        for (number, steps) in self.threads.iter().enumerate() {
            for step in steps {
                write!(f, "  thread {number}: {}", step.op)?;
                match step.pause {
                    Pause::Turns(0) => writeln!(f)?,
                    Pause::Turns(turns) => writeln!(f, " (after {turns} turns)")?,
                    Pause::Yield => writeln!(f, " (after a yield)")?,
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for ThreadFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "program {} ({} of {} operations): {}",
            self.number,
            self.program.len(),
            self.full_len,
            self.program
        )?;
        let suspects = match &self.cause {
            Cause::History(Wrong::Outcome(event) | Wrong::Call(event)) => std::slice::from_ref(event),
            Cause::History(Wrong::Page(_, events)) => events,
            Cause::Broken(_) => &[],
        };
        writeln!(f, "what happened, with the stamps before and after each operation:")?;
        for (number, event) in self.events.iter().enumerate() {
            writeln!(f, "{} {event}", if suspects.contains(&number) { " >" } else { "  " })?;
        }
        match &self.cause {
            Cause::History(Wrong::Outcome(_)) => writeln!(f, "an outcome that is never right (>)"),
            Cause::History(Wrong::Call(_)) => {
                writeln!(f, "a result that does not fit what the call's pages were (>)")
            }
            Cause::History(Wrong::Page(page, _)) => {
                writeln!(
                    f,
                    "page {page}: no order explains all that was done to it; the best ones end before >"
                )
            }
            Cause::Broken(messages) => messages.iter().try_for_each(|message| writeln!(f, "{message}")),
        }
    }
}

impl fmt::Display for ThreadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operations = self.operations();
        let share = 100 * self.concurrent / operations.max(1);
        writeln!(
            f,
            "{} programs, {operations} operations, {share} % beside one of another thread",
            self.programs
        )?;
        for ((operation, outcome), count) in &self.outcomes {
            writeln!(f, "{operation:>10} {outcome:<12} {count:>10}")?;
        }
        if self.undecided > 0 {
            writeln!(f, "{} histories were too tangled to be decided", self.undecided)?;
        }
        self.failures.iter().try_for_each(|failure| writeln!(f, "{failure}"))
    }
}

//! `realloc` of a large array: `mremap` to a larger size, which moves it since something is mapped behind it.

use super::Scale;
use super::moves::times;
use crate::contest::{Job, Outcome, Terms};
use crate::experiment::{Measured, Part};
use crate::folios::{Folios, pages};
use crate::linux::{RoundFigures, now, round_figures};
use crate::process::Process;
use crate::scale::MIB;
use core::fmt;
use quire_arch::{Access, PAGE_SIZE};
use quire_space::RemapTechnique;

const WARM_UP: usize = 1;

/// By how much the array grows at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Double,
    By(u64),
}

impl Step {
    const ALL: [Self; 3] = [Self::Double, Self::By(2 * MIB), Self::By(MIB + PAGE_SIZE)];

    const fn after(self, bytes: u64) -> u64 {
        match self {
            Self::Double => 2 * bytes,
            Self::By(more) => bytes + more,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Double => f.write_str("by doubling"),
            Self::By(more) => write!(f, "by {} KiB a time", more >> 10),
        }
    }
}

/// An array that grows from 2 MiB on, each round anew.
#[derive(Clone, Debug)]
struct Growth {
    step: Step,
    end: u64,
}

impl Job for Growth {
    fn area(&self) -> u64 {
        4 * MIB
    }

    fn round<P: Process>(&mut self, process: &mut P) -> Result<RoundFigures, P::Error> {
        let (mut at, mut bytes) = (0, 2 * MIB);
        process.populate(at, bytes, 1, Folios::PAGES)?;
        let (mut time, mut calls, mut moved) = (0, 0, 0);
        while self.step.after(bytes) <= self.end {
            let neighbour = at.wrapping_add(bytes);
            // Where something is mapped already, that is the neighbour.
            let own = process.map(neighbour, PAGE_SIZE).is_ok();
            let new = self.step.after(bytes);
            let start = now();
            at = process.resize(at, bytes, new)?;
            time += now() - start;
            if own {
                process.unmap(neighbour, PAGE_SIZE)?;
            }
            process.touch(at.wrapping_add(bytes), new - bytes, 1, Access::Write)?;
            calls += 1;
            moved += pages(bytes);
            bytes = new;
        }
        process.unmap(at, bytes)?;
        Ok(round_figures([time as f64 / 1000.0 / f64::from(calls), time as f64 / moved as f64]))
    }
}

pub(super) fn part(scale: &Scale) -> Part<'_, RemapTechnique> {
    let end = |by| {
        let end = if by == Step::Double { scale.array } else { scale.array / 8 };
        // At least once.
        end.max(4 * MIB)
    };
    Part::new(
        "realloc: an array that grows, with something behind it each time",
        Step::ALL,
        |&by| format!("an array of 2 MiB to {} MiB, {by}", end(by) / MIB),
        move |name, step| {
            let end = end(step);
            let memory = end + end / 128 + (8 << 20);
            let terms = Terms { warm_up: WARM_UP, ..Terms::pages(memory, scale.other_rounds) };
            let outcome = Outcome::of(terms, &Growth { step, end })?;
            Ok(Measured::new(times(&outcome, name), outcome.findings))
        },
    )
}

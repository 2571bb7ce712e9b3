//! The experiment `mremap`: moves by entries, by PTE tables and by PMD tables.
//!
//! Everything is measured for both strategies and, where it can do the same, on the host's Linux, round by
//! round in turn.

mod collector;
mod moves;

use crate::case::{Case, Outcome, Terms};
use crate::clock::now;
use crate::error::LabError;
use crate::experiment::{Experiment, Lab};
use crate::folios::{Folios, pages};
use crate::measured::count_rounds;
use crate::process::{Job, Process};
use crate::report::Metric;
use crate::rounds::{Series, round_figures};
use crate::scale::{GIB, KIB, MIB};
use crate::technique::MREMAP;
use moves::{Alignment, Move, moves};
use quire_arch::{Access, PAGE_SIZE};
use quire_mm::Techniques;

/// What arrays grow to by doubling.
const ARRAY: [u64; 3] = [GIB, 64 * MIB, 4 * MIB];
/// Rounds of arrays and of the collector.
const ROUNDS: [usize; 3] = [11, 3, 1];

const A_PAGE: Metric = Metric::lower("time_a_page", "ns/page");

/// The experiment.
pub(crate) const EXPERIMENT: Experiment = Experiment { technique: &MREMAP, cases, count };

fn cases(lab: &mut Lab<'_>) -> Result<(), LabError> {
    moves::parts(lab)?;
    lab.part("realloc: an array that grows, with something behind it each time");
    // Grows by so much at a time, or doubles; at least once.
    let all = lab.scale.of(ARRAY);
    for step in [None, Some(2 * MIB), Some(MIB + PAGE_SIZE)] {
        let end = if step.is_none() { all } else { (all / 8).max(4 * MIB) };
        let by = step.map_or("doubling".to_owned(), |step| format!("{} KiB a time", step / KIB));
        lab.case(&format!("an array of 2 MiB to {} MiB, by {by}", end / MIB), |case, name| {
            let terms = Terms::warm(end + end / 128 + 8 * MIB, case.scale.of(ROUNDS));
            let outcome = case.on_both(terms, 4 * MIB, &growth(step, end))?;
            add_times(case, name, &outcome);
            Ok(())
        })?;
    }
    collector::part(lab)
}

/// Adds the times of calls, and of each page.
fn add_times(case: &mut Case, name: &str, outcome: &Outcome) {
    case.times(name, outcome, Metric::times("us/call"), 0);
    case.rows(name, outcome, &[(A_PAGE, 1, Series::min)]);
}

/// `realloc` of a large array, which grows from 2 MiB to `end` in each round: `mremap` to a larger size,
/// which moves it since something is mapped behind it.
fn growth(step: Option<u64>, end: u64) -> impl Job + Clone {
    let after = move |bytes: u64| bytes + step.unwrap_or(bytes);
    move |process: &mut dyn Process| {
        let (mut at, mut bytes) = (0, 2 * MIB);
        process.populate(at, bytes, 1, Folios::PAGES)?;
        let (mut time, mut calls, mut moved) = (0, 0, 0);
        while after(bytes) <= end {
            let neighbour = at.wrapping_add(bytes);
            // Where something is mapped already, that is the neighbour.
            let own = process.map(neighbour, PAGE_SIZE).is_ok();
            let new = after(bytes);
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

/// Moves back and forth 1 GiB with a page in each 2 MiB, between places that are aligned to 1 GiB
/// (`gib-pud`), to 2 MiB (`gib-pmd`) or both offset by a page (`gib-same`), or 16 MiB of pages to a place
/// that is offset by a page (`pages-page`) or aligned to 2 MiB (`pages-pmd`). The first pair does not count.
fn count(what: &str, techniques: Techniques, times: u64) -> Option<Result<(), LabError>> {
    let (bytes, stride, alignment) = match what {
        "gib-pud" => (GIB, 512, Alignment::Pud),
        "gib-pmd" => (GIB, 512, Alignment::Pmd),
        "gib-same" => (GIB, 512, Alignment::SamePage),
        "pages-pmd" => (16 * MIB, 1, Alignment::Pmd),
        "pages-page" => (16 * MIB, 1, Alignment::Page),
        _ => return None,
    };
    let what = Move { bytes, alignment, stride, folios: Folios::PAGES, read: false };
    Some(count_rounds(techniques, 32 * MIB, (1, times), moves(what, 1)))
}

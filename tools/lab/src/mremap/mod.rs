//! The experiment `mremap`: moves by entries, by PTE tables and by PMD tables.
//!
//! Everything is measured for both strategies and, where it can do the same, on the host's Linux, round by
//! round in turn.

mod collector;
mod moves;

use crate::measured::count_rounds;
use crate::prelude::*;
use crate::technique::MREMAP;
use moves::{Move, PAGE, PMD, PUD, SAME_PAGE, moves};

/// What arrays grow to by doubling.
const ARRAY: [u64; 3] = [GIB, 64 * MIB, 4 * MIB];
/// Rounds of arrays and of the collector.
const ROUNDS: [usize; 3] = [11, 3, 1];

/// The times of calls, and of each page.
const ROWS: [Row; 2] = [Row::times("us/call", 0), Row::lower("time_a_page", "ns/page", 1, Series::min)];

/// The experiment.
pub(crate) const EXPERIMENT: Experiment = Experiment { technique: &MREMAP, cases, count };

fn cases(lab: &mut Lab<'_>) -> Done {
    moves::parts(lab)?;
    lab.part("realloc: an array that grows, with something behind it each time");
    let (all, rounds) = (lab.scale.of(ARRAY), lab.scale.of(ROUNDS));
    // Grows by so much at a time, or doubles; at least once.
    for step in [None, Some(2 * MIB), Some(MIB + PAGE_SIZE)] {
        let end = if step.is_none() { all } else { (all / 8).max(4 * MIB) };
        let by = step.map_or("doubling".to_owned(), |step| format!("{} KiB a time", step / KIB));
        let name = format!("an array of 2 MiB to {} MiB, by {by}", end / MIB);
        let terms = Terms::warm(end + end / 128 + 8 * MIB, 4 * MIB, rounds);
        lab.both(&name, terms, growth(step, end), &ROWS)?;
    }
    collector::part(lab)
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
        Ok(round_figures(&[time as f64 / 1000.0 / f64::from(calls), time as f64 / moved as f64]))
    }
}

/// Moves back and forth 1 GiB with a page in each 2 MiB, between places that are aligned to 1 GiB
/// (`gib-pud`), to 2 MiB (`gib-pmd`) or both offset by a page (`gib-same`), or 16 MiB of pages to a place
/// that is offset by a page (`pages-page`) or aligned to 2 MiB (`pages-pmd`). The first pair does not count.
fn count(what: &str, techniques: Techniques, times: u64) -> Option<Done> {
    let (bytes, stride, alignment) = match what {
        "gib-pud" => (GIB, 512, PUD),
        "gib-pmd" => (GIB, 512, PMD),
        "gib-same" => (GIB, 512, SAME_PAGE),
        "pages-pmd" => (16 * MIB, 1, PMD),
        "pages-page" => (16 * MIB, 1, PAGE),
        _ => return None,
    };
    let what = Move { bytes, alignment, stride, folios: Folios::PAGES, read: false };
    Some(count_rounds(techniques, 32 * MIB, (1, times), moves(what, 1)))
}

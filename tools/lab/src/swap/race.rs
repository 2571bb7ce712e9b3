//! Threads that fault on the same page at the same moment: how long those wait that do not read it.
//!
//! The device takes as long as a fast disk.

use super::latency::Latencies;
use super::nothing::Nothing;
use crate::crew::{go_first, on_threads};
use crate::patterns::{Contents, Patterns};
use crate::prelude::*;
use crate::site::page_at;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use quire_mm::swap::SwapTechnique;
use std::sync::Arc;

/// Pages that threads race for. A host that takes its CPUs away does so for some races in a row, about once a
/// second: of so many races that is less than one in 1000.
const RACES: [u64; 3] = [40_000, 8000, 40];
/// What a read takes.
const READ: Duration = Duration::from_micros(100);
/// With `bypass` a race includes a tick of sleep, so only a part of them is run: one in this many.
const SLEEPERS_PART: u64 = 8;

const ROWS: [Row; 7] = [
    Row::lower("winner_p50", "us", 0, Series::last),
    Row::lower("winner_p99_9", "us", 1, Series::last),
    Row::lower("loser_p50", "us", 2, Series::last),
    Row::lower("loser_p99", "us", 3, Series::last),
    Row::lower("loser_p99_9", "us", 4, Series::last),
    Row::lower("loser_p99_9_to_winner_p99_9", "times", 5, Series::last),
    Row::lower("loser_p99_9_to_winner", "times, of the same read", 6, Series::last),
];

/// Times of the winners, of the losers, and of each loser in thousandths of the winner's for the same page.
type Times = [Latencies; 3];

pub(super) fn part(lab: &mut Lab<'_>) -> Done {
    let races = lab.scale.of(RACES);
    lab.part("Races for a page that is swapped out");
    [2, 4].into_iter().try_for_each(|threads| {
        let name = format!("{threads} threads want the same page, read in {} us", READ.as_micros());
        lab.once(&name, |techniques| race(techniques, threads, races), &ROWS)
    })
}

fn race(techniques: Techniques, threads: usize, races: u64) -> Done<(RoundFigures, Vec<String>)> {
    let races = match techniques.swap {
        SwapTechnique::Bypass => races / SLEEPERS_PART,
        SwapTechnique::All => races,
    };
    let bytes = races * PAGE_SIZE;
    let reader = Arc::new(AtomicU64::new(0));
    let site = Site::new(techniques, 3 * bytes, 1 + threads, Folios::PAGES)?;
    let site = site.with_swap(|_| Ok(Nothing { slots: races, latency: READ, reader: reader.clone() }))?;
    let space = site.space()?;
    let mut process = Quire::new(&site, &space);
    process.map(0, bytes)?;
    process.fill(0..races, Folios::PAGES, &Patterns::of(Contents::Noise))?;
    process.advise(0, bytes, Advice::PageOut)?;
    let board: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
    let machine = &site.machine;
    // Thread N is on CPU N + 1.
    let found = on_threads(threads, |thread, line| {
        go_first();
        let mut times = Times::default();
        let mut result = Ok(());
        let vcpu = machine.vcpu(1 + thread);
        let program = vcpu.as_ref().ok().map(|vcpu| vcpu.program(&space));
        for page in 0..races {
            if thread == 0 {
                reader.store(0, Ordering::Release);
            }
            line.wait();
            let start = now();
            if let Some(program) = &program {
                let addr = page_at(page);
                let touched = program.touch(addr, Access::Read);
                result = result.and(touched.map_err(|error| LabError::Access(addr, error)));
            }
            board[thread].store(now() - start, Ordering::Release);
            line.wait();
            let winner = reader.load(Ordering::Acquire) as usize;
            if thread == 0 && winner > 0 {
                let time = |thread: usize| board[thread].load(Ordering::Acquire).max(1);
                let won = time(winner - 1);
                times[0].add(won);
                for loser in (0..threads).filter(|&loser| loser + 1 != winner) {
                    times[1].add(time(loser));
                    times[2].add(time(loser) * 1000 / won);
                }
            }
            // The next turn begins when this one has been recorded.
            line.wait();
        }
        vcpu.map(|_| ()).map_err(LabError::from).and(result).map(|()| times)
    });
    // The first thread has recorded all.
    let found = found.into_iter().collect::<Result<Vec<_>, _>>()?;
    site.run(|| drop(space));
    let [winners, losers, ratios] = [0, 1, 2].map(|nth| found[0][nth].accesses());
    let to_winners = losers[2] / winners[2];
    let figures = [winners[0], winners[2], losers[0], losers[1], losers[2], to_winners, ratios[2]];
    Ok((round_figures(&figures), site.end()))
}

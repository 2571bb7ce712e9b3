//! A garbage collector that moves objects by moving their pages: one thread moves regions back and forth
//! while others fault in memory of their own. No fault may wait for a move.

use super::ROUNDS;
use crate::crew::{StartLine, wait_until};
use crate::prelude::*;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Bytes of each region that moves.
const REGION: [u64; 3] = [64 * MIB, 16 * MIB, 2 * MIB];
/// Bytes that each other thread faults in meanwhile.
const FAULT_BYTES: [u64; 3] = [128 * MIB, 16 * MIB, 4 * MIB];
const REGIONS: u64 = 4;
/// Between one region and the next, and one thread's memory and the next: no table is shared.
const APART: u64 = GIB;
/// The other place of the first region: aligned as the first, to 2 MiB only.
const OTHER: u64 = 64 * GIB + (6 << 20);
/// The memory of the first thread that faults.
const OWN: u64 = 128 * GIB;
const AREA: u64 = 160 * GIB;

const ROWS: [Row; 8] = [
    Row::lower("longest_pause", "us", 0, Series::max),
    Row::lower("longest_pause_of_a_round", "us", 0, Series::median),
    Row::lower("fault_mean", "ns", 1, Series::median),
    Row::higher("faults_inside_a_move", "per 1000 faults", 2, Series::median),
    Row::lower("first_fault_of_a_mapping", "us", 4, Series::median),
    Row::lower("move_median", "us/call", 3, Series::median),
    Row::own("shootdowns", "per call", 5, Series::median),
    Row::Ratio(3),
];

/// What the threads share in a round, and its figures.
#[derive(Debug, Default)]
struct Board {
    /// Threads that have faulted in all their memory.
    done: AtomicUsize,
    /// Odd while a move is in progress.
    moving: AtomicU64,
    move_time: AtomicU64,
    fault_time: AtomicU64,
    longest: AtomicU64,
    /// The longest first fault of a thread, which gives its mapping an anon_vma and so takes the mmap lock.
    first: AtomicU64,
    inside: AtomicU64,
}

impl Board {
    /// Moves until the others are done. `work` gets both places of a region.
    fn collect(&self, faulting: usize, mut work: impl FnMut(u64, u64) -> Done) -> Done {
        let mut result = Ok(());
        while result.is_ok() && self.done.load(Ordering::Acquire) < faulting {
            for (from, to) in [(0, OTHER), (OTHER, 0)] {
                for region in 0..REGIONS {
                    let (from, to) = (from + region * APART, to + region * APART);
                    self.moving.fetch_add(1, Ordering::AcqRel);
                    let start = now();
                    let moved = work(from, to);
                    self.move_time.fetch_add(now() - start, Ordering::Relaxed);
                    self.moving.fetch_add(1, Ordering::AcqRel);
                    result = result.and(moved);
                }
            }
        }
        result
    }

    /// Faults `count` pages in, from the first move on.
    fn fault(&self, count: u64, mut touch: impl FnMut(u64) -> Done) -> Done {
        let (mut longest, mut time, mut inside, mut result) = (0, 0, 0, Ok(()));
        wait_until(|| self.moving.load(Ordering::Acquire) > 0);
        for page in 0..count {
            let before = self.moving.load(Ordering::Acquire);
            let start = now();
            result = touch(page);
            let took = now() - start;
            inside += u64::from(before % 2 == 1 && self.moving.load(Ordering::Acquire) == before);
            if page == 0 {
                self.first.fetch_max(took, Ordering::Relaxed);
            } else {
                (longest, time) = (longest.max(took), time + took);
            }
            if result.is_err() {
                break;
            }
        }
        self.fault_time.fetch_add(time, Ordering::Relaxed);
        self.inside.fetch_add(inside, Ordering::Relaxed);
        self.longest.fetch_max(longest, Ordering::Relaxed);
        self.done.fetch_add(1, Ordering::AcqRel);
        result
    }

    /// The figures, with `faults` and `shootdowns` that there were.
    fn round_figures(self, faults: u64, shootdowns: u64) -> RoundFigures {
        let (moves, faults) = ((self.moving.into_inner() / 2).max(1) as f64, faults as f64);
        round_figures(&[
            self.longest.into_inner() as f64 / 1000.0,
            self.fault_time.into_inner() as f64 / faults,
            1000.0 * self.inside.into_inner() as f64 / faults,
            self.move_time.into_inner() as f64 / 1000.0 / moves,
            self.first.into_inner() as f64 / 1000.0,
            shootdowns as f64 / moves,
        ])
    }
}

/// The pattern, with so many threads that fault.
fn collector(faulting: usize, region: u64, bytes: u64) -> impl Job + Clone {
    let mut populated = false;
    let own = |thread: usize| OWN + thread as u64 * APART;
    move |process: &mut dyn Process| {
        if !populated {
            (0..REGIONS).try_for_each(|nth| process.populate(nth * APART, region, 1, Folios::PAGES))?;
            populated = true;
        }
        (0..faulting).try_for_each(|thread| process.map(own(thread), bytes))?;
        let (line, board) = (StartLine::new(1 + faulting), Board::default());
        let flushes = process.flushes();
        process.together(1 + faulting, &|thread, process| {
            line.wait();
            if thread == 0 {
                board.collect(faulting, |from, to| process.relocate(from, region, to))
            } else {
                board.fault(pages(bytes), |page| {
                    process.touch(own(thread - 1) + page * PAGE_SIZE, PAGE_SIZE, 1, Access::Write)
                })
            }
        })?;
        let flushes = process.flushes().since(flushes);
        (0..faulting).try_for_each(|thread| process.unmap(own(thread), bytes))?;
        Ok(board.round_figures(faulting as u64 * pages(bytes), flushes.shootdowns.iter().sum()))
    }
}

pub(super) fn part(lab: &mut Lab<'_>) -> Done {
    let (region, bytes) = (lab.scale.of(REGION), lab.scale.of(FAULT_BYTES));
    let rounds = lab.scale.of(ROUNDS);
    lab.part("A collector moves regions while other threads fault in memory of their own");
    for (faulting, who) in [(1, "thread faults"), (3, "threads fault")] {
        let name = format!("regions of {} MiB move while {faulting} {who}", region / MIB);
        let memory = REGIONS * region + faulting as u64 * bytes;
        let terms = Terms { cpus: 2 + faulting, ..Terms::warm(memory, AREA, rounds) };
        lab.both(&name, terms, collector(faulting, region, bytes), &ROWS)?;
    }
    Ok(())
}

//! A heap as jemalloc keeps one over a huge range of addresses: arenas that allocate extents of all sizes
//! from a window and move to another when it is full; freed extents are purged by `DONTNEED`. Page tables
//! beside resident memory while the heap runs, and after it has shrunk.

use super::Scale;
use crate::contest::{Job, Outcome, Terms};
use crate::experiment::{Measured, Part};
use crate::linux::{RoundFigures, now, round_figures};
use crate::process::Process;
use crate::report::Metric;
use crate::rounds::Series;
use fastrand::Rng;
use quire_arch::{Access, PAGE_SIZE};
use quire_space::TablesTechnique;

const SEED: u64 = 0x6a65_6d61;
/// Addresses of the whole heap: 55 TiB.
const SPAN: u64 = 55 << 40;
const ARENAS: u64 = 44;
const ARENA: u64 = SPAN / ARENAS;
/// The window from which an arena allocates extents before it moves on.
const WINDOW: u64 = 16 << 20;
/// Extents have up to 2^this pages.
const LARGEST: u32 = 8;
/// Rounds in which the heap runs. In one more it shrinks to a tenth.
const ROUNDS: usize = 8;

const TABLES: Metric = Metric::lower("page_tables", "kB");
const RESIDENT: Metric = Metric::lower("resident", "kB");
const TIME: Metric = Metric::lower("time_median", "us/extent");

/// A piece of an arena that is in use.
#[derive(Clone, Copy, Debug)]
struct Extent {
    at: u64,
    bytes: u64,
}

/// The heap. A seed decides the whole run.
#[derive(Clone, Debug)]
struct Heap {
    rng: Rng,
    /// Of each arena the next free place and the end of its window.
    windows: [(u64, u64); ARENAS as usize],
    /// With the capacity for all, from the start.
    live: Vec<Extent>,
    count: usize,
    resident: u64,
    limit: u64,
    a_round: u64,
    round: usize,
    /// The figures of the process before, in kB.
    own: [u64; 2],
}

impl Heap {
    fn new(limit: u64, a_round: u64) -> Self {
        // Each round may leave as many more in use as it allocates.
        let most = a_round as usize * ROUNDS;
        Self {
            rng: Rng::with_seed(SEED),
            windows: [(0, 0); ARENAS as usize],
            live: vec![Extent { at: 0, bytes: 0 }; most],
            count: 0,
            resident: 0,
            limit,
            a_round,
            round: 0,
            own: [0; 2],
        }
    }

    /// An extent of a random arena. Small ones are more frequent.
    fn extent(&mut self) -> Extent {
        let bytes = PAGE_SIZE << self.rng.u32(0..=LARGEST);
        let arena = self.rng.u64(0..ARENAS);
        let window = &mut self.windows[arena as usize];
        if window.0 + bytes > window.1 {
            let start = arena * ARENA + self.rng.u64(0..(ARENA - WINDOW) / PAGE_SIZE) * PAGE_SIZE;
            *window = (start, start + WINDOW);
        }
        let at = window.0;
        window.0 += bytes;
        Extent { at, bytes }
    }

    fn grow<P: Process>(&mut self, process: &mut P) -> Result<(), P::Error> {
        let extent = self.extent();
        process.touch(extent.at, extent.bytes, 1, Access::Write)?;
        self.live[self.count] = extent;
        self.count += 1;
        self.resident += extent.bytes;
        Ok(())
    }

    fn shrink<P: Process>(&mut self, limit: u64, process: &mut P) -> Result<(), P::Error> {
        while self.resident > limit {
            let nth = self.rng.usize(0..self.count);
            let extent = self.live[nth];
            self.count -= 1;
            self.live[nth] = self.live[self.count];
            self.resident -= extent.bytes;
            process.dont_need(extent.at, extent.bytes)?;
        }
        Ok(())
    }
}

impl Job for Heap {
    fn area(&self) -> u64 {
        SPAN
    }

    fn round<P: Process>(&mut self, process: &mut P) -> Result<RoundFigures, P::Error> {
        if self.round == 0 {
            self.own = process.sizes()?;
            process.map(0, SPAN)?;
        }
        let start = now();
        if self.round < ROUNDS {
            for _ in 0..self.a_round {
                self.grow(process)?;
                self.shrink(self.limit, process)?;
            }
        } else {
            self.shrink(self.limit / 10, process)?;
        }
        let time = (now() - start) as f64 / 1000.0 / self.a_round as f64;
        self.round += 1;
        let [tables, resident] = process.sizes()?;
        let more = |now: u64, own: u64| now.saturating_sub(own) as f64;
        Ok(round_figures([time, more(tables, self.own[0]), more(resident, self.own[1])]))
    }
}

pub(super) fn part(scale: &Scale) -> Part<'_, TablesTechnique> {
    let title = format!(
        "A heap over 55 TiB of addresses, {} MiB of it resident: page tables beside resident memory",
        scale.heap_resident >> 20
    );
    Part::single(title, "heap of 55 TiB", |name| {
        let extents = scale.heap_extents * ROUNDS as u64;
        // An extent may be the first in its PTE table and its PMD table.
        let terms = Terms::pages(2 * scale.heap_resident + extents * 2 * PAGE_SIZE, ROUNDS + 1);
        let outcome = Outcome::of(terms, &Heap::new(scale.heap_resident, scale.heap_extents))?;
        let mut figures = Vec::new();
        let moments = [0, 1, 3, ROUNDS - 1].map(|round| {
            let extents = scale.heap_extents * (round as u64 + 1);
            (round, format!("after {extents} extents"))
        });
        for (round, moment) in moments.into_iter().chain([(ROUNDS, "shrunk to a tenth".to_owned())]) {
            let name = format!("{name}, {moment}");
            figures.push(outcome.figure(&name, TABLES, 1, |series| series.nth(round)));
            figures.push(outcome.figure(&name, RESIDENT, 2, |series| series.nth(round)));
        }
        let name = format!("{name}, its whole life");
        figures.push(outcome.figure(&name, Metric { name: "most_page_tables", ..TABLES }, 1, Series::max));
        figures.push(outcome.figure(&name, TIME, 0, Series::median));
        figures.push(outcome.ratio(&name, 0));
        Ok(Measured::new(figures, outcome.findings))
    })
}

//! A heap as jemalloc keeps one over a huge range of addresses: arenas that allocate extents of all sizes
//! from a window and move to another when it is full; freed extents are purged by `DONTNEED`. Page tables
//! beside resident memory while the heap runs, and after it has shrunk.

use crate::case::Terms;
use crate::clock::now;
use crate::error::LabError;
use crate::experiment::Lab;
use crate::process::Process;
use crate::report::Metric;
use crate::rounds::{RoundFigures, Series, round_figures};
use crate::scale::MIB;
use fastrand::Rng;
use quire_arch::{Access, PAGE_SIZE};
use quire_mm::space::Advice;

/// Bytes that the heap has resident at most.
const MOST_RESIDENT: [u64; 3] = [512 * MIB, 64 * MIB, 4 * MIB];
/// Extents that the heap gives out in each of its rounds.
const EXTENTS: [u64; 3] = [20_000, 1000, 100];

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
const MOST: Metric = Metric::lower("most_page_tables", "kB");
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

    fn grow(&mut self, process: &mut dyn Process) -> Result<(), LabError> {
        let extent = self.extent();
        process.touch(extent.at, extent.bytes, 1, Access::Write)?;
        self.live[self.count] = extent;
        self.count += 1;
        self.resident += extent.bytes;
        Ok(())
    }

    fn shrink(&mut self, limit: u64, process: &mut dyn Process) -> Result<(), LabError> {
        while self.resident > limit {
            let nth = self.rng.usize(0..self.count);
            let extent = self.live[nth];
            self.count -= 1;
            self.live[nth] = self.live[self.count];
            self.resident -= extent.bytes;
            process.advise(extent.at, extent.bytes, Advice::DontNeed)?;
        }
        Ok(())
    }

    fn round(&mut self, process: &mut dyn Process) -> Result<RoundFigures, LabError> {
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

pub(super) fn heap(lab: &mut Lab<'_>) -> Result<(), LabError> {
    let (most, a_round) = (lab.scale.of(MOST_RESIDENT), lab.scale.of(EXTENTS));
    lab.part(format!(
        "A heap over 55 TiB of addresses, {} MiB of it resident: page tables beside resident memory",
        most / MIB
    ));
    lab.case("heap of 55 TiB", |case, name| {
        // An extent may be the first in its PTE table and its PMD table.
        let extents = a_round * ROUNDS as u64;
        let terms = Terms::pages(2 * most + extents * 2 * PAGE_SIZE, ROUNDS + 1);
        let mut heap = Heap::new(most, a_round);
        let outcome = case.on_both(terms, SPAN, &move |process: &mut dyn Process| heap.round(process))?;
        let after = |rounds| format!("after {} extents", a_round * rounds as u64);
        let moments = [1, 2, 4, ROUNDS].map(|rounds| (rounds, after(rounds)));
        for (round, moment) in moments.into_iter().chain([(ROUNDS + 1, "shrunk to a tenth".to_owned())]) {
            let (name, then) = (format!("{name}, {moment}"), outcome.only(round - 1..round));
            case.rows(&name, &then, &[(TABLES, 1, Series::last), (RESIDENT, 2, Series::last)]);
        }
        let name = format!("{name}, its whole life");
        case.rows(&name, &outcome, &[(MOST, 1, Series::max), (TIME, 0, Series::median)]);
        case.ratio(&name, &outcome, 0);
        Ok(())
    })
}

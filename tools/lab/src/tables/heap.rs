//! A heap as jemalloc keeps one over a huge range of addresses: arenas that allocate extents of all sizes
//! from a window and move to another when it is full; freed extents are purged by `DONTNEED`. Page tables
//! beside resident memory while the heap runs, and after it has shrunk.

use crate::prelude::*;
use fastrand::Rng;

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

const ROWS: [Row; 2] =
    [Row::lower("page_tables", "kB", 1, Series::last), Row::lower("resident", "kB", 2, Series::last)];
const LIFE_ROWS: [Row; 3] = [
    Row::lower("most_page_tables", "kB", 1, Series::max),
    Row::lower("time_median", "us/extent", 0, Series::median),
    Row::Ratio(0),
];

/// The heap. A seed decides the whole run.
#[derive(Clone, Debug)]
struct Heap {
    rng: Rng,
    /// Of each arena the next free place and the end of its window.
    windows: [(u64, u64); ARENAS as usize],
    /// Place and bytes of each piece of an arena that is in use. With the capacity for all, from the start.
    live: Vec<(u64, u64)>,
    resident: u64,
}

impl Heap {
    /// An extent of a random arena. Small ones are more frequent.
    fn grow(&mut self, process: &mut dyn Process) -> Done {
        let bytes = PAGE_SIZE << self.rng.u32(0..=LARGEST);
        let arena = self.rng.u64(0..ARENAS);
        let window = &mut self.windows[arena as usize];
        if window.0 + bytes > window.1 {
            let start = arena * ARENA + self.rng.u64(0..(ARENA - WINDOW) / PAGE_SIZE) * PAGE_SIZE;
            *window = (start, start + WINDOW);
        }
        let at = window.0;
        window.0 += bytes;
        process.touch(at, bytes, 1, Access::Write)?;
        self.live.push((at, bytes));
        self.resident += bytes;
        Ok(())
    }

    fn shrink(&mut self, limit: u64, process: &mut dyn Process) -> Done {
        while self.resident > limit {
            let (at, bytes) = self.live.swap_remove(self.rng.usize(0..self.live.len()));
            self.resident -= bytes;
            process.advise(at, bytes, Advice::DontNeed)?;
        }
        Ok(())
    }
}

/// A heap that gives out so many extents in a round and has at most `limit` bytes resident.
fn life(limit: u64, a_round: u64) -> impl Job + Clone {
    let windows = [(0, 0); ARENAS as usize];
    let mut heap = Heap { rng: Rng::with_seed(SEED), windows, live: Vec::new(), resident: 0 };
    let (mut round, mut own) = (0, [0; 2]);
    move |process: &mut dyn Process| {
        if round == 0 {
            heap.live.reserve(a_round as usize * ROUNDS);
            // The figures of the process before, in kB.
            own = process.sizes()?;
            process.map(0, SPAN)?;
        }
        let start = now();
        if round < ROUNDS {
            for _ in 0..a_round {
                heap.grow(process)?;
                heap.shrink(limit, process)?;
            }
        } else {
            heap.shrink(limit / 10, process)?;
        }
        let time = (now() - start) as f64 / 1000.0 / a_round as f64;
        round += 1;
        let sizes = process.sizes()?;
        let [tables, resident] = [0, 1].map(|nth| sizes[nth].saturating_sub(own[nth]) as f64);
        Ok(round_figures(&[time, tables, resident]))
    }
}

pub(super) fn heap(lab: &mut Lab<'_>) -> Done {
    let (most, a_round) = (lab.scale.of(MOST_RESIDENT), lab.scale.of(EXTENTS));
    lab.part(format!(
        "A heap over 55 TiB of addresses, {} MiB of it resident: page tables beside resident memory",
        most / MIB
    ));
    lab.case("heap of 55 TiB", |lab| {
        // An extent may be the first in its PTE table and its PMD table.
        let memory = 2 * most + a_round * ROUNDS as u64 * 2 * PAGE_SIZE;
        let outcome = lab.on_both(Terms::pages(memory, SPAN, ROUNDS + 1), life(most, a_round))?;
        let after = |rounds| format!("after {} extents", a_round * rounds as u64);
        let moments = [1, 2, 4, ROUNDS].map(|rounds| (rounds, after(rounds)));
        for (round, moment) in moments.into_iter().chain([(ROUNDS + 1, "shrunk to a tenth".to_owned())]) {
            lab.rows(&format!("heap of 55 TiB, {moment}"), &outcome.only(round - 1..round), &ROWS);
        }
        lab.rows("heap of 55 TiB, its whole life", &outcome, &LIFE_ROWS);
        Ok(())
    })
}

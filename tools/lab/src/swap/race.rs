//! Threads that fault on the same page at the same moment: how long those wait that do not read it.
//!
//! The device is synchronous, so that the strategy `bypass` reads past the cache, but takes as long as a fast
//! disk.

use super::Scale;
use super::latency::Latencies;
use super::stage::{Contents, Patterns, Stage, page_at};
use crate::crew::{go_first, on_threads};
use crate::error::LabError;
use crate::experiment::{Measured, Part, for_each_strategy};
use crate::folios::{Folios, pages};
use crate::linux::now;
use crate::report::{Figure, Metric};
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use quire_arch::{Access, PAGE_SIZE, Platform};
use quire_mm::swap::{
    DeviceFlags, DeviceMemory, DeviceReport, Direction, PageIo, RamDisk, Submitted, SwapDevice,
};
use quire_swap::SwapTechnique;
use std::sync::Arc;

const THREADS: [usize; 2] = [2, 4];
/// What a read takes.
const READ: u64 = 100_000;
/// With `bypass` a race includes a tick of sleep, so only a part of them is run: one in this many.
const SLEEPERS_PART: u64 = 8;

const WINNER: Metric = Metric::lower("winner_p50", "us");
const WINNER_P999: Metric = Metric::lower("winner_p99_9", "us");
const LOSER: Metric = Metric::lower("loser_p50", "us");
const LOSER_P99: Metric = Metric::lower("loser_p99", "us");
const LOSER_P999: Metric = Metric::lower("loser_p99_9", "us");
const OF_READS: Metric = Metric::lower("loser_p99_9_to_winner_p99_9", "times");
const OF_READ: Metric = Metric::lower("loser_p99_9_to_winner", "times, of the same read");

std::thread_local! {
    /// One more than the number of the thread; 0 is none.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

/// A device with a fixed latency, which records the last reader.
struct Slow<D> {
    inner: D,
    reader: Arc<AtomicU64>,
}

impl<P: Platform, D: SwapDevice<P>> SwapDevice<P> for Slow<D> {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn slots(&self) -> u64 {
        self.inner.slots()
    }

    fn flags(&self) -> DeviceFlags {
        self.inner.flags()
    }

    fn is_of(&self, memory: DeviceMemory<'_, P>) -> bool {
        self.inner.is_of(memory)
    }

    unsafe fn submit(&self, memory: DeviceMemory<'_, P>, io: PageIo) -> Submitted {
        if io.direction == Direction::Read {
            self.reader.store(NUMBER.get(), Ordering::Release);
            std::thread::sleep(std::time::Duration::from_nanos(READ));
        }
        // SAFETY: the caller's promise.
        unsafe { self.inner.submit(memory, io) }
    }

    fn freed(&self, memory: DeviceMemory<'_, P>, slot: u64, count: u64) {
        self.inner.freed(memory, slot, count);
    }

    fn discard(&self, memory: DeviceMemory<'_, P>, slot: u64, count: u64) {
        self.inner.discard(memory, slot, count);
    }

    fn report(&self) -> DeviceReport {
        self.inner.report()
    }

    fn close(&self, memory: DeviceMemory<'_, P>) {
        self.inner.close(memory);
    }
}

/// The figures of the races of one strategy.
#[derive(Clone, Debug, Default)]
struct Outcome {
    winners: Latencies,
    losers: Latencies,
    /// Each loser's time in thousandths of the winner's for the same page.
    ratios: Latencies,
}

pub(super) fn part(scale: &Scale) -> Part<'_, SwapTechnique> {
    Part::new(
        "Races for a page that is swapped out",
        THREADS,
        |threads| format!("{threads} threads want the same page, read in {} us", READ / 1000),
        |name, threads| {
            let (outcomes, findings) = for_each_strategy(|technique| race(technique, threads, scale))?;
            let figure = |metric, value: fn(&Outcome) -> f64| Figure::of_each(name, metric, &outcomes, value);
            let figures = [
                figure(WINNER, |outcome| outcome.winners.within(500.0)),
                figure(WINNER_P999, |outcome| outcome.winners.within(999.0)),
                figure(LOSER, |outcome| outcome.losers.within(500.0)),
                figure(LOSER_P99, |outcome| outcome.losers.within(990.0)),
                figure(LOSER_P999, |outcome| outcome.losers.within(999.0)),
                figure(OF_READS, |outcome| outcome.losers.within(999.0) / outcome.winners.within(999.0)),
                figure(OF_READ, |outcome| outcome.ratios.within(999.0)),
            ];
            Ok(Measured::new(figures, findings))
        },
    )
}

fn race(technique: SwapTechnique, threads: usize, scale: &Scale) -> Result<(Outcome, Vec<String>), LabError> {
    let races = match technique {
        SwapTechnique::Bypass => scale.races / SLEEPERS_PART,
        SwapTechnique::All => scale.races,
    };
    let bytes = races * PAGE_SIZE;
    let reader = Arc::new(AtomicU64::new(0));
    let stage = Stage::new(technique, (3 * bytes, 1 + threads), Folios::PAGES, |site| {
        let inner = RamDisk::new(site.machine().memory().frames(), pages(bytes))?;
        Ok(Slow { inner, reader: reader.clone() })
    })?;
    let space = stage.program(bytes, None)?;
    stage.fill(&space, (0, races), &Patterns::of(Contents::Noise))?;
    stage.page_out(&space, 0, races)?;
    let board: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
    let mut outcome = Outcome::default();
    let machine = stage.machine();
    let found = on_threads(threads, |thread, line| {
        go_first();
        NUMBER.set(thread as u64 + 1);
        let mut outcome = Outcome::default();
        let mut result = Ok(());
        let vcpu = machine.vcpu(1 + thread);
        let program = vcpu.as_ref().ok().map(|vcpu| vcpu.program(&space));
        for page in 0..races {
            if thread == 0 {
                reader.store(0, Ordering::Release);
            }
            line.wait(3 * page as usize + 1);
            let start = now();
            if let Some(program) = &program {
                let addr = page_at(page);
                let touched = program.touch(addr, Access::Read);
                result = result.and(touched.map_err(|error| LabError::Access(addr, error)));
            }
            board[thread].store(now() - start, Ordering::Release);
            line.wait(3 * page as usize + 2);
            let winner = reader.load(Ordering::Acquire);
            if thread == 0 && winner > 0 {
                let time = |thread: usize| board[thread].load(Ordering::Acquire).max(1);
                let won = time(winner as usize - 1);
                outcome.winners.add(won);
                for loser in (0..threads).filter(|&loser| loser as u64 + 1 != winner) {
                    outcome.losers.add(time(loser));
                    outcome.ratios.add(time(loser) * 1000 / won);
                }
            }
            // The next turn begins when this one has been recorded.
            line.wait(3 * page as usize + 3);
        }
        vcpu.map(|_| ()).map_err(LabError::from).and(result).map(|()| outcome)
    });
    for part in found {
        let part = part?;
        outcome.winners.merge(&part.winners);
        outcome.losers.merge(&part.losers);
        outcome.ratios.merge(&part.ratios);
    }
    stage.run(|| drop(space));
    Ok((outcome, stage.end()))
}

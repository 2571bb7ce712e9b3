//! Threads that fault on the same page at the same moment: how long those wait that do not read it.
//!
//! The device is synchronous, so that the strategy `bypass` reads past the cache, but takes as long as a fast
//! disk.

use super::latency::Latencies;
use crate::clock::now;
use crate::crew::{go_first, on_threads};
use crate::error::LabError;
use crate::experiment::Lab;
use crate::folios::Folios;
use crate::patterns::{Contents, Patterns};
use crate::process::{Process, Quire};
use crate::report::Metric;
use crate::site::{Site, page_at};
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use quire_arch::{Access, PAGE_SIZE, Platform};
use quire_mm::Techniques;
use quire_mm::space::Advice;
use quire_mm::swap::{
    DeviceFlags, DeviceMemory, DeviceReport, Direction, PageIo, RamDisk, Submitted, SwapDevice, SwapTechnique,
};
use std::sync::Arc;

/// Pages that threads race for. A host that takes its CPUs away does so for some races in a row, about once a
/// second: of so many races that is less than one in 1000.
const RACES: [u64; 3] = [40_000, 8000, 40];
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

/// The races of one strategy.
#[derive(Clone, Debug, Default)]
struct Times {
    winners: Latencies,
    losers: Latencies,
    /// Each loser's time in thousandths of the winner's for the same page.
    ratios: Latencies,
}

pub(super) fn part(lab: &mut Lab<'_>) -> Result<(), LabError> {
    lab.part("Races for a page that is swapped out");
    for threads in THREADS {
        let name = format!("{threads} threads want the same page, read in {} us", READ / 1000);
        lab.case(&name, |case, name| {
            let races = case.scale.of(RACES);
            let all = case.each(|techniques| race(techniques, threads, races))?;
            case.of_each(
                name,
                &all,
                &[
                    (WINNER, &|times: &Times| times.winners.within(500.0)),
                    (WINNER_P999, &|times: &Times| times.winners.within(999.0)),
                    (LOSER, &|times: &Times| times.losers.within(500.0)),
                    (LOSER_P99, &|times: &Times| times.losers.within(990.0)),
                    (LOSER_P999, &|times: &Times| times.losers.within(999.0)),
                    (OF_READS, &|times: &Times| times.losers.within(999.0) / times.winners.within(999.0)),
                    (OF_READ, &|times: &Times| times.ratios.within(999.0)),
                ],
            );
            Ok(())
        })?;
    }
    Ok(())
}

fn race(techniques: Techniques, threads: usize, races: u64) -> Result<(Times, Vec<String>), LabError> {
    let races = match techniques.swap {
        SwapTechnique::Bypass => races / SLEEPERS_PART,
        SwapTechnique::All => races,
    };
    let bytes = races * PAGE_SIZE;
    let reader = Arc::new(AtomicU64::new(0));
    let site = Site::new(techniques, 3 * bytes, 1 + threads, Folios::PAGES.config())?;
    let site = site.with_swap(|machine| {
        let inner = RamDisk::new(machine.memory().frames(), races)?;
        Ok(Slow { inner, reader: reader.clone() })
    })?;
    let space = site.space()?;
    let mut process = Quire::new(&site, &space);
    process.map(0, bytes)?;
    process.fill(0..races, Folios::PAGES, &Patterns::of(Contents::Noise))?;
    process.advise(0, bytes, Advice::PageOut)?;
    let board: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
    let mut times = Times::default();
    let machine = &site.machine;
    let found = on_threads(threads, |thread, line| {
        go_first();
        NUMBER.set(thread as u64 + 1);
        let mut own = Times::default();
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
                own.winners.add(won);
                for loser in (0..threads).filter(|&loser| loser as u64 + 1 != winner) {
                    own.losers.add(time(loser));
                    own.ratios.add(time(loser) * 1000 / won);
                }
            }
            // The next turn begins when this one has been recorded.
            line.wait(3 * page as usize + 3);
        }
        vcpu.map(|_| ()).map_err(LabError::from).and(result).map(|()| own)
    });
    for part in found {
        let part = part?;
        times.winners.merge(&part.winners);
        times.losers.merge(&part.losers);
        times.ratios.merge(&part.ratios);
    }
    site.run(|| drop(space));
    Ok((times, site.end()))
}

//! Page faults of one, two and four threads of a process, each in memory of its own: what faults pay for
//! tables that may be freed.

use super::Scale;
use crate::contest::{Job, Outcome, Terms};
use crate::crew::StartLine;
use crate::experiment::{Measured, Part};
use crate::folios::pages;
use crate::linux::{RoundFigures, now, round_figures};
use crate::process::Process;
use crate::report::Metric;
use core::sync::atomic::{AtomicU64, Ordering};
use quire_arch::{Access, PAGE_SIZE};
use quire_space::TablesTechnique;

const THREADS: [usize; 3] = [1, 2, 4];
const WARM_UP: usize = 2;
/// Between the memory of one thread and the next.
const APART: u64 = 1 << 30;

const RATE: Metric = Metric::higher("faults_a_minute", "millions");

/// Faults by `threads` threads, each on `bytes`, in one space.
#[derive(Clone, Copy, Debug)]
struct Faults {
    threads: usize,
    bytes: u64,
}

impl Job for Faults {
    fn area(&self) -> u64 {
        self.threads as u64 * APART
    }

    /// The time from the first fault to the last of all, for each of them.
    fn round<P: Process>(&mut self, process: &mut P) -> Result<RoundFigures, P::Error> {
        let Self { threads, bytes } = *self;
        let start = |thread: usize| thread as u64 * APART;
        (0..threads).try_for_each(|thread| process.map(start(thread), bytes))?;
        let line = StartLine::new(threads);
        let (began, ended) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
        process.together(threads, &|thread, process| {
            // The first private page of a mapping takes the slow path.
            let first = process.touch(start(thread), PAGE_SIZE, 1, Access::Write);
            line.wait(1);
            first?;
            began.fetch_min(now(), Ordering::Relaxed);
            process.touch(start(thread) + PAGE_SIZE, bytes - PAGE_SIZE, 1, Access::Write)?;
            ended.fetch_max(now(), Ordering::Relaxed);
            Ok(())
        })?;
        (0..threads).try_for_each(|thread| process.unmap(start(thread), bytes))?;
        let time = ended.into_inner() - began.into_inner();
        Ok(round_figures([time as f64 / pages(threads as u64 * bytes) as f64]))
    }
}

pub(super) fn part(scale: &Scale) -> Part<'_, TablesTechnique> {
    Part::new(
        "Page faults in memory of one process, each thread in a mapping of its own",
        THREADS,
        |&threads| format!("page faults, {threads} thread{}", if threads == 1 { "" } else { "s" }),
        |name, threads| {
            let job = Faults { threads, bytes: scale.fault_bytes };
            let all = threads as u64 * scale.fault_bytes;
            let terms = Terms { cpus: 1 + threads, warm_up: WARM_UP, ..Terms::pages(all, scale.rounds) };
            let outcome = Outcome::of(terms, &job)?;
            // Of all threads together.
            let rate = outcome.figure(name, RATE, 0, |series| 60e3 / series.median());
            let times = outcome.times(name, Metric::times("ns/fault"), 0);
            Ok(Measured::new([rate].into_iter().chain(times), outcome.findings))
        },
    )
}

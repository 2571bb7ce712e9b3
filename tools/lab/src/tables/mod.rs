//! The experiment `tables`: what freeing of empty page tables saves and costs.
//!
//! Everything is measured with such tables kept and freed and, where it can do the same, on the host's Linux,
//! round by round in turn.

mod drops;
mod heap;

use crate::crew::StartLine;
use crate::measured::{count_rounds, measured, on_quire};
use crate::prelude::*;
use crate::technique::TABLES;
use core::sync::atomic::{AtomicU64, Ordering};
use drops::{BORDERS, border, sweep, written};

/// Rounds of borders and faults.
const ROUNDS: [usize; 3] = [30, 5, 1];
/// Bytes that each thread faults in, in a round.
const FAULT_BYTES: [u64; 3] = [64 * MIB, 16 * MIB, MIB];
/// Of all threads together.
const FAULT_ROWS: [Row; 2] =
    [Row::higher("faults_a_minute", "millions", 0, |times| 60e3 / times.median()), Row::times("ns/fault", 0)];
/// Between the memory of one thread and the next.
const APART: u64 = GIB;

/// The experiment.
pub(crate) const EXPERIMENT: Experiment = Experiment { technique: &TABLES, cases, count };

fn cases(lab: &mut Lab<'_>) -> Done {
    drops::sweeps(lab)?;
    heap::heap(lab)?;
    drops::borders(lab)?;
    lab.part("Page faults in memory of one process, each thread in a mapping of its own");
    let (bytes, rounds) = (lab.scale.of(FAULT_BYTES), lab.scale.of(ROUNDS));
    [1, 2, 4].into_iter().try_for_each(|threads| {
        let name = format!("page faults, {threads} thread{}", if threads == 1 { "" } else { "s" });
        let terms = Terms::pages(threads as u64 * bytes, threads as u64 * APART, rounds);
        let terms = Terms { cpus: 1 + threads, warm_up: 2, ..terms };
        lab.both(&name, terms, faults(threads, bytes), &FAULT_ROWS)
    })
}

/// Faults by threads of a process, each in memory of its own: what faults pay for tables that may be freed.
/// The time from the first fault to the last of all, for each of them.
fn faults(threads: usize, bytes: u64) -> impl Job + Clone {
    let start = |thread: usize| thread as u64 * APART;
    move |process: &mut dyn Process| {
        (0..threads).try_for_each(|thread| process.map(start(thread), bytes))?;
        let line = StartLine::new(threads);
        let (began, ended) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
        process.together(threads, &|thread, process| {
            // The first private page of a mapping takes the slow path.
            let first = process.touch(start(thread), PAGE_SIZE, 1, Access::Write);
            line.wait();
            first?;
            began.fetch_min(now(), Ordering::Relaxed);
            process.touch(start(thread) + PAGE_SIZE, bytes - PAGE_SIZE, 1, Access::Write)?;
            ended.fetch_max(now(), Ordering::Relaxed);
            Ok(())
        })?;
        (0..threads).try_for_each(|thread| process.unmap(start(thread), bytes))?;
        let time = ended.into_inner() - began.into_inner();
        Ok(round_figures(&[time as f64 / pages(threads as u64 * bytes) as f64]))
    }
}

/// Does what `what` says: `fault` (4096 page faults), `loop` (8 steps of the posted loop), `beside`, `page`,
/// `whole`, `tables` or `pmds` (1000 pairs of a touch and a `DONTNEED`).
fn count(what: &str, techniques: Techniques, times: u64) -> Option<Done> {
    const BYTES: u64 = 16 * MIB;
    let border_of = |what| BORDERS.into_iter().find(|&(_, known, _)| known == what);
    Some(match what {
        "fault" => on_quire(techniques, BYTES, |process| {
            (0..times).try_for_each(|_| {
                process.map(0, BYTES)?;
                measured(|| process.touch(0, BYTES, 1, Access::Write))?;
                process.unmap(0, BYTES)
            })
        }),
        "loop" => {
            let job = sweep(written(0, Order::PMD.bytes()), 1, times * BYTES, times);
            count_rounds(techniques, BYTES, (0, times), job)
        }
        _ => count_rounds(techniques, BYTES, (0, times), border(border_of(what)?.2, 1000)),
    })
}

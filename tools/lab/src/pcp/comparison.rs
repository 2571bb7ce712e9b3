//! One workload under every strategy, round by round in turn.

use crate::crew::on_threads;
use crate::machine::{Counts, Machine, MachineSpec};
use crate::prelude::*;
use quire_frame::FrameConfig;
use std::time::Instant;

/// Rounds before those that count: the lists tune themselves, and the tuned state is measured.
const WARM_UP: usize = 3;
/// The most parts that a round has. Counts follow them.
const PARTS: usize = 3;
/// Blocks that slabs took, for 1000 operations, and the most base pages that the CPUs' lists held, in KiB.
pub(super) const SLABS: usize = PARTS + 2;
const HELD: usize = PARTS + 3;

/// Figures of the zone lock and of the lists: the first is at `first`, the others follow.
pub(super) const fn costs(first: usize, held: usize) -> [Row; 3] {
    [
        Row::lower("zone_lock_takes", "per 1000", first, Series::mean),
        Row::lower("zone_lock_contended", "per 1000", first + 1, Series::mean),
        Row::lower("peak_held", "KiB", held, Series::last),
    ]
}

/// The rows of each part.
pub(super) const TIMES: [[Row; 2]; PARTS] = [
    [Row::times("ns", 0), Row::Cold(0)],
    [Row::times("ns", 1), Row::Cold(1)],
    [Row::times("ns", 2), Row::Cold(2)],
];

/// The figures of a round: what it times, part by part, and what happened in it, for each thousand of its
/// operations.
pub(super) fn figures(parts: &[f64], counts: Counts, operations: usize) -> RoundFigures {
    let mut figures = round_figures(parts);
    for (figure, count) in figures[PARTS..].iter_mut().zip(counts) {
        *figure = count as f64 * 1000.0 / operations.max(1) as f64;
    }
    figures
}

/// Calls `work` with the number of each of `threads` threads at once, each on a vCPU of its own. Returns what
/// each returned, with its time in nanoseconds, and what happened meanwhile.
pub(super) fn timed_on_cpus<R: Send>(
    machine: &Machine,
    threads: usize,
    work: impl Fn(usize) -> R + Sync,
) -> (Vec<(R, f64)>, Counts) {
    machine.counted(|| {
        on_threads(threads, |number, line| {
            machine.on_cpu(number, || {
                line.wait();
                let start = Instant::now();
                let result = work(number);
                (result, start.elapsed().as_nanos() as f64)
            })
        })
    })
}

/// The time of the thread that took longest, or the first failure.
pub(super) fn slowest(threads: Vec<(Done, f64)>) -> Done<f64> {
    threads.into_iter().try_fold(0.0, |slowest: f64, (worked, time)| worked.map(|()| slowest.max(time)))
}

/// A case: `rounds` rounds of what `start` starts on a machine for each strategy: the same work on each
/// machine, which is quiet between rounds. Rows have what is in front of them behind its name; costs follow.
pub(super) fn compare(
    lab: &mut Lab<'_>,
    name: &str,
    (spec, rounds): (MachineSpec, usize),
    start: impl for<'m> Fn(&'m Machine) -> Done<Rounds<'m>>,
    rows: &[(String, &[Row])],
) -> Done {
    lab.case(name, |lab| {
        let machines = lab.made(|techniques| {
            let frames = FrameConfig { pcp: techniques.pcp, ..spec.frames };
            Machine::new(MachineSpec { frames, ..spec })
        })?;
        let mut work = machines.iter().map(start).collect::<Done<Vec<_>>>()?;
        let free: Vec<u64> = machines.iter().map(Machine::free_when_drained).collect();
        let rounds = (WARM_UP, rounds);
        let mut outcome = Outcome::in_rounds(&mut work, None, rounds, |round, number| round(number))?;
        drop(work);
        for (nth, (machine, free)) in machines.iter().zip(free).enumerate() {
            outcome.set(nth, HELD, machine.peak_held() as f64 * 4.0);
            lab.found(nth, machine.findings(free));
        }
        for (what, rows) in rows {
            lab.rows(&format!("{name}{what}"), &outcome, rows);
        }
        lab.rows(name, &outcome, &costs(PARTS, HELD));
        Ok(())
    })
}

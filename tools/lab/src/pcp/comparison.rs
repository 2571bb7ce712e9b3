//! One workload under every strategy, round by round in turn.

use crate::case::{Case, Outcome};
use crate::crew::on_threads;
use crate::error::LabError;
use crate::machine::{Counts, Machine, MachineSpec};
use crate::report::Metric;
use crate::rounds::{RoundFigures, Series, round_figures};
use quire_frame::FrameConfig;
use std::time::Instant;

/// Rounds before those that count: the lists tune themselves, and the tuned state is measured.
const WARM_UP: usize = 3;
/// The most parts that a round has; counts follow them.
const PARTS: usize = 3;

const TIME_COLD: Metric = Metric::lower("time_cold", "ns");
pub(super) const TAKES: Metric = Metric::lower("zone_lock_takes", "per 1000");
pub(super) const CONTENDED: Metric = Metric::lower("zone_lock_contended", "per 1000");
pub(super) const PEAK_HELD: Metric = Metric::lower("peak_held", "KiB");

/// Work that is done in rounds on a machine.
pub(super) trait Workload {
    /// Does a round: the same work for each machine that does round `number`. Between rounds the machine is
    /// quiet.
    fn round(&mut self, machine: &Machine, number: usize) -> Result<Round, LabError>;

    /// Frees everything that it holds, but for what it allocated when it was made.
    fn end(&mut self, _machine: &Machine) {}
}

/// The figures of a round.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Round {
    /// What the workload times, part by part.
    pub(super) figures: Vec<f64>,
    /// What happened in the part of the round that counts.
    pub(super) counts: Counts,
    /// Operations in it, by which counts are divided.
    pub(super) operations: u64,
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
                line.wait(1);
                let start = Instant::now();
                let result = work(number);
                (result, start.elapsed().as_nanos() as f64)
            })
        })
    })
}

/// The time of the thread that took longest, or the first failure.
pub(super) fn slowest(threads: Vec<(Result<(), LabError>, f64)>) -> Result<f64, LabError> {
    threads.into_iter().try_fold(0.0, |slowest: f64, (worked, time)| worked.map(|()| slowest.max(time)))
}

impl Round {
    /// The parts, then counts for each thousand of the operations.
    fn figures(&self) -> RoundFigures {
        let mut figures = round_figures([]);
        figures[..self.figures.len()].copy_from_slice(&self.figures);
        let counts = [self.counts.takes, self.counts.contended, self.counts.slabs];
        for (figure, count) in figures[PARTS..].iter_mut().zip(counts) {
            *figure = count as f64 * 1000.0 / self.operations.max(1) as f64;
        }
        figures
    }
}

/// A workload's figures under every strategy.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) outcome: Outcome,
    /// The most base pages that the CPUs' lists held.
    held: Vec<u64>,
}

impl Comparison {
    /// Runs `rounds` rounds of what `make` makes, on a machine for each strategy.
    pub(super) fn run<W: Workload>(
        case: &mut Case,
        spec: MachineSpec,
        rounds: usize,
        make: impl Fn(&Machine) -> Result<W, LabError>,
    ) -> Result<Self, LabError> {
        let mut subjects = case.made(|techniques| {
            let frames = FrameConfig { pcp: techniques.pcp, ..spec.frames };
            let machine = Machine::new(MachineSpec { frames, ..spec })?;
            let workload = make(&machine)?;
            let free = machine.free_when_drained();
            Ok((machine, workload, free))
        })?;
        let rounds = (WARM_UP, rounds);
        let outcome = Outcome::in_rounds(&mut subjects, None, rounds, |(machine, workload, _), number| {
            Ok(workload.round(machine, number)?.figures())
        })?;
        let mut held = Vec::new();
        for (nth, (machine, mut workload, free)) in subjects.into_iter().enumerate() {
            workload.end(&machine);
            held.push(machine.peak_held());
            case.found(nth, machine.findings(free));
        }
        Ok(Self { outcome, held })
    }

    /// Adds the times of one part.
    pub(super) fn add_times(&self, case: &mut Case, name: &str, part: usize) {
        case.times(name, &self.outcome, Metric::times("ns"), part);
        case.add(name, TIME_COLD, self.outcome.cold(part));
    }

    /// Adds the blocks that slabs took.
    pub(super) fn add_blocks(&self, case: &mut Case, name: &str, metric: Metric) {
        case.own_rows(name, &self.outcome, &[(metric, PARTS + 2, Series::mean)]);
    }

    /// Adds the figures of the zone lock and of the lists.
    pub(super) fn add_costs(&self, case: &mut Case, name: &str) {
        let locks =
            [(TAKES, PARTS, Series::mean as fn(&Series) -> f64), (CONTENDED, PARTS + 1, Series::mean)];
        case.own_rows(name, &self.outcome, &locks);
        case.of_each(name, &self.held, &[(PEAK_HELD, &|&pages| pages as f64 * 4.0)]);
    }
}

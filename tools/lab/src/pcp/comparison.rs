//! One workload under every strategy, round by round in turn.

use crate::error::LabError;
use crate::machine::{Counts, Machine, MachineSpec};
use crate::report::{Figure, Metric, TIME_RATIO};
use crate::rounds::{Series, in_turn};
use quire_frame::{FrameConfig, PcpTechnique};

/// Rounds before those that count: the lists tune themselves, and the tuned state is measured.
const WARM_UP: usize = 3;

const TIME_MIN: Metric = Metric::lower("time_min", "ns");
const TIME_MEDIAN: Metric = Metric::lower("time_median", "ns");
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

/// The time of the thread that took longest, or the first failure.
pub(super) fn slowest(threads: Vec<Result<f64, LabError>>) -> Result<f64, LabError> {
    threads.into_iter().try_fold(0.0, |slowest: f64, time| Ok(slowest.max(time?)))
}

/// The figures of a strategy.
#[derive(Debug)]
pub(super) struct Outcome {
    technique: PcpTechnique,
    /// The first round's figures, part by part.
    cold: Vec<f64>,
    parts: Vec<Series>,
    pub(super) counts: Counts,
    pub(super) operations: u64,
    /// The most base pages that the CPUs' lists held.
    held: u64,
}

impl Outcome {
    /// `count` for each thousand of the operations that were counted.
    pub(super) fn per_thousand(&self, count: u64) -> f64 {
        count as f64 * 1000.0 / self.operations.max(1) as f64
    }

    pub(super) fn part(&self, part: usize) -> &Series {
        &self.parts[part]
    }
}

/// A workload's figures under every strategy.
#[derive(Debug)]
pub(super) struct Comparison {
    outcomes: Vec<Outcome>,
    /// What was found wrong on the machines.
    pub(super) findings: Vec<String>,
}

struct Subject<W> {
    machine: Machine,
    workload: W,
    /// Frames that were free once the workload was made.
    free: u64,
    outcome: Outcome,
}

impl<W: Workload> Subject<W> {
    fn new(
        spec: MachineSpec,
        technique: PcpTechnique,
        make: &impl Fn(&Machine) -> Result<W, LabError>,
    ) -> Result<Self, LabError> {
        let machine =
            Machine::new(MachineSpec { frames: FrameConfig { pcp: technique, ..spec.frames }, ..spec })?;
        let workload = make(&machine)?;
        let free = machine.free_when_drained();
        let outcome = Outcome {
            technique,
            cold: Vec::new(),
            parts: Vec::new(),
            counts: Counts::default(),
            operations: 0,
            held: 0,
        };
        Ok(Self { machine, workload, free, outcome })
    }

    fn round(&mut self, number: usize) -> Result<(), LabError> {
        let round = self.workload.round(&self.machine, number)?;
        let outcome = &mut self.outcome;
        if number == 0 {
            outcome.cold.clone_from(&round.figures);
        }
        if number >= WARM_UP {
            outcome.parts.resize_with(round.figures.len(), Series::default);
            for (series, figure) in outcome.parts.iter_mut().zip(round.figures) {
                series.add(figure);
            }
            outcome.counts += round.counts;
            outcome.operations += round.operations;
        }
        Ok(())
    }
}

impl Comparison {
    /// Runs `rounds` rounds of what `make` makes, on a machine for each strategy.
    pub(super) fn run<W: Workload>(
        spec: MachineSpec,
        rounds: usize,
        make: impl Fn(&Machine) -> Result<W, LabError>,
    ) -> Result<Self, LabError> {
        let mut subjects = PcpTechnique::COMPARED
            .into_iter()
            .map(|technique| Subject::new(spec, technique, &make))
            .collect::<Result<Vec<_>, _>>()?;
        in_turn(&mut subjects, WARM_UP + rounds, Subject::round)?;
        let mut findings = Vec::new();
        let mut outcomes = Vec::new();
        for mut subject in subjects {
            subject.workload.end(&subject.machine);
            subject.outcome.held = subject.machine.peak_held();
            let name = subject.outcome.technique.name();
            let found = subject.machine.findings(subject.free);
            findings.extend(found.into_iter().map(|finding| format!("{name}: {finding}")));
            outcomes.push(subject.outcome);
        }
        Ok(Self { outcomes, findings })
    }

    fn outcome(&self, technique: PcpTechnique) -> Option<&Outcome> {
        self.outcomes.iter().find(|outcome| outcome.technique == technique)
    }

    /// A figure of every strategy.
    pub(super) fn figure(&self, case: &str, metric: Metric, value: impl Fn(&Outcome) -> f64) -> Figure {
        Figure::new(case, metric, |technique| self.outcome(technique).map(&value))
    }

    /// The time of one part as a ratio to that of order 0 only, round by round.
    pub(super) fn ratio(&self, case: &str, part: usize) -> Figure {
        let base = self.outcome(PcpTechnique::OrderZero);
        self.figure(case, TIME_RATIO, |outcome| {
            base.map_or(0.0, |base| outcome.part(part).ratio_to(base.part(part)))
        })
    }

    /// The times of one part.
    pub(super) fn times(&self, case: &str, part: usize) -> Vec<Figure> {
        vec![
            self.figure(case, TIME_MIN, |outcome| outcome.part(part).min()),
            self.figure(case, TIME_MEDIAN, |outcome| outcome.part(part).median()),
            self.ratio(case, part),
            self.figure(case, TIME_COLD, |outcome| outcome.cold[part]),
        ]
    }

    /// The figures of the zone lock and of the lists.
    pub(super) fn costs(&self, case: &str) -> Vec<Figure> {
        vec![
            self.figure(case, TAKES, |outcome| outcome.per_thousand(outcome.counts.takes)),
            self.figure(case, CONTENDED, |outcome| outcome.per_thousand(outcome.counts.contended)),
            self.figure(case, PEAK_HELD, |outcome| outcome.held as f64 * 4.0),
        ]
    }
}

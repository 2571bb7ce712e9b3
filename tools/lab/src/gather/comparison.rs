//! One workload under both strategies and on Linux, round by round in turn.

use super::Site;
use super::linux::{self, Job};
use crate::error::LabError;
use crate::folios::Folios;
use crate::folios::pages;
use crate::linux::Linux;
use crate::report::{Compared, Figure, Metric, RATIO};
use crate::rounds::{Series, in_turn};
use crate::site::Flushes;
use quire_mm::GatherTechnique;

/// Rounds before those that count.
const WARM_UP: usize = 1;

const TIME_MIN: Metric = Metric::lower("time_min", "ns/page");
const TIME_MEDIAN: Metric = Metric::lower("time_median", "ns/page");
const TIME_RATIO: Metric = Metric::lower(RATIO, "to pages");
const SHOOTDOWNS: Metric = Metric::lower("shootdowns", "per call");
const INTERRUPTS: Metric = Metric::lower("interrupts", "per call");
const WAITING: Metric = Metric::lower("memory_still_waiting", "KiB");

/// Work that is done in rounds on a machine that is quiet between them.
pub(super) trait Workload {
    /// Does a round.
    fn round(&mut self) -> Result<Round, LabError>;
}

/// What a round gave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// The part that is measured, in nanoseconds.
    pub(super) time: f64,
    /// A second part, where there is one.
    pub(super) second: Option<f64>,
    /// Shootdowns that the first part sent.
    pub(super) flushes: Flushes,
    /// Calls in it.
    pub(super) calls: u64,
    /// Base pages that were not free yet when it returned.
    pub(super) waiting: u64,
}

/// The figures of a strategy.
#[derive(Debug, Default)]
struct Outcome {
    parts: [Series; 2],
    flushes: Flushes,
    calls: u64,
    waiting: Series,
}

/// A case: so much memory in such folios, and Linux's job for the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) bytes: u64,
    pub(super) folios: Folios,
    pub(super) linux: Job,
    pub(super) rounds: usize,
    /// Whether the host's controls of large folios may be set for Linux.
    pub(super) host_controls: bool,
}

/// A subject of the rounds.
enum Subject<W> {
    Quire(GatherTechnique, W, Outcome),
    /// `None` once it turned out that Linux cannot do the same.
    Linux(Option<Linux>, [Series; 2]),
}

impl<W: Workload> Subject<W> {
    fn round(&mut self, number: usize, pages: u64) -> Result<(), LabError> {
        let counts = number >= WARM_UP;
        match self {
            Self::Quire(_, workload, outcome) => {
                let round = workload.round()?;
                if counts {
                    for (series, time) in outcome.parts.iter_mut().zip([Some(round.time), round.second]) {
                        time.into_iter().for_each(|time| series.add(time / pages as f64));
                    }
                    outcome.flushes = outcome.flushes.plus(round.flushes);
                    outcome.calls += round.calls;
                    outcome.waiting.add(round.waiting as f64);
                }
            }
            Self::Linux(linux, series) => {
                let Some(result) = linux.as_mut().and_then(Linux::round) else {
                    *linux = None;
                    return Ok(());
                };
                if counts {
                    series.iter_mut().zip(result).for_each(|(series, figure)| series.add(figure));
                }
            }
        }
        Ok(())
    }
}

/// The figures of both strategies and Linux.
#[derive(Debug)]
pub(super) struct Comparison {
    outcomes: Vec<(GatherTechnique, Outcome)>,
    linux: Option<[Series; 2]>,
    /// What was found wrong on the machines.
    pub(super) findings: Vec<String>,
}

impl Comparison {
    /// Runs the rounds of `case` with the workload of `make`, on a machine for each strategy.
    pub(super) fn run<'s, W: Workload>(
        case: Case,
        sites: &'s mut Vec<Site>,
        make: impl Fn(&'s Site) -> Result<W, LabError>,
    ) -> Result<Self, LabError> {
        // First, while this process is small.
        sites.clear();
        let linux = linux::start(case.linux, case.bytes, case.folios, case.host_controls);
        *sites = Site::for_each_strategy(case.bytes, 1, case.folios)?;
        let sites: &'s [Site] = sites;
        let mut subjects = Vec::new();
        for site in sites {
            subjects.push(Subject::Quire(site.technique, make(site)?, Outcome::default()));
        }
        subjects.push(Subject::Linux(linux, [Series::default(), Series::default()]));
        let pages = pages(case.bytes);
        in_turn(&mut subjects, WARM_UP + case.rounds, |subject, number| subject.round(number, pages))?;
        let mut comparison = Self { outcomes: Vec::new(), linux: None, findings: Vec::new() };
        for subject in subjects {
            match subject {
                Subject::Quire(technique, workload, outcome) => {
                    // It frees what it keeps.
                    drop(workload);
                    comparison.outcomes.push((technique, outcome));
                }
                Subject::Linux(linux, series) => comparison.linux = linux.map(|_| series),
            }
        }
        comparison.findings.extend(sites.iter().flat_map(Site::findings));
        Ok(comparison)
    }

    fn outcome(&self, technique: GatherTechnique) -> Option<&Outcome> {
        self.outcomes.iter().find(|(other, _)| *other == technique).map(|(_, outcome)| outcome)
    }

    fn figure(&self, case: &str, metric: Metric, value: impl Fn(&Outcome) -> f64) -> Figure<GatherTechnique> {
        Figure::new(case, metric, |technique| self.outcome(technique).map(&value))
    }

    /// The times of one part.
    pub(super) fn times(&self, case: &str, part: usize) -> Vec<Figure<GatherTechnique>> {
        let linux = |value: fn(&Series) -> f64| self.linux.as_ref().map(|linux| value(&linux[part]));
        let base = self.outcome(GatherTechnique::BEFORE).map(|outcome| &outcome.parts[part]);
        vec![
            self.figure(case, TIME_MIN, |outcome| outcome.parts[part].min()).with_linux(linux(Series::min)),
            self.figure(case, TIME_MEDIAN, |outcome| outcome.parts[part].median())
                .with_linux(linux(Series::median)),
            self.figure(case, TIME_RATIO, |outcome| {
                base.map_or(0.0, |base| outcome.parts[part].ratio_to(base))
            }),
        ]
    }

    /// Shootdowns and interrupts, and pages that were not free at once.
    pub(super) fn costs(&self, case: &str) -> Vec<Figure<GatherTechnique>> {
        let a_call = |outcome: &Outcome, counts: &[u64]| {
            counts.iter().sum::<u64>() as f64 / outcome.calls.max(1) as f64
        };
        vec![
            self.figure(case, SHOOTDOWNS, |outcome| a_call(outcome, &outcome.flushes.shootdowns)),
            self.figure(case, INTERRUPTS, |outcome| a_call(outcome, &outcome.flushes.interrupts)),
            self.figure(case, WAITING, |outcome| outcome.waiting.median() * 4.0),
        ]
    }
}

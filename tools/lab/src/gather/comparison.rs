//! One workload under both strategies and on Linux, round by round in turn.

use super::Site;
use super::linux::{self, Job};
use crate::contest::Outcome;
use crate::error::LabError;
use crate::folios::{Folios, pages};
use crate::linux::RoundFigures;
use crate::report::{Figure, Metric, RATIO};
use crate::rounds::Series;
use crate::site::Flushes;
use quire_mm::GatherTechnique;

/// Rounds before those that count.
const WARM_UP: usize = 1;

const TIMES: [Metric; 3] = [
    Metric::lower("time_min", "ns/page"),
    Metric::lower("time_median", "ns/page"),
    Metric::lower(RATIO, "to pages"),
];
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

impl Round {
    /// The times for each of `pages`, flushes for each call, and pages.
    fn figures(self, pages: u64) -> RoundFigures {
        let a_call = |counts: &[u64]| counts.iter().sum::<u64>() as f64 / self.calls as f64;
        [
            self.time / pages as f64,
            self.second.unwrap_or(0.0) / pages as f64,
            a_call(&self.flushes.shootdowns),
            a_call(&self.flushes.interrupts),
            self.waiting as f64,
            0.0,
        ]
    }
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

/// The figures of both strategies and Linux.
#[derive(Debug)]
pub(super) struct Comparison(Outcome<GatherTechnique>);

impl Comparison {
    /// Runs the rounds of `case` with the workload of `make`, on a machine for each strategy.
    pub(super) fn run<'s, W: Workload>(
        case: Case,
        sites: &'s mut Vec<Site>,
        make: impl Fn(&'s Site) -> Result<W, LabError>,
    ) -> Result<Self, LabError> {
        // First, while this process is small.
        sites.clear();
        let mut linux = linux::start(case.linux, case.bytes, case.folios, case.host_controls);
        *sites = Site::for_each_strategy(case.bytes, 1, case.folios)?;
        let sites: &'s [Site] = sites;
        let mut workloads = Vec::new();
        for site in sites {
            workloads.push((site.technique, make(site)?));
        }
        let pages = pages(case.bytes);
        let rounds = (WARM_UP, case.rounds);
        let mut outcome = Outcome::in_rounds(&mut workloads, &mut linux, rounds, |workload, _| {
            Ok(workload.round()?.figures(pages))
        })?;
        // They free what they keep.
        drop(workloads);
        outcome.findings.extend(sites.iter().flat_map(Site::findings));
        Ok(Self(outcome))
    }

    /// The times of one part.
    pub(super) fn times(&self, case: &str, part: usize) -> [Figure<GatherTechnique>; 3] {
        self.0.times(case, TIMES, part)
    }

    /// Shootdowns and interrupts, and pages that were not free at once.
    pub(super) fn costs(&self, case: &str) -> [Figure<GatherTechnique>; 3] {
        [
            self.0.own_figure(case, SHOOTDOWNS, 2, Series::mean),
            self.0.own_figure(case, INTERRUPTS, 3, Series::mean),
            self.0.own_figure(case, WAITING, 4, |pages| pages.median() * 4.0),
        ]
    }

    /// What was found wrong on the machines.
    pub(super) fn findings(self) -> Vec<String> {
        self.0.findings
    }
}

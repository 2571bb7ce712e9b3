//! A job on Quire under every strategy and on the host's Linux, round by round in turn.

use crate::error::LabError;
use crate::folios::Folios;
use crate::linux::{Control, FIGURES, Linux, OnHost, RoundFigures};
use crate::process::{Process, Quire};
use crate::report::{Compared, Figure, Metric};
use crate::rounds::{Series, in_turn};
use crate::site::Site;
use quire_arch::Order;

/// What a process does in rounds. The code is the same for Quire and for Linux.
pub(crate) trait Job: Clone {
    /// Bytes of addresses that it uses.
    fn area(&self) -> u64;
    /// Does a round and returns its figures. Allocates nothing.
    fn round<P: Process>(&mut self, process: &mut P) -> Result<RoundFigures, P::Error>;
}

/// The machines and the number of rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Bytes of memory that the job has populated at most, tables included.
    pub(crate) memory: u64,
    pub(crate) folios: Folios,
    /// Rounds that do not count.
    pub(crate) warm_up: usize,
    pub(crate) rounds: usize,
    /// Whether the host's controls of large folios may be set for Linux.
    pub(crate) host_controls: bool,
}

/// The rounds of every strategy, and of Linux.
#[derive(Debug)]
pub(crate) struct Outcome<T> {
    quire: Vec<(T, [Series; FIGURES])>,
    linux: Option<[Series; FIGURES]>,
    /// What was found wrong on the machines.
    pub(crate) findings: Vec<String>,
}

enum Subject<'s, T, J> {
    Quire(T, Quire<'s, T>, J, [Series; FIGURES]),
    /// `None` once it turned out that Linux cannot do the same.
    Linux(Option<Linux>, [Series; FIGURES]),
}

fn add(series: &mut [Series; FIGURES], result: RoundFigures) {
    series.iter_mut().zip(result).for_each(|(series, figure)| series.add(figure));
}

impl<T: Compared> Outcome<T> {
    /// Runs `job` under every strategy and on Linux.
    pub(crate) fn of(terms: Terms, job: &impl Job) -> Result<Self, LabError> {
        // First, while this process is small.
        let may = terms.folios.order == Order::ZERO || terms.host_controls;
        let on_host = || OnHost { job: job.clone(), control: Control::of(terms.folios), start: None };
        // A machine for each strategy comes beside it.
        let room = (T::ALL.len() as u64 + 2) * terms.memory;
        let linux = if may { Linux::start(room, on_host()) } else { None };
        let sites = Site::for_each_strategy(terms.memory, 1, terms.folios)?;
        let spaces = sites.iter().map(Site::space).collect::<Result<Vec<_>, _>>()?;
        let mut subjects: Vec<_> = sites
            .iter()
            .zip(&spaces)
            .map(|(site, space)| {
                Subject::Quire(site.technique, Quire::new(site, space), job.clone(), Default::default())
            })
            .collect();
        subjects.push(Subject::Linux(linux, Default::default()));
        in_turn(&mut subjects, terms.warm_up + terms.rounds, |subject, number| {
            let counts = number >= terms.warm_up;
            match subject {
                Subject::Quire(_, process, job, series) => {
                    let result = job.round(process)?;
                    if counts {
                        add(series, result);
                    }
                }
                Subject::Linux(linux, series) => {
                    let result = linux.as_mut().and_then(Linux::round);
                    match result {
                        Some(result) if counts => add(series, result),
                        Some(_) => {}
                        None => *linux = None,
                    }
                }
            }
            Ok::<(), LabError>(())
        })?;
        let mut outcome = Self { quire: Vec::new(), linux: None, findings: Vec::new() };
        for subject in subjects {
            match subject {
                Subject::Quire(technique, _, _, series) => outcome.quire.push((technique, series)),
                Subject::Linux(linux, series) => outcome.linux = linux.map(|_| series),
            }
        }
        for (site, space) in sites.iter().zip(spaces) {
            site.run(|| drop(space));
        }
        outcome.findings.extend(sites.iter().flat_map(Site::findings));
        Ok(outcome)
    }

    /// One of the figures of a round; `of` sums up the rounds.
    pub(crate) fn figure(
        &self,
        case: &str,
        metric: Metric,
        nth: usize,
        of: impl Fn(&Series) -> f64,
    ) -> Figure<T> {
        let series = |technique| self.quire.iter().find(|(other, _)| *other == technique);
        Figure::new(case, metric, |technique| series(technique).map(|(_, series)| of(&series[nth])))
            .with_linux(self.linux.as_ref().map(|linux| of(&linux[nth])))
    }

    /// The median of the ratios of rounds to those of the strategy that ours is compared with.
    pub(crate) fn ratio(&self, case: &str, metric: Metric, nth: usize) -> Figure<T> {
        let series = |technique| self.quire.iter().find(|(other, _)| *other == technique);
        let base = series(T::BEFORE).map(|(_, series)| &series[nth]);
        Figure::new(case, metric, |technique| Some(series(technique)?.1[nth].ratio_to(base?)))
    }
}

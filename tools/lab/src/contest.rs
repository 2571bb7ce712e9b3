//! Every strategy and the host's Linux, round by round in turn.

use crate::error::LabError;
use crate::experiment::found_by;
use crate::folios::Folios;
use crate::linux::{FIGURES, Linux, OnHost, RoundFigures};
use crate::process::{Process, Quire};
use crate::report::{Compared, Figure, Metric};
use crate::rounds::{Series, in_turn};
use crate::site::{Site, ram_for};
use quire_arch::Order;

/// The work of a process in rounds. The code is the same for Quire and for Linux.
pub(crate) trait Job: Clone {
    /// Bytes of addresses that it uses.
    fn area(&self) -> u64;
    /// Does a round and returns its figures. Allocates nothing.
    fn round<P: Process>(&mut self, process: &mut P) -> Result<RoundFigures, P::Error>;
}

/// The machines and the number of rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Bytes of memory that are populated at most, tables included.
    pub(crate) memory: u64,
    pub(crate) cpus: usize,
    pub(crate) folios: Folios,
    /// Rounds that do not count.
    pub(crate) warm_up: usize,
    pub(crate) rounds: usize,
    /// Whether the host's controls of large folios may be set for Linux.
    pub(crate) host_controls: bool,
}

impl Terms {
    /// One CPU, single pages, and no round that does not count.
    pub(crate) const fn pages(memory: u64, rounds: usize) -> Self {
        Self { memory, cpus: 1, folios: Folios::PAGES, warm_up: 0, rounds, host_controls: false }
    }
}

/// What one subject measured.
#[derive(Debug, Default)]
struct Rounds {
    /// The first round, which need not count.
    cold: RoundFigures,
    series: [Series; FIGURES],
}

impl Rounds {
    fn add(&mut self, number: usize, warm_up: usize, figures: RoundFigures) {
        if number == 0 {
            self.cold = figures;
        }
        if number >= warm_up {
            self.series.iter_mut().zip(figures).for_each(|(series, figure)| series.add(figure));
        }
    }
}

/// The rounds of every strategy, and of Linux.
#[derive(Debug)]
pub(crate) struct Outcome<T> {
    quire: Vec<(T, Rounds)>,
    /// `None` where Linux could not do the same.
    linux: Option<Rounds>,
    /// What was found wrong on the machines.
    pub(crate) findings: Vec<String>,
}

/// A subject that has its turn in a round.
enum Subject<'s, T, S> {
    Quire(&'s mut (T, S), Rounds),
    Linux(&'s mut Option<Linux>, Rounds),
}

impl<T: Compared> Outcome<T> {
    /// Calls `round` for each of `subjects` in turn, and Linux, for `warm_up` rounds that do not count and
    /// `rounds` that do. `linux` becomes `None` once it turns out that Linux cannot do the same.
    pub(crate) fn in_rounds<S>(
        subjects: &mut [(T, S)],
        linux: &mut Option<Linux>,
        (warm_up, rounds): (usize, usize),
        mut round: impl FnMut(&mut S, usize) -> Result<RoundFigures, LabError>,
    ) -> Result<Self, LabError> {
        let mut all: Vec<_> =
            subjects.iter_mut().map(|subject| Subject::Quire(subject, Rounds::default())).collect();
        all.push(Subject::Linux(linux, Rounds::default()));
        in_turn(&mut all, warm_up + rounds, |subject, number| {
            match subject {
                Subject::Quire((_, state), measured) => {
                    measured.add(number, warm_up, round(state, number)?);
                }
                Subject::Linux(linux, measured) => match linux.as_mut().and_then(Linux::round) {
                    Some(figures) => measured.add(number, warm_up, figures),
                    None => **linux = None,
                },
            }
            Ok::<(), LabError>(())
        })?;
        let mut outcome = Self { quire: Vec::new(), linux: None, findings: Vec::new() };
        for subject in all {
            match subject {
                Subject::Quire((technique, _), rounds) => outcome.quire.push((*technique, rounds)),
                Subject::Linux(linux, rounds) => outcome.linux = linux.as_ref().map(|_| rounds),
            }
        }
        Ok(outcome)
    }

    /// Runs `job` on a machine for each strategy, in a space of its own there, and on Linux.
    pub(crate) fn of(terms: Terms, job: &impl Job) -> Result<Self, LabError> {
        let may = terms.folios.order == Order::ZERO || terms.host_controls;
        // In addition there is a machine for each strategy.
        let needed = T::ALL.len() as u64 * ram_for(terms.memory) + 2 * terms.memory;
        // First, while this process is small.
        let on_host = may.then(|| OnHost::new(job.clone(), terms.folios));
        let mut linux = on_host.and_then(|on_host| Linux::start(needed, on_host));
        let sites = Site::for_each_strategy(terms.memory, terms.cpus, terms.folios)?;
        let mut subjects = Vec::new();
        for site in &sites {
            subjects.push((site.technique, (site, site.space()?, job.clone())));
        }
        let rounds = (terms.warm_up, terms.rounds);
        let mut outcome = Self::in_rounds(&mut subjects, &mut linux, rounds, |(site, space, job), _| {
            job.round(&mut Quire::new(site, space))
        })?;
        for (_, (site, space, _)) in subjects {
            site.run(|| drop(space));
        }
        outcome.findings.extend(sites.iter().flat_map(|site| found_by(site.technique, site.findings())));
        Ok(outcome)
    }

    /// The same with Linux left out.
    pub(crate) fn without_linux(self) -> Self {
        Self { linux: None, ..self }
    }

    fn rounds(&self, technique: T) -> Option<&Rounds> {
        self.quire.iter().find(|(other, _)| *other == technique).map(|(_, rounds)| rounds)
    }

    /// One of the figures of a round, for Quire only; `of` sums up the rounds.
    pub(crate) fn own_figure(
        &self,
        case: &str,
        metric: Metric,
        nth: usize,
        of: impl Fn(&Series) -> f64,
    ) -> Figure<T> {
        Figure::new(case, metric, |technique| self.rounds(technique).map(|rounds| of(&rounds.series[nth])))
    }

    /// The same with Linux's.
    pub(crate) fn figure(
        &self,
        case: &str,
        metric: Metric,
        nth: usize,
        of: impl Fn(&Series) -> f64,
    ) -> Figure<T> {
        let linux = self.linux.as_ref().map(|rounds| of(&rounds.series[nth]));
        self.own_figure(case, metric, nth, of).with_linux(linux)
    }

    /// One of the figures of the first round.
    pub(crate) fn cold(&self, case: &str, metric: Metric, nth: usize) -> Figure<T> {
        Figure::new(case, metric, |technique| self.rounds(technique).map(|rounds| rounds.cold[nth]))
    }

    /// The median of the ratios of rounds to those of the strategy that ours is compared with.
    pub(crate) fn ratio(&self, case: &str, nth: usize) -> Figure<T> {
        let base = self.rounds(T::BEFORE);
        Figure::new(case, T::TIME_RATIO, |technique| {
            Some(self.rounds(technique)?.series[nth].ratio_to(&base?.series[nth]))
        })
    }

    /// The least and the median of a time, and its ratio.
    pub(crate) fn times(&self, case: &str, [min, median]: [Metric; 2], nth: usize) -> [Figure<T>; 3] {
        [
            self.figure(case, min, nth, Series::min),
            self.figure(case, median, nth, Series::median),
            self.ratio(case, nth),
        ]
    }
}

//! One case: the work of every strategy and of the host's Linux, round by round in turn, and its figures.

use crate::error::LabError;
use crate::folios::Folios;
use crate::linux::{Linux, rounds_on_host};
use crate::process::{Job, Quire};
use crate::report::{Figure, Metric};
use crate::rounds::{RoundFigures, Series, in_turn};
use crate::scale::Scale;
use crate::site::{HostSpace, Site, ram_for};
use crate::technique::Technique;
use core::ops::Range;
use quire_arch::Order;
use quire_mm::Techniques;

/// What the rounds of a series come to.
pub(crate) type Sum = fn(&Series) -> f64;

/// A row of a table: a metric, and what a strategy came to in it.
type RowOf<'r, R> = (Metric, &'r dyn Fn(&R) -> f64);

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
}

impl Terms {
    /// One CPU, single pages, and no round that does not count.
    pub(crate) const fn pages(memory: u64, rounds: usize) -> Self {
        Self { memory, cpus: 1, folios: Folios::PAGES, warm_up: 0, rounds }
    }

    /// The same with one round that does not count.
    pub(crate) const fn warm(memory: u64, rounds: usize) -> Self {
        Self { warm_up: 1, ..Self::pages(memory, rounds) }
    }
}

/// The rounds of every strategy, and of Linux.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    quire: Vec<Vec<RoundFigures>>,
    /// `None` where Linux could not do the same.
    linux: Option<Vec<RoundFigures>>,
    /// The rounds that count.
    counts: Range<usize>,
}

impl Outcome {
    /// Calls `round` for each of `subjects`, one for each strategy, and Linux in turn: for `warm_up` rounds
    /// that do not count and `rounds` that do.
    pub(crate) fn in_rounds<S>(
        subjects: &mut [S],
        linux: Option<Linux>,
        (warm_up, rounds): (usize, usize),
        mut round: impl FnMut(&mut S, usize) -> Result<RoundFigures, LabError>,
    ) -> Result<Self, LabError> {
        let mut quire = vec![Vec::new(); subjects.len()];
        let mut on_linux = linux.map(|linux| (linux, Vec::new()));
        let mut places: Vec<usize> = (0..=subjects.len()).collect();
        in_turn(&mut places, warm_up + rounds, |&mut place, number| {
            if let Some(subject) = subjects.get_mut(place) {
                quire[place].push(round(subject, number)?);
            } else if let Some((linux, done)) = &mut on_linux {
                match linux.round() {
                    Some(figures) => done.push(figures),
                    None => on_linux = None,
                }
            }
            Ok::<(), LabError>(())
        })?;
        let linux = on_linux.map(|(_, done)| done);
        Ok(Self { quire, linux, counts: warm_up..warm_up + rounds })
    }

    /// The same, where only `counts` count.
    pub(crate) fn only(&self, counts: Range<usize>) -> Self {
        Self { counts, ..self.clone() }
    }

    fn series(&self, rounds: &[RoundFigures], nth: usize) -> Series {
        rounds[self.counts.clone()].iter().map(|figures| figures[nth]).collect()
    }

    /// What the rounds come to in one of their figures, with each strategy.
    pub(crate) fn values(&self, nth: usize, sum: impl Fn(&Series) -> f64) -> Vec<f64> {
        self.quire.iter().map(|rounds| sum(&self.series(rounds, nth))).collect()
    }

    /// The same on Linux.
    pub(crate) fn on_linux(&self, nth: usize, sum: impl Fn(&Series) -> f64) -> Option<f64> {
        self.linux.as_ref().map(|rounds| sum(&self.series(rounds, nth)))
    }

    /// One of the figures of the first round, which need not count.
    pub(crate) fn cold(&self, nth: usize) -> Vec<f64> {
        self.quire.iter().map(|rounds| rounds[0][nth]).collect()
    }
}

/// A case that is measured.
pub(crate) struct Case {
    technique: &'static Technique,
    pub(crate) scale: Scale,
    figures: Vec<Figure>,
    findings: Vec<String>,
}

impl Case {
    pub(crate) const fn new(technique: &'static Technique, scale: Scale) -> Self {
        Self { technique, scale, figures: Vec::new(), findings: Vec::new() }
    }

    /// The figures, and what was found wrong.
    pub(crate) fn into_parts(self) -> (Vec<Figure>, Vec<String>) {
        (self.figures, self.findings)
    }

    /// Adds a figure with a value for each strategy.
    pub(crate) fn add(&mut self, name: &str, metric: Metric, values: Vec<f64>) {
        self.add_both(name, metric, values, None);
    }

    /// The same with Linux's.
    pub(crate) fn add_both(&mut self, name: &str, metric: Metric, values: Vec<f64>, linux: Option<f64>) {
        self.figures.push(Figure { case: name.to_owned(), metric, values, linux });
    }

    /// Adds a figure for each row: what the rounds come to in one of their figures.
    pub(crate) fn rows(&mut self, name: &str, outcome: &Outcome, rows: &[(Metric, usize, Sum)]) {
        for &(metric, nth, sum) in rows {
            self.add_both(name, metric, outcome.values(nth, sum), outcome.on_linux(nth, sum));
        }
    }

    /// The same for figures that are not known of Linux.
    pub(crate) fn own_rows(&mut self, name: &str, outcome: &Outcome, rows: &[(Metric, usize, Sum)]) {
        for &(metric, nth, sum) in rows {
            self.add(name, metric, outcome.values(nth, sum));
        }
    }

    /// Adds a figure for each row: of what each strategy came to.
    pub(crate) fn of_each<R>(&mut self, name: &str, all: &[R], rows: &[RowOf<'_, R>]) {
        for (metric, value) in rows {
            self.add(name, *metric, all.iter().map(value).collect());
        }
    }

    /// Adds the median of the ratios of rounds to those of the strategy that ours is compared with.
    pub(crate) fn ratio(&mut self, name: &str, outcome: &Outcome, nth: usize) {
        let base = outcome.series(&outcome.quire[0], nth);
        let ratios = outcome.values(nth, |series| series.ratio_to(&base));
        self.add(name, Metric::time_ratio(self.technique), ratios);
    }

    /// Adds the least and the median of a time, and its ratio.
    pub(crate) fn times(&mut self, name: &str, outcome: &Outcome, [min, median]: [Metric; 2], nth: usize) {
        self.rows(name, outcome, &[(min, nth, Series::min), (median, nth, Series::median)]);
        self.ratio(name, outcome, nth);
    }

    /// The metric of ratios of times.
    pub(crate) const fn time_ratio(&self) -> Metric {
        Metric::time_ratio(self.technique)
    }

    /// Adds what was found wrong under the `nth` strategy, with its name in front.
    pub(crate) fn found(&mut self, nth: usize, findings: impl IntoIterator<Item = String>) {
        let strategy = self.technique.strategies[nth];
        self.findings.extend(findings.into_iter().map(|finding| format!("{strategy}: {finding}")));
    }

    /// Calls `measure`, which returns also what it found wrong, for each strategy.
    pub(crate) fn each<R>(
        &mut self,
        measure: impl Fn(Techniques) -> Result<(R, Vec<String>), LabError>,
    ) -> Result<Vec<R>, LabError> {
        let measured: Vec<_> = self.technique.each().map(measure).collect::<Result<_, _>>()?;
        let measured = measured.into_iter().enumerate().map(|(nth, (outcome, found))| {
            self.found(nth, found);
            outcome
        });
        Ok(measured.collect())
    }

    /// What `make` makes for each strategy.
    pub(crate) fn made<R>(
        &self,
        make: impl Fn(Techniques) -> Result<R, LabError>,
    ) -> Result<Vec<R>, LabError> {
        self.technique.each().map(make).collect()
    }

    /// Calls `work` with the site that `make` makes for each strategy and a new space on each, then ends the
    /// spaces and the sites.
    pub(crate) fn on_sites<R>(
        &mut self,
        make: impl Fn(Techniques) -> Result<Site, LabError>,
        work: impl FnOnce(&mut Self, &[(&Site, HostSpace<'_>)]) -> Result<R, LabError>,
    ) -> Result<R, LabError> {
        let sites = self.made(make)?;
        let spaces: Vec<_> =
            sites.iter().map(|site| Ok((site, site.space()?))).collect::<Result<_, LabError>>()?;
        let result = work(self, &spaces)?;
        for (site, space) in spaces {
            site.run(|| drop(space));
        }
        for (nth, site) in sites.into_iter().enumerate() {
            self.found(nth, site.end());
        }
        Ok(result)
    }

    /// Runs `job`, which uses `area` bytes of addresses, on a machine for each strategy and on Linux.
    pub(crate) fn on_both(
        &mut self,
        terms: Terms,
        area: u64,
        job: &(impl Job + Clone),
    ) -> Result<Outcome, LabError> {
        let Terms { memory, cpus, folios, warm_up, rounds } = terms;
        let may = folios.order == Order::ZERO || self.scale.host_controls;
        // In addition there is a machine for each strategy.
        let needed = self.technique.strategies.len() as u64 * ram_for(memory) + 2 * memory;
        // First, while this process is small.
        let round = may.then(|| rounds_on_host(job.clone(), area, folios));
        let linux = round.and_then(|round| Linux::start(needed, round));
        let make = |techniques| Site::new(techniques, memory, cpus, folios.config());
        self.on_sites(make, |_, spaces| {
            let mut subjects: Vec<_> = spaces.iter().map(|subject| (subject, job.clone())).collect();
            Outcome::in_rounds(&mut subjects, linux, (warm_up, rounds), |((site, space), job), _| {
                job(&mut Quire::new(site, space))
            })
        })
    }
}

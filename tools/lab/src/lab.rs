//! The harness of all experiments. An experiment names its parts and cases one after the other. A case is the
//! work of every strategy and of the host's Linux, round by round in turn, and the rows of the table that its
//! rounds come to. Progress, findings and cases for which the host has no memory are handled here.

use crate::error::{Done, LabError};
use crate::folios::Folios;
use crate::linux::{Linux, rounds_on_host};
use crate::process::{Job, Quire};
use crate::report::{Figure, Metric, Report, Section};
use crate::rounds::{RoundFigures, Series, in_turn};
use crate::scale::Scale;
use crate::site::{HostSpace, Site, ram_for};
use crate::technique::Technique;
use core::ops::Range;
use quire_arch::Order;
use quire_mm::Techniques;

/// Called with the current case, how many cases of the experiment are done, and how many there are.
pub type Progress<'p> = &'p mut dyn FnMut(&str, u64, u64);

/// An experiment: what it compares, its cases, and which of its actions can be counted.
#[derive(Debug)]
pub struct Experiment {
    /// What is compared. Its name is the experiment's.
    pub technique: &'static Technique,
    pub(crate) cases: fn(&mut Lab<'_>) -> Done,
    /// Does what a name says so many times. `None` for another name.
    pub(crate) count: fn(&str, Techniques, u64) -> Option<Done>,
}

impl Experiment {
    /// Measures every case. Those for which the host has no memory are left out; if it has none for any, that
    /// is the error.
    ///
    /// # Errors
    ///
    /// It could not be carried out. What it finds wrong is in the report.
    pub fn run(&self, scale: Scale, progress: Progress<'_>) -> Result<Report, LabError> {
        let technique = self.technique;
        let report = Report { technique, sections: Vec::new(), findings: Vec::new(), left_out: Vec::new() };
        let (name, counts_only) = (String::new(), true);
        let mut lab = Lab { scale, report, progress, total: 0, done: 0, name, counts_only, refused: None };
        (self.cases)(&mut lab)?;
        lab.counts_only = false;
        (self.cases)(&mut lab)?;
        lab.report.sections.retain(|section| !section.figures.is_empty());
        match lab.refused.filter(|_| lab.report.left_out.len() as u64 == lab.total) {
            Some(error) => Err(error),
            None => Ok(lab.report),
        }
    }
}

/// What the rounds of a series come to.
pub(crate) type Sum = fn(&Series) -> f64;

/// A row of a table, or some: what the rounds of a case come to in one of their figures.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Row {
    Sum {
        metric: Metric,
        figure: usize,
        sum: Sum,
        /// Whether Linux has the figure, too.
        linux: bool,
    },
    /// The least and the median of a time, and its ratio.
    Times { names: [&'static str; 2], unit: &'static str, figure: usize },
    /// The median of the ratios of rounds to those of the strategy that ours is compared with.
    Ratio(usize),
    /// A time in nanoseconds in the first round, which need not count.
    Cold(usize),
}

impl Row {
    /// Less of it is better.
    pub(crate) const fn lower(name: &'static str, unit: &'static str, figure: usize, sum: Sum) -> Self {
        Self::Sum { metric: Metric::lower(name, unit), figure, sum, linux: true }
    }

    /// More of it is better.
    pub(crate) const fn higher(name: &'static str, unit: &'static str, figure: usize, sum: Sum) -> Self {
        Self::Sum { metric: Metric::higher(name, unit), figure, sum, linux: true }
    }

    /// Less of it is better, and it is not known of Linux.
    pub(crate) const fn own(name: &'static str, unit: &'static str, figure: usize, sum: Sum) -> Self {
        Self::Sum { metric: Metric::lower(name, unit), figure, sum, linux: false }
    }

    pub(crate) const fn times(unit: &'static str, figure: usize) -> Self {
        Self::Times { names: ["time_min", "time_median"], unit, figure }
    }

    /// Times on the CPU.
    pub(crate) const fn cpu_times(unit: &'static str, figure: usize) -> Self {
        Self::Times { names: ["cpu_min", "cpu_median"], unit, figure }
    }
}

/// The machines and the number of rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Bytes of memory that are populated at most, tables included.
    pub(crate) memory: u64,
    /// Bytes of addresses that are used.
    pub(crate) area: u64,
    pub(crate) cpus: usize,
    pub(crate) folios: Folios,
    /// Rounds that do not count.
    pub(crate) warm_up: usize,
    pub(crate) rounds: usize,
}

impl Terms {
    /// One CPU, single pages, and no round that does not count.
    pub(crate) const fn pages(memory: u64, area: u64, rounds: usize) -> Self {
        Self { memory, area, cpus: 1, folios: Folios::PAGES, warm_up: 0, rounds }
    }

    /// The same with one round that does not count.
    pub(crate) const fn warm(memory: u64, area: u64, rounds: usize) -> Self {
        Self { warm_up: 1, ..Self::pages(memory, area, rounds) }
    }
}

/// Does a round under one strategy.
pub(crate) type Rounds<'s> = Box<dyn FnMut(usize) -> Done<RoundFigures> + 's>;

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
        mut round: impl FnMut(&mut S, usize) -> Done<RoundFigures>,
    ) -> Done<Self> {
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
        Ok(Self { quire, linux: on_linux.map(|(_, done)| done), counts: warm_up..warm_up + rounds })
    }

    /// The same, where only `counts` count.
    pub(crate) fn only(&self, counts: Range<usize>) -> Self {
        Self { counts, ..self.clone() }
    }

    /// Sets a figure of the last round of the `nth` strategy.
    pub(crate) fn set(&mut self, nth: usize, figure: usize, value: f64) {
        if let Some(last) = self.quire[nth].last_mut() {
            last[figure] = value;
        }
    }

    fn series(&self, rounds: &[RoundFigures], figure: usize) -> Series {
        rounds[self.counts.clone()].iter().map(|figures| figures[figure]).collect()
    }

    /// What the rounds come to in one of their figures, with each strategy and on Linux.
    pub(crate) fn values(&self, figure: usize, sum: impl Fn(&Series) -> f64) -> (Vec<f64>, Option<f64>) {
        let value = |rounds: &Vec<RoundFigures>| sum(&self.series(rounds, figure));
        (self.quire.iter().map(value).collect(), self.linux.as_ref().map(value))
    }
}

/// An experiment that is carried out. It goes over its cases twice: the first time they are only counted.
pub(crate) struct Lab<'p> {
    pub(crate) scale: Scale,
    report: Report,
    progress: Progress<'p>,
    total: u64,
    done: u64,
    /// The current case.
    name: String,
    counts_only: bool,
    refused: Option<LabError>,
}

impl Lab<'_> {
    /// Begins a part, whose figures are shown in one table.
    pub(crate) fn part(&mut self, title: impl Into<String>) {
        if !self.counts_only {
            let (technique, title) = (self.report.technique, title.into());
            self.report.sections.push(Section { technique, title, figures: Vec::new() });
        }
    }

    /// Adds a remark to the title of the current part.
    pub(crate) fn remark(&mut self, remark: &str) {
        if let Some(section) = self.report.sections.last_mut() {
            section.title.push_str(&format!(" ({remark})"));
        }
    }

    /// A case of the current part.
    pub(crate) fn case(&mut self, name: &str, measure: impl FnOnce(&mut Self) -> Done) -> Done {
        if self.counts_only {
            self.total += 1;
            return Ok(());
        }
        (self.progress)(name, self.done, self.total);
        self.done += 1;
        name.clone_into(&mut self.name);
        match measure(self) {
            Err(error @ LabError::HostMemory { .. }) => {
                self.report.left_out.push(format!("{name}: {error}"));
                self.refused = Some(error);
                Ok(())
            }
            measured => measured,
        }
    }

    /// A case whose job is done on a machine for each strategy and on Linux.
    pub(crate) fn both(
        &mut self,
        name: &str,
        terms: Terms,
        job: impl Job + Clone + 'static,
        rows: &[Row],
    ) -> Done {
        self.case(name, |lab| {
            let outcome = lab.on_both(terms, job)?;
            lab.rows(name, &outcome, rows);
            Ok(())
        })
    }

    /// Adds a figure with a value for each strategy, and Linux's.
    pub(crate) fn add(&mut self, name: &str, metric: Metric, (values, linux): (Vec<f64>, Option<f64>)) {
        if let Some(section) = self.report.sections.last_mut() {
            section.figures.push(Figure { case: name.to_owned(), metric, values, linux });
        }
    }

    /// Adds what `rows` say of the outcome.
    pub(crate) fn rows(&mut self, name: &str, outcome: &Outcome, rows: &[Row]) {
        for &row in rows {
            match row {
                Row::Sum { metric, figure, sum, linux } => {
                    let (values, on_linux) = outcome.values(figure, sum);
                    self.add(name, metric, (values, on_linux.filter(|_| linux)));
                }
                Row::Times { names, unit, figure } => {
                    for (name_of, sum) in names.into_iter().zip([Series::min as Sum, Series::median]) {
                        self.add(name, Metric::lower(name_of, unit), outcome.values(figure, sum));
                    }
                    self.rows(name, outcome, &[Row::Ratio(figure)]);
                }
                Row::Ratio(figure) => {
                    let base = outcome.series(&outcome.quire[0], figure);
                    let (ratios, _) = outcome.values(figure, |series| series.ratio_to(&base));
                    self.add(name, Metric::time_ratio(self.report.technique), (ratios, None));
                }
                Row::Cold(figure) => {
                    let cold = Metric::lower("time_cold", "ns");
                    self.add(name, cold, outcome.only(0..1).values(figure, Series::last));
                }
            }
        }
    }

    /// Adds what was found wrong under the `nth` strategy, with the case and the strategy in front.
    pub(crate) fn found(&mut self, nth: usize, findings: impl IntoIterator<Item = String>) {
        let (name, strategy) = (&self.name, self.report.technique.strategies[nth]);
        let findings = findings.into_iter().map(|finding| format!("{name}, {strategy}: {finding}"));
        self.report.findings.extend(findings);
    }

    /// A case that has one round for each strategy: `measure` returns also what it found wrong.
    pub(crate) fn once(
        &mut self,
        name: &str,
        measure: impl Fn(Techniques) -> Done<(RoundFigures, Vec<String>)>,
        rows: &[Row],
    ) -> Done {
        self.case(name, |lab| {
            let mut measured = lab.made(measure)?;
            for (nth, (_, found)) in measured.iter_mut().enumerate() {
                lab.found(nth, found.drain(..));
            }
            let quire = measured.iter().map(|&(figures, _)| vec![figures]).collect();
            lab.rows(name, &Outcome { quire, linux: None, counts: 0..1 }, rows);
            Ok(())
        })
    }

    /// What `make` makes for each strategy.
    pub(crate) fn made<R>(&self, make: impl Fn(Techniques) -> Done<R>) -> Done<Vec<R>> {
        self.report.technique.each().map(make).collect()
    }

    /// Does rounds of what `start` starts on a new space on the site that `make` makes for each strategy, and
    /// of `linux`; then ends the spaces and the sites.
    pub(crate) fn on_sites(
        &mut self,
        rounds: (usize, usize),
        linux: Option<Linux>,
        make: impl Fn(Techniques) -> Done<Site>,
        start: impl for<'s> Fn(&'s Site, &'s HostSpace<'s>) -> Done<Rounds<'s>>,
    ) -> Done<Outcome> {
        let sites = self.made(make)?;
        let spaces = sites.iter().map(Site::space).collect::<Done<Vec<_>>>()?;
        let subjects = sites.iter().zip(&spaces).map(|(site, space)| start(site, space));
        let mut subjects = subjects.collect::<Done<Vec<_>>>()?;
        let outcome = Outcome::in_rounds(&mut subjects, linux, rounds, |round, number| round(number))?;
        drop(subjects);
        for (site, space) in sites.iter().zip(spaces) {
            site.run(|| drop(space));
        }
        for (nth, site) in sites.into_iter().enumerate() {
            self.found(nth, site.end());
        }
        Ok(outcome)
    }

    /// Runs `job` on a machine for each strategy and on Linux.
    pub(crate) fn on_both(&mut self, terms: Terms, job: impl Job + Clone + 'static) -> Done<Outcome> {
        let Terms { memory, area, cpus, folios, warm_up, rounds } = terms;
        // In addition there is a machine for each strategy.
        let needed = self.report.technique.strategies.len() as u64 * ram_for(memory) + 2 * memory;
        let may = folios.order == Order::ZERO || self.scale.host_controls;
        // First, while this process is small.
        let linux = may.then(|| Linux::start(needed, rounds_on_host(job.clone(), area))).flatten();
        let make = |techniques| Site::new(techniques, memory, cpus, folios);
        self.on_sites((warm_up, rounds), linux, make, |site, space| {
            let (mut quire, mut job) = (Quire::new(site, space), job.clone());
            Ok(Box::new(move |_| job(&mut quire)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::technique::PCP;

    fn part(lab: &mut Lab<'_>, sizes: &[u64]) -> Done {
        lab.part("");
        sizes.iter().try_for_each(|&bytes| {
            lab.case(&bytes.to_string(), |lab| {
                crate::host_memory::check_available(bytes)?;
                lab.add(&bytes.to_string(), Metric::lower("bytes", "B"), (vec![bytes as f64; 3], None));
                Ok(())
            })
        })
    }

    fn run(cases: fn(&mut Lab<'_>) -> Done) -> Done<Report> {
        let experiment = Experiment { technique: &PCP, cases, count: |_, _, _| None };
        experiment.run(Scale::TINY, &mut |_, _, _| {})
    }

    #[test]
    fn cases_for_which_the_host_has_no_memory_are_left_out_by_name() {
        let report = run(|lab| {
            part(lab, &[1, 1 << 60, 2])?;
            part(lab, &[1 << 61])
        });
        let report = report.expect("two fit");
        assert_eq!(report.sections.len(), 1);
        assert_eq!(report.figures().map(|figure| &*figure.case).collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(report.left_out.len(), 2);
        assert!(report.left_out[1].starts_with("2305843009213693952: it takes "), "{:?}", report.left_out);
        // Where none fits there is nothing to show.
        let error = run(|lab| part(lab, &[1 << 60])).expect_err("nothing fits");
        assert!(matches!(error, LabError::HostMemory { .. }));
    }
}

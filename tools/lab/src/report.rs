//! The results of an experiment.

use core::fmt::Debug;
use quire_frame::PcpTechnique;
use quire_mm::Techniques;
use quire_space::{GatherTechnique, RemapTechnique, TablesTechnique};
use quire_swap::SwapTechnique;
use serde::Serialize;

/// A technique whose strategies an experiment compares.
pub trait Compared: Copy + PartialEq + Debug + 'static {
    /// Every strategy.
    const ALL: &'static [Self];
    /// The strategy that ours is compared with.
    const BEFORE: Self;
    /// Ours.
    const AFTER: Self;
    /// What the first is called in a sentence.
    const BEFORE_TEXT: &'static str;
    /// The time for an operation as a ratio to the first's: the median over rounds in turn.
    const TIME_RATIO: Metric;

    /// Its name on the command line.
    fn name(self) -> &'static str;

    /// It, and the default strategies of all other techniques.
    fn techniques(self) -> Techniques;
}

/// For each technique the strategies that are compared, and which of them is before and which is ours.
macro_rules! compared {
    ($($technique:ty, $switch:ident: $all:ident, $before:ident ($text:literal, $ratio:literal), $after:ident;)+) => {$(
        impl Compared for $technique {
            const ALL: &'static [Self] = &Self::$all;
            const BEFORE: Self = Self::$before;
            const AFTER: Self = Self::$after;
            const BEFORE_TEXT: &'static str = $text;
            const TIME_RATIO: Metric = Metric::lower(RATIO, $ratio);

            fn name(self) -> &'static str {
                self.name()
            }

            fn techniques(self) -> Techniques {
                let mut techniques = Techniques::default();
                techniques.$switch = self;
                techniques
            }
        }
    )+};
}

compared! {
    PcpTechnique, pcp: COMPARED, OrderZero ("with lists of order 0 only", "to order0"), All;
    GatherTechnique, gather: ALL, Pages ("page by page", "to pages"), Runs;
    TablesTechnique, tables: ALL, Keep ("with empty tables kept", "to keep"), Free;
    RemapTechnique, mremap: ALL, Ptes ("entry by entry", "to ptes"), Puds;
    SwapTechnique, swap: ALL, Bypass ("past the cache", "to bypass"), All;
}

/// Which direction is good.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Less.
    Lower,
    /// More.
    Higher,
}

/// What a figure measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metric {
    /// Name in records.
    pub name: &'static str,
    /// Unit.
    pub unit: &'static str,
    /// Which direction is good.
    pub better: Better,
}

impl Metric {
    /// A metric of which less is better.
    pub const fn lower(name: &'static str, unit: &'static str) -> Self {
        Self { name, unit, better: Better::Lower }
    }

    /// The least and the median of a time.
    pub(crate) const fn times(unit: &'static str) -> [Self; 2] {
        [Self::lower("time_min", unit), Self::lower("time_median", unit)]
    }

    /// A metric of which more is better.
    pub const fn higher(name: &'static str, unit: &'static str) -> Self {
        Self { name, unit, better: Better::Higher }
    }
}

/// The name of the metric that says which cases are slower.
const RATIO: &str = "time_ratio";

/// One figure for each strategy of a technique.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure<T: Compared = PcpTechnique> {
    /// What was done.
    pub case: String,
    /// What was measured.
    pub metric: Metric,
    /// The same on the host's Linux, where that can do it.
    pub linux: Option<f64>,
    /// Each strategy that has a figure.
    values: Vec<(T, f64)>,
}

impl<T: Compared> Figure<T> {
    /// A figure of every strategy that `value` has one of.
    pub fn new(case: &str, metric: Metric, mut value: impl FnMut(T) -> Option<f64>) -> Self {
        let values = T::ALL.iter().filter_map(|&technique| Some((technique, value(technique)?))).collect();
        Self { case: case.to_owned(), metric, linux: None, values }
    }

    /// A figure of every strategy of which there is one of `outcomes`.
    pub(crate) fn of_each<S>(
        case: &str,
        metric: Metric,
        outcomes: &[(T, S)],
        value: impl Fn(&S) -> f64,
    ) -> Self {
        Self::new(case, metric, |technique| {
            outcomes.iter().find(|(other, _)| *other == technique).map(|(_, outcome)| value(outcome))
        })
    }

    /// The same with Linux's figure.
    #[must_use]
    pub fn with_linux(self, linux: Option<f64>) -> Self {
        Self { linux, ..self }
    }

    /// The figure of one strategy.
    pub fn of(&self, technique: T) -> Option<f64> {
        self.values.iter().find(|&&(other, _)| other == technique).map(|&(_, value)| value)
    }

    /// Ours, divided by what it is compared with. `None` where there is nothing to divide by.
    pub fn ratio(&self) -> Option<f64> {
        let before = self.of(T::BEFORE)?;
        let after = self.of(T::AFTER)?;
        (before != 0.0).then(|| after / before)
    }
}

/// Figures that belong together.
#[derive(Clone, PartialEq, Debug)]
pub struct Section<T: Compared = PcpTechnique> {
    /// Heading for people.
    pub title: String,
    /// The figures.
    pub figures: Vec<Figure<T>>,
}

/// The results of an experiment.
#[derive(Clone, PartialEq, Debug)]
pub struct Report<T: Compared = PcpTechnique> {
    /// The experiment's name on the command line.
    pub experiment: &'static str,
    /// The figures.
    pub sections: Vec<Section<T>>,
    /// What was found wrong: lost frames, findings of the auditor. Empty if all is well.
    pub findings: Vec<String>,
    /// Cases for which the host has no memory, and how much they take.
    pub left_out: Vec<String>,
}

impl<T: Compared> Report<T> {
    /// The ratios of all cases that are slower with ours than with what it is compared with by more than
    /// `tolerance`.
    pub fn slower(&self, tolerance: f64) -> impl Iterator<Item = &Figure<T>> {
        let figures = self.sections.iter().flat_map(|section| &section.figures);
        figures.filter(move |figure| {
            let ratio = figure.of(T::AFTER);
            figure.metric.name == RATIO && ratio.is_some_and(|ratio| ratio > 1.0 + tolerance)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    fn report() -> Report {
        let value = |technique| Some(f64::from(technique as u8));
        let figure = Figure::new("case", Metric::lower("time", "ns"), value);
        Report {
            experiment: "pcp",
            sections: vec![Section { title: String::new(), figures: vec![figure] }],
            findings: Vec::new(),
            left_out: Vec::new(),
        }
    }

    #[test]
    fn records_compare_order_0_with_each_other_strategy_that_has_a_figure() {
        let lines: Vec<String> = Record::of(&report()).map(|record| record.line()).collect();
        assert_eq!(
            lines,
            [
                r#"{"experiment":"pcp","case":"case","metric":"time","unit":"ns","better":"lower","before":1.0,"after":3.0,"linux":null}"#,
                r#"{"experiment":"pcp","case":"case (posted)","metric":"time","unit":"ns","better":"lower","before":1.0,"after":2.0,"linux":null}"#,
            ]
        );
    }

    #[test]
    fn slower_cases_are_those_past_the_tolerance() {
        let ratio = |after| {
            Figure::new("case", PcpTechnique::TIME_RATIO, move |technique| {
                Some(if technique == PcpTechnique::All { after } else { 1.0 })
            })
        };
        let mut report = report();
        report.sections[0].figures = vec![ratio(1.01), ratio(1.03), ratio(0.5)];
        let found: Vec<_> = report.slower(0.02).filter_map(|figure| figure.of(PcpTechnique::All)).collect();
        assert_eq!(found, [1.03]);
    }

    #[test]
    fn the_ratio_is_ours_to_order_0() {
        assert_eq!(report().sections[0].figures[0].ratio(), Some(3.0));
        let nothing = Figure::new("", Metric::lower("", ""), |_: PcpTechnique| Some(0.0));
        assert_eq!(nothing.ratio(), None);
    }
}

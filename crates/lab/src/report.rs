//! What an experiment found out.

use quire_frame::PcpTechnique;
use serde::Serialize;

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

    /// A metric of which more is better.
    pub const fn higher(name: &'static str, unit: &'static str) -> Self {
        Self { name, unit, better: Better::Higher }
    }
}

/// The time for an operation as a ratio to the time with lists of order 0 only: the median over rounds in turn.
pub const TIME_RATIO: Metric = Metric::lower("time_ratio", "to order0");

/// One figure for each strategy of the per-CPU lists.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// What was done.
    pub case: String,
    /// What was measured.
    pub metric: Metric,
    /// The figures, in the order of [`PcpTechnique::ALL`].
    values: [Option<f64>; PcpTechnique::ALL.len()],
}

impl Figure {
    /// A figure of every strategy that `value` has one of.
    pub fn new(case: &str, metric: Metric, value: impl FnMut(PcpTechnique) -> Option<f64>) -> Self {
        Self { case: case.to_owned(), metric, values: PcpTechnique::ALL.map(value) }
    }

    /// The figure of one strategy.
    pub fn of(&self, technique: PcpTechnique) -> Option<f64> {
        let place = PcpTechnique::ALL.iter().position(|&other| other == technique)?;
        self.values[place]
    }

    /// Ours, divided by that of order 0 only. `None` where there is nothing to divide by.
    pub fn ratio(&self) -> Option<f64> {
        let before = self.of(PcpTechnique::OrderZero)?;
        let after = self.of(PcpTechnique::All)?;
        (before != 0.0).then(|| after / before)
    }
}

/// Figures that belong together.
#[derive(Clone, PartialEq, Debug)]
pub struct Section {
    /// Heading for people.
    pub title: String,
    /// The figures.
    pub figures: Vec<Figure>,
}

/// What an experiment found out.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// The experiment's name on the command line.
    pub experiment: &'static str,
    /// The figures.
    pub sections: Vec<Section>,
    /// What was found wrong: lost frames, what the auditor says. Empty if all is well.
    pub findings: Vec<String>,
}

impl Report {
    /// The ratios of all cases that are slower with all orders on the lists than with order 0 only by more than `tolerance`.
    pub fn slower(&self, tolerance: f64) -> impl Iterator<Item = &Figure> {
        let figures = self.sections.iter().flat_map(|section| &section.figures);
        figures.filter(move |figure| {
            let ratio = figure.of(PcpTechnique::All);
            figure.metric == TIME_RATIO && ratio.is_some_and(|ratio| ratio > 1.0 + tolerance)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    fn report() -> Report {
        let value = |technique| (technique != PcpTechnique::Posted).then_some(f64::from(technique as u8));
        let figure = Figure::new("case", Metric::lower("time", "ns"), value);
        Report {
            experiment: "pcp",
            sections: vec![Section { title: String::new(), figures: vec![figure] }],
            findings: Vec::new(),
        }
    }

    #[test]
    fn records_compare_order_0_with_each_other_strategy_that_has_a_figure() {
        let lines: Vec<String> = Record::of(&report()).map(|record| record.line()).collect();
        assert_eq!(
            lines,
            [
                r#"{"experiment":"pcp","case":"case","metric":"time","unit":"ns","better":"lower","before":1.0,"after":3.0,"linux":null}"#,
                r#"{"experiment":"pcp","case":"case (none)","metric":"time","unit":"ns","better":"lower","before":1.0,"after":0.0,"linux":null}"#,
            ]
        );
    }

    #[test]
    fn slower_cases_are_those_past_the_tolerance() {
        let ratio = |after| {
            Figure::new("case", TIME_RATIO, move |technique| {
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
        let nothing = Figure::new("", Metric::lower("", ""), |_| Some(0.0));
        assert_eq!(nothing.ratio(), None);
    }
}

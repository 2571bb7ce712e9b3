//! The results of an experiment, for people and for scripts.

use crate::technique::Technique;
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

    /// The time for an operation as a ratio to that with the strategy that ours is compared with: the median
    /// over rounds in turn.
    pub(crate) const fn time_ratio(technique: &Technique) -> Self {
        Self::lower(TIME_RATIO, technique.ratio)
    }
}

/// The name of the metric that says which cases are slower.
const TIME_RATIO: &str = "time_ratio";

/// One figure for each strategy of a technique.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// What was done.
    pub case: String,
    /// What was measured.
    pub metric: Metric,
    /// With each strategy.
    pub values: Vec<f64>,
    /// The same on the host's Linux, where that can do it.
    pub linux: Option<f64>,
}

impl Figure {
    /// With the strategy that ours is compared with.
    pub fn before(&self) -> f64 {
        self.values[0]
    }

    /// With ours.
    pub fn after(&self) -> f64 {
        self.values[self.values.len() - 1]
    }

    /// Ours, divided by what it is compared with. `None` where there is nothing to divide by.
    pub fn ratio(&self) -> Option<f64> {
        (self.before() != 0.0).then(|| self.after() / self.before())
    }
}

/// Figures that belong together.
#[derive(Clone, Debug)]
pub struct Section {
    /// What is compared.
    pub technique: &'static Technique,
    /// Heading for people.
    pub title: String,
    /// The figures.
    pub figures: Vec<Figure>,
}

/// The results of an experiment.
#[derive(Clone, Debug)]
pub struct Report {
    /// What is compared. Its name is the experiment's.
    pub technique: &'static Technique,
    /// The figures.
    pub sections: Vec<Section>,
    /// What was found wrong: lost frames, findings of the auditor. Empty if all is well.
    pub findings: Vec<String>,
    /// Cases for which the host has no memory, and how much they take.
    pub left_out: Vec<String>,
}

/// One figure with the technique off and on, for scripts. Its JSON has exactly these fields, in this order.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Record {
    /// The experiment's name on the command line.
    pub experiment: &'static str,
    /// What was done. Figures of the other strategies end in the strategy's name in brackets.
    pub case: String,
    /// What was measured.
    pub metric: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Which direction is good.
    pub better: Better,
    /// With the technique off.
    pub before: f64,
    /// With the technique on.
    pub after: f64,
    /// On the host's Linux, where it can do the same.
    pub linux: Option<f64>,
}

impl Record {
    /// The record as one line of JSON.
    pub fn line(&self) -> String {
        serde_json::to_string(self)
            .unwrap_or_else(|error| unreachable!("strings and numbers are JSON: {error}"))
    }
}

impl Report {
    /// All figures.
    pub fn figures(&self) -> impl Iterator<Item = &Figure> {
        self.sections.iter().flat_map(|section| &section.figures)
    }

    /// The ratios of all cases that are slower with ours than with what it is compared with by more than
    /// `tolerance`.
    pub fn slower(&self, tolerance: f64) -> impl Iterator<Item = &Figure> {
        self.figures().filter(move |it| it.metric.name == TIME_RATIO && it.after() > 1.0 + tolerance)
    }

    /// For each figure a record of our strategy, and one of each other that is not what ours is compared
    /// with.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        let last = self.technique.strategies.len() - 1;
        self.figures().flat_map(move |figure| {
            std::iter::once(last).chain(1..last).map(move |strategy| Record {
                experiment: self.technique.name,
                case: match strategy == last {
                    true => figure.case.clone(),
                    false => format!("{} ({})", figure.case, self.technique.strategies[strategy]),
                },
                metric: figure.metric.name,
                unit: figure.metric.unit,
                better: figure.metric.better,
                before: figure.before(),
                after: figure.values[strategy],
                linux: figure.linux.filter(|_| strategy == last),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::technique::PCP;

    fn report(metric: Metric, figures: &[[f64; 3]]) -> Report {
        let figure = |values: &[f64; 3]| Figure {
            case: "case".to_owned(),
            metric,
            values: values.to_vec(),
            linux: None,
        };
        let figures = figures.iter().map(figure).collect();
        let sections = vec![Section { technique: &PCP, title: String::new(), figures }];
        Report { technique: &PCP, sections, findings: Vec::new(), left_out: Vec::new() }
    }

    #[test]
    fn records_compare_order_0_with_each_other_strategy() {
        let report = report(Metric::lower("time", "ns"), &[[1.0, 2.0, 3.0]]);
        let lines: Vec<String> = report.records().map(|record| record.line()).collect();
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
        let report = report(Metric::time_ratio(&PCP), &[[1.0, 1.0, 1.01], [1.0, 1.0, 1.03], [1.0, 9.0, 0.5]]);
        assert_eq!(report.slower(0.02).map(Figure::after).collect::<Vec<_>>(), [1.03]);
    }

    #[test]
    fn the_ratio_is_ours_to_order_0() {
        let report = report(Metric::lower("", ""), &[[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]);
        assert_eq!(report.figures().map(Figure::ratio).collect::<Vec<_>>(), [Some(3.0), None]);
    }
}

//! Figures for scripts: one JSON object a line.

use crate::report::{Better, Compared, Figure, Report};
use serde::Serialize;

/// One figure with the technique off and on. Its JSON has exactly these fields, in this order.
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
    /// With the technique off. `None` where the case has no such state.
    pub before: Option<f64>,
    /// With the technique on.
    pub after: Option<f64>,
    /// On the host's Linux, where it can do the same.
    pub linux: Option<f64>,
}

impl Record {
    /// The records of a report: for each figure "after" is our strategy and "before" what it is compared
    /// with; other strategies follow with records of their own.
    pub fn of<T: Compared>(report: &Report<T>) -> impl Iterator<Item = Self> {
        let figures = report.sections.iter().flat_map(|section| &section.figures);
        figures.flat_map(|figure| {
            let others =
                T::ALL.iter().copied().filter(|&technique| technique != T::BEFORE && technique != T::AFTER);
            std::iter::once(T::AFTER)
                .chain(others)
                .filter(|&technique| figure.of(technique).is_some())
                .map(|technique| Self::of_figure(report.experiment, figure, technique))
        })
    }

    fn of_figure<T: Compared>(experiment: &'static str, figure: &Figure<T>, technique: T) -> Self {
        let ours = technique == T::AFTER;
        Self {
            experiment,
            case: if ours { figure.case.clone() } else { format!("{} ({})", figure.case, technique.name()) },
            metric: figure.metric.name,
            unit: figure.metric.unit,
            better: figure.metric.better,
            before: figure.of(T::BEFORE),
            after: figure.of(technique),
            linux: figure.linux.filter(|_| ours),
        }
    }

    /// The record as one line of JSON.
    pub fn line(&self) -> String {
        serde_json::to_string(self)
            .unwrap_or_else(|error| unreachable!("strings and numbers are JSON: {error}"))
    }
}

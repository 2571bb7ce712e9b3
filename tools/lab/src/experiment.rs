//! The harness of all experiments: an experiment declares its parts, a part declares its cases, and a case
//! says how its figures are measured. Progress, sections, findings and errors are handled here.

use crate::error::LabError;
use crate::report::{Compared, Figure, Report, Section};
use std::rc::Rc;

/// Called with the current case, how many cases of the experiment are done, and how many there are.
pub type Progress<'p> = &'p mut dyn FnMut(&str, u64, u64);

/// The result of one case.
pub(crate) struct Measured<T: Compared> {
    figures: Vec<Figure<T>>,
    findings: Vec<String>,
}

impl<T: Compared> Measured<T> {
    /// `figures`, and what was found wrong on the machines.
    pub(crate) fn new(
        figures: impl IntoIterator<Item = Figure<T>>,
        findings: impl IntoIterator<Item = String>,
    ) -> Self {
        Self { figures: figures.into_iter().collect(), findings: findings.into_iter().collect() }
    }
}

/// Measures a case, whose name it gets.
type Measure<'s, T> = Box<dyn FnOnce(&str) -> Result<Measured<T>, LabError> + 's>;
/// Says something about all figures of a part.
type Remark<'s, T> = Box<dyn FnOnce(&[Figure<T>]) -> String + 's>;

/// Cases whose figures are shown in one table.
pub(crate) struct Part<'s, T: Compared> {
    title: String,
    remark: Option<Remark<'s, T>>,
    cases: Vec<(String, Measure<'s, T>)>,
}

impl<'s, T: Compared> Part<'s, T> {
    /// A case for each of `items`, with its name. `measure` is dropped after the last case.
    pub(crate) fn new<C: 's>(
        title: impl Into<String>,
        items: impl IntoIterator<Item = C>,
        name: impl Fn(&C) -> String,
        measure: impl Fn(&str, C) -> Result<Measured<T>, LabError> + 's,
    ) -> Self {
        let measure = Rc::new(measure);
        let case = |item| -> (String, Measure<'s, T>) {
            let (name, measure) = (name(&item), Rc::clone(&measure));
            (name, Box::new(move |name| measure(name, item)))
        };
        Self { title: title.into(), remark: None, cases: items.into_iter().map(case).collect() }
    }

    /// A part of one case.
    pub(crate) fn single(
        title: impl Into<String>,
        name: impl Into<String>,
        measure: impl Fn(&str) -> Result<Measured<T>, LabError> + 's,
    ) -> Self {
        let name = name.into();
        Self::new(title, [()], |()| name.clone(), move |name, ()| measure(name))
    }

    /// The same with a remark behind the title, made once everything is measured.
    pub(crate) fn with_remark(self, remark: impl FnOnce(&[Figure<T>]) -> String + 's) -> Self {
        Self { remark: Some(Box::new(remark)), ..self }
    }
}

/// What was found wrong under a strategy, with its name in front.
pub(crate) fn found_by<T: Compared>(
    technique: T,
    found: impl IntoIterator<Item = String>,
) -> impl Iterator<Item = String> {
    found.into_iter().map(move |finding| format!("{}: {finding}", technique.name()))
}

/// What was measured under every strategy, and what was found wrong.
type OfEach<T, R> = (Vec<(T, R)>, Vec<String>);

/// Calls `measure`, which returns also what it found wrong, for each strategy.
pub(crate) fn for_each_strategy<T: Compared, R>(
    measure: impl Fn(T) -> Result<(R, Vec<String>), LabError>,
) -> Result<OfEach<T, R>, LabError> {
    let (mut outcomes, mut findings) = (Vec::new(), Vec::new());
    for &technique in T::ALL {
        let (outcome, found) = measure(technique)?;
        outcomes.push((technique, outcome));
        findings.extend(found_by(technique, found));
    }
    Ok((outcomes, findings))
}

/// Measures every case of an experiment.
pub(crate) fn run<T: Compared>(
    experiment: &'static str,
    parts: Vec<Part<'_, T>>,
    progress: Progress<'_>,
) -> Result<Report<T>, LabError> {
    let total = parts.iter().map(|part| part.cases.len() as u64).sum();
    let mut report = Report { experiment, sections: Vec::new(), findings: Vec::new() };
    let mut done = 0;
    for Part { mut title, remark, cases } in parts {
        let mut figures = Vec::new();
        for (name, measure) in cases {
            progress(&name, done, total);
            let measured = measure(&name)?;
            figures.extend(measured.figures);
            report.findings.extend(measured.findings.iter().map(|finding| format!("{name}, {finding}")));
            done += 1;
        }
        if let Some(remark) = remark {
            title = format!("{title} ({})", remark(&figures));
        }
        report.sections.push(Section { title, figures });
    }
    Ok(report)
}

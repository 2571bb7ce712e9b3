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

/// Measures every case of an experiment. Those for which the host has no memory are left out; if it has none
/// for any, that is the error.
pub(crate) fn run<T: Compared>(
    experiment: &'static str,
    parts: Vec<Part<'_, T>>,
    progress: Progress<'_>,
) -> Result<Report<T>, LabError> {
    let total = parts.iter().map(|part| part.cases.len() as u64).sum();
    let mut report = Report { experiment, sections: Vec::new(), findings: Vec::new(), left_out: Vec::new() };
    let (mut done, mut measured_any, mut refused) = (0, false, None);
    for Part { mut title, remark, cases } in parts {
        let mut figures = Vec::new();
        for (name, measure) in cases {
            progress(&name, done, total);
            done += 1;
            let measured = match measure(&name) {
                Err(error @ LabError::HostMemory { .. }) => {
                    report.left_out.push(format!("{name}: {error}"));
                    refused = Some(error);
                    continue;
                }
                measured => measured?,
            };
            measured_any = true;
            figures.extend(measured.figures);
            report.findings.extend(measured.findings.iter().map(|finding| format!("{name}, {finding}")));
        }
        if figures.is_empty() {
            continue;
        }
        if let Some(remark) = remark {
            title = format!("{title} ({})", remark(&figures));
        }
        report.sections.push(Section { title, figures });
    }
    match refused.filter(|_| !measured_any) {
        Some(error) => Err(error),
        None => Ok(report),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Metric;
    use quire_frame::PcpTechnique;

    type Result<T> = core::result::Result<T, LabError>;

    fn part(title: &str, sizes: &'static [u64]) -> Part<'static, PcpTechnique> {
        let measure = |name: &str, bytes| -> Result<Measured<PcpTechnique>> {
            crate::host_memory::check_available(bytes)?;
            Ok(Measured::new([Figure::new(name, Metric::lower("bytes", "B"), |_| Some(bytes as f64))], []))
        };
        Part::new(title, sizes.iter().copied(), u64::to_string, measure)
    }

    #[test]
    fn cases_for_which_the_host_has_no_memory_are_left_out_by_name() {
        let ran = |parts| run("test", parts, &mut |_, _, _| {});
        let report = ran(vec![part("one", &[1, 1 << 60, 2]), part("two", &[1 << 61])]).expect("two fit");
        assert_eq!(report.sections.len(), 1);
        assert_eq!(
            report.sections[0].figures.iter().map(|figure| &*figure.case).collect::<Vec<_>>(),
            ["1", "2"]
        );
        assert_eq!(report.left_out.len(), 2);
        assert!(report.left_out[1].starts_with("2305843009213693952: it takes "), "{:?}", report.left_out);
        // Where none fits there is nothing to show.
        let error = ran(vec![part("none", &[1 << 60])]).expect_err("nothing fits");
        assert!(matches!(error, LabError::HostMemory { .. }));
    }
}

//! The harness of all experiments. An experiment names its parts and cases one after the other; a case says
//! how its figures are measured, and puts them into a table. Progress, findings and cases for which the host
//! has no memory are handled here.

use crate::case::Case;
use crate::error::LabError;
use crate::report::{Report, Section};
use crate::scale::Scale;
use crate::technique::Technique;
use quire_mm::Techniques;

/// Called with the current case, how many cases of the experiment are done, and how many there are.
pub type Progress<'p> = &'p mut dyn FnMut(&str, u64, u64);

/// An experiment: what it compares, its cases, and which of its actions can be counted.
#[derive(Debug)]
pub struct Experiment {
    /// What is compared. Its name is the experiment's.
    pub technique: &'static Technique,
    pub(crate) cases: fn(&mut Lab<'_>) -> Result<(), LabError>,
    /// Does what a name says so many times. `None` for another name.
    pub(crate) count: fn(&str, Techniques, u64) -> Option<Result<(), LabError>>,
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
        let mut lab = Lab { scale, report, progress, total: 0, done: 0, counts_only: true, refused: None };
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

/// An experiment that is carried out. It goes over its cases twice: the first time they are only counted.
pub(crate) struct Lab<'p> {
    pub(crate) scale: Scale,
    report: Report,
    progress: Progress<'p>,
    total: u64,
    done: u64,
    counts_only: bool,
    refused: Option<LabError>,
}

impl Lab<'_> {
    /// Begins a part, whose figures are shown in one table.
    pub(crate) fn part(&mut self, title: impl Into<String>) {
        let section = Section { technique: self.report.technique, title: title.into(), figures: Vec::new() };
        if !self.counts_only {
            self.report.sections.push(section);
        }
    }

    /// Adds a remark to the title of the current part.
    pub(crate) fn remark(&mut self, remark: &str) {
        if let Some(section) = self.report.sections.last_mut() {
            section.title.push_str(&format!(" ({remark})"));
        }
    }

    /// A case of the current part. `measure` gets its name.
    pub(crate) fn case(
        &mut self,
        name: &str,
        measure: impl FnOnce(&mut Case, &str) -> Result<(), LabError>,
    ) -> Result<(), LabError> {
        if self.counts_only {
            self.total += 1;
            return Ok(());
        }
        (self.progress)(name, self.done, self.total);
        self.done += 1;
        let mut case = Case::new(self.report.technique, self.scale);
        match measure(&mut case, name) {
            Err(error @ LabError::HostMemory { .. }) => {
                self.report.left_out.push(format!("{name}: {error}"));
                self.refused = Some(error);
                return Ok(());
            }
            measured => measured?,
        }
        let (figures, findings) = case.into_parts();
        if let Some(section) = self.report.sections.last_mut() {
            section.figures.extend(figures);
        }
        self.report.findings.extend(findings.iter().map(|finding| format!("{name}, {finding}")));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Metric;
    use crate::technique::PCP;

    fn part(lab: &mut Lab<'_>, sizes: &[u64]) -> Result<(), LabError> {
        lab.part("");
        sizes.iter().try_for_each(|&bytes| {
            lab.case(&bytes.to_string(), |case, name| {
                crate::host_memory::check_available(bytes)?;
                case.add(name, Metric::lower("bytes", "B"), vec![bytes as f64; 3]);
                Ok(())
            })
        })
    }

    fn run(cases: fn(&mut Lab<'_>) -> Result<(), LabError>) -> Result<Report, LabError> {
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

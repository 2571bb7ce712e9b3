//! Each experiment, and what they share.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod gather;
mod mremap;
mod pcp;
mod swap;
mod tables;

use quire_lab::{Compared, Figure, LabError, Progress, Record, Report};
use std::collections::HashSet;

/// Runs an experiment whose steps are told in their order, and which finds nothing wrong.
fn run<S, T: Compared>(
    experiment: fn(&S, Progress<'_>) -> Result<Report<T>, LabError>,
    scale: &S,
) -> Report<T> {
    let mut steps = Vec::new();
    let report = experiment(scale, &mut |_, done, total| steps.push((done, total))).unwrap();
    assert_eq!(report.findings, [""; 0]);
    let total = steps[0].1;
    assert_eq!(steps, (0..total).map(|done| (done, total)).collect::<Vec<_>>());
    report
}

fn figures<T: Compared>(report: &Report<T>) -> impl Iterator<Item = &Figure<T>> {
    report.sections.iter().flat_map(|section| &section.figures)
}

fn figure<'r, T: Compared>(report: &'r Report<T>, case: &str, metric: &str) -> &'r Figure<T> {
    let figure = figures(report).find(|figure| figure.case == case && figure.metric.name == metric);
    figure.unwrap_or_else(|| panic!("{case}: {metric} is not there"))
}

/// What was measured before and with our strategy.
fn both<T: Compared>(report: &Report<T>, case: &str, metric: &str) -> [f64; 2] {
    [T::BEFORE, T::AFTER].map(|technique| figure(report, case, metric).of(technique).unwrap())
}

/// Each line is an object with exactly the agreed keys, and none is there twice.
fn check_records<T: Compared>(report: &Report<T>) -> Vec<Record> {
    let keys = ["experiment", "case", "metric", "unit", "better", "before", "after", "linux"];
    let mut cases = HashSet::new();
    for record in Record::of(report) {
        let line = record.line();
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&line).unwrap();
        assert_eq!(object.len(), keys.len(), "{line}");
        assert!(keys.iter().all(|&key| object.contains_key(key)), "{line}");
        assert_eq!(object["experiment"], report.experiment);
        let (before, after) = (object["before"].as_f64().unwrap(), object["after"].as_f64().unwrap());
        assert!(before.is_finite() && before >= 0.0 && after.is_finite() && after >= 0.0, "{line}");
        assert!(object["linux"].is_null() || object["linux"].as_f64() >= Some(0.0), "{line}");
        assert!(cases.insert((record.case, record.metric)), "twice: {line}");
    }
    Record::of(report).collect()
}

/// How many records have a figure of Linux.
fn with_linux(records: &[Record]) -> usize {
    records.iter().filter(|record| record.linux.is_some()).count()
}

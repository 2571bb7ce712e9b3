//! Each experiment, and what they share.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod gather;
mod mremap;
mod pcp;
mod swap;
mod tables;

use quire_lab::{EXPERIMENTS, Figure, Record, Report, Scale};
use std::collections::HashSet;

/// Runs an experiment whose steps are told in their order, and which finds nothing wrong.
fn run(name: &str) -> Report {
    let experiment = EXPERIMENTS.iter().find(|experiment| experiment.technique.name == name).unwrap();
    let mut steps = Vec::new();
    let report = experiment.run(Scale::TINY, &mut |_, done, total| steps.push((done, total))).unwrap();
    assert_eq!(report.findings, [""; 0]);
    let total = steps[0].1;
    assert_eq!(steps, (0..total).map(|done| (done, total)).collect::<Vec<_>>());
    report
}

fn figure<'r>(report: &'r Report, case: &str, metric: &str) -> &'r Figure {
    let figure = report.figures().find(|figure| figure.case == case && figure.metric.name == metric);
    figure.unwrap_or_else(|| panic!("{case}: {metric} is not there"))
}

/// What was measured before and with our strategy.
fn both(report: &Report, case: &str, metric: &str) -> [f64; 2] {
    let figure = figure(report, case, metric);
    [figure.before(), figure.after()]
}

/// Each line is an object with exactly the agreed keys, and none is there twice.
fn check_records(report: &Report) -> Vec<Record> {
    let keys = ["experiment", "case", "metric", "unit", "better", "before", "after", "linux"];
    let mut cases = HashSet::new();
    for record in report.records() {
        let line = record.line();
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&line).unwrap();
        assert_eq!(object.len(), keys.len(), "{line}");
        assert!(keys.iter().all(|&key| object.contains_key(key)), "{line}");
        assert_eq!(object["experiment"], report.technique.name);
        let (before, after) = (object["before"].as_f64().unwrap(), object["after"].as_f64().unwrap());
        assert!(before.is_finite() && before >= 0.0 && after.is_finite() && after >= 0.0, "{line}");
        assert!(object["linux"].is_null() || object["linux"].as_f64() >= Some(0.0), "{line}");
        assert!(cases.insert((record.case, record.metric)), "twice: {line}");
    }
    report.records().collect()
}

/// How many records have a figure of Linux.
fn with_linux(records: &[Record]) -> usize {
    records.iter().filter(|record| record.linux.is_some()).count()
}

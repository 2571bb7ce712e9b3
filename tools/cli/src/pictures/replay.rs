//! What `quire replay --report` draws.

use super::{heat, life, provenance};
use crate::output::{json, replay as words};
use quire_advise::Heat;
use quire_measure::Costs;
use quire_output::Shown;
use quire_replay::{HeatMap, ProcessReport, ReplayReport};
use quire_report::{Mark, Section};
use std::path::Path;

/// The section of a replay, which followed memory; `touched` is what a replay without huge pages has in
/// memory.
pub(crate) fn replay(file: &Path, report: &ReplayReport, touched: &HeatMap, setting: &str) -> Section {
    let mut pictures = Vec::new();
    if let Some(life) = &report.life {
        pictures.extend(life::over_time(&[(setting.to_owned(), &life.samples, Mark::Line)]));
    }
    if let Some(found) = Heat::of(report, touched) {
        pictures.push(heat::picture("addresses-over-time", setting, &found));
        let waste: Vec<(String, f64)> =
            found.waste().into_iter().map(|(name, bytes)| (name, bytes as f64)).collect();
        if !waste.is_empty() {
            pictures.push(life::waste("waste-by-mapping", setting, &waste));
        }
    }
    if let Some(life) = &report.life {
        let faults = [(setting.to_owned(), life::counts_of(life))];
        pictures.push(life::latency(&faults, Costs::kept().as_ref()));
    }
    let differences = report.processes.iter().map(|process| process.mismatches).sum();
    let mut provenance = provenance(&report.header, report.lost, differences);
    provenance.insert(1, ("Recording".to_owned(), Shown::new(file).to_string()));
    Section {
        title: Shown::new(file).to_string(),
        verdict: verdict(report),
        pictures,
        provenance,
        objects: json::objects(file, report),
    }
}

/// What came of it, in sentences.
fn verdict(report: &ReplayReport) -> Vec<String> {
    let sum = |of: fn(&ProcessReport) -> u64| report.processes.iter().map(of).sum::<u64>();
    let (calls, faults) = (sum(|process| process.calls), sum(|process| process.faults));
    let differ = sum(|process| process.mismatches);
    let mut lines = Vec::new();
    if let Some(finding) = &report.does_not_fit {
        lines.push(finding.to_string());
    }
    lines.push(format!(
        "{calls} memory calls and {faults} page faults of {} processes were made again; {}.",
        report.processes.len(),
        match differ {
            0 => "every result is Linux's".to_owned(),
            1 => "1 result differs from Linux's".to_owned(),
            differ => format!("{differ} results differ from Linux's"),
        }
    ));
    if report.limited {
        lines.push(words::memory(report));
    }
    lines
}

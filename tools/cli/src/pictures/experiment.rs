//! What `quire lab --report` draws.

use quire_lab::{Better, Figure, Report, Section as Part};
use quire_report::{Cell, Column, Drawing, Picture, Section, Unit};
use serde_json::json;

/// Quantiles that experiments measure: how their metrics end, and what they are called here.
const QUANTILES: [(&str, &str); 3] =
    [("_p50", "half take at most"), ("_p99", "99 in 100"), ("_p99_9", "999 in 1000")];

/// The section of an experiment.
pub(crate) fn experiment(report: &Report, verdict: Vec<String>) -> Section {
    let mut pictures = Vec::new();
    for (place, part) in report.sections.iter().enumerate() {
        pictures.push(bars(part, &format!("{}-{}", report.technique.name, place + 1)));
        pictures.extend(quantiles(part, &format!("{}-{}-latency", report.technique.name, place + 1)));
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let provenance = [
        ("Experiment", report.technique.name.to_owned()),
        ("Measured on", format!("Linux {}, {cpus} CPUs", release.trim())),
        ("Page made by", concat!("quire ", env!("CARGO_PKG_VERSION")).to_owned()),
    ];
    Section {
        title: format!("Experiment {}", report.technique.name),
        verdict: verdict.into_iter().chain(report.findings.iter().cloned()).collect(),
        pictures,
        provenance: provenance.map(|(what, value)| (what.to_owned(), value)).into(),
        objects: report.records().map(|record| json!(record)).collect(),
    }
}

/// Before and after of every figure of a part.
fn bars(part: &Part, name: &str) -> Picture {
    let with_linux = part.figures.iter().any(|figure| figure.linux.is_some());
    let mut columns = vec![
        Column::new("case", Unit::Text),
        Column::new("figure", Unit::Text),
        Column::new(format!("before ({})", part.technique.before()), Unit::Count),
        Column::new(format!("after ({})", part.technique.after()), Unit::Count),
    ];
    if with_linux {
        columns.push(Column::new("Linux", Unit::Count));
    }
    columns.push(Column::new("unit", Unit::Text));
    let row = |figure: &Figure| {
        let better = match figure.metric.better {
            Better::Lower => "",
            Better::Higher => " (more is better)",
        };
        let numbers = [figure.before(), figure.after()].into_iter().map(Some);
        let numbers = numbers.chain(with_linux.then_some(figure.linux));
        let mut row = vec![
            Cell::Text(figure.case.clone()),
            Cell::Text(format!("{}{better}", figure.metric.name.replace('_', " "))),
        ];
        row.extend(numbers.map(Cell::from));
        row.push(Cell::Text(figure.metric.unit.to_owned()));
        row
    };
    let bars = if with_linux { 3 } else { 2 };
    Picture {
        name: name.to_owned(),
        title: part.title.clone(),
        explanation: "The same work with a technique switched off (before) and on (after). Shorter is better unless it \
                      says otherwise. Each group of bars has a scale of its own, since their units differ."
            .to_owned(),
        rows: part.figures.iter().map(row).collect(),
        drawing: Drawing::Bars { bars, each_its_own: true, unit_column: Some(columns.len() - 1) },
        columns,
    }
}

/// Measured quantiles, where a part has some: a row a case and strategy.
fn quantiles(part: &Part, name: &str) -> Option<Picture> {
    let mut rows: Vec<(String, [Option<f64>; QUANTILES.len()])> = Vec::new();
    for figure in part.figures.iter().filter(|figure| figure.metric.unit == "us") {
        let found = QUANTILES.iter().enumerate().find_map(|(place, (ending, _))| {
            Some((place, figure.metric.name.strip_suffix(ending)?.replace('_', " ")))
        });
        let Some((place, what)) = found else { continue };
        for (strategy, value) in part.technique.strategies.iter().zip(&figure.values) {
            let label = format!("{}, {what}, {}", figure.case, strategy);
            let row = match rows.iter().position(|(known, _)| *known == label) {
                Some(row) => row,
                None => {
                    rows.push((label, [None; QUANTILES.len()]));
                    rows.len() - 1
                }
            };
            rows[row].1[place] = Some(value * 1e3);
        }
    }
    (!rows.is_empty()).then(|| Picture {
        name: name.to_owned(),
        title: format!("How long one access takes: {}", part.title),
        explanation: "Measured times of single accesses to memory on this host: most are short, and the marks further to \
                      the right are the rare long waits. The scale is logarithmic: each step is ten times as long."
            .to_owned(),
        columns: super::columns("case", &QUANTILES.map(|(_, name)| name), &Unit::Nanoseconds),
        rows: rows.iter().map(|(label, numbers)| super::row(label, *numbers)).collect(),
        drawing: Drawing::Quantiles,
    })
}

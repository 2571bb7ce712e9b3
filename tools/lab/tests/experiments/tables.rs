//! The experiment on empty page tables at the smallest scale, and what holds at any speed of the machine.

use quire_lab::tables::{self, Scale};
use quire_lab::{Figure, Record, Report, TablesTechnique};

type Tables = Report<TablesTechnique>;

fn figures(report: &Tables) -> impl Iterator<Item = &Figure<TablesTechnique>> {
    report.sections.iter().flat_map(|section| &section.figures)
}

fn both(report: &Tables, case: &str, metric: &str) -> [f64; 2] {
    let figure = figures(report).find(|figure| figure.case == case && figure.metric.name == metric);
    let figure = figure.unwrap_or_else(|| panic!("{case}: {metric} is not there"));
    TablesTechnique::ALL.map(|technique| figure.of(technique).unwrap())
}

#[test]
fn everything_is_measured_and_given_back_and_whatever_empties_a_table_frees_it() {
    let mut steps = Vec::new();
    let report = tables::run(&Scale::TINY, &mut |what, done, total| {
        steps.push((what.to_owned(), done, total));
    })
    .unwrap();
    assert_eq!(report.findings, [""; 0]);
    let total = steps[0].2;
    assert_eq!(steps.iter().map(|&(_, done, _)| done).collect::<Vec<_>>(), (0..total).collect::<Vec<_>>());

    // 64 MiB have 32 PTE tables of 4 kB, with a PMD and a PUD table above them. At an offset of 1 MiB the
    // last step reaches into one more, and what is moved lies apart, under a PMD table of its own.
    let sweeps: Vec<_> = figures(&report)
        .filter(|figure| figure.metric.name == "page_tables_at_the_end")
        .map(|figure| figure.case.clone())
        .collect();
    assert_eq!(sweeps.len(), 10);
    for case in sweeps {
        let more = if case.contains("offset of 1 MiB") {
            1
        } else if case.contains("mremap") {
            2
        } else {
            0
        };
        let [keep, free] = both(&report, &case, "page_tables_at_the_end");
        assert_eq!(keep, f64::from(4 * (32 + 2 + more)), "{case}");
        assert!(free <= 24.0, "{case}: {free}");
    }
    // A heap that has shrunk has fewer tables than it had, and never more than if it kept all.
    let [keep, free] = both(&report, "heap of 55 TiB, shrunk to a tenth", "page_tables");
    assert_eq!(keep, both(&report, "heap of 55 TiB, its whole life", "most_page_tables")[0]);
    assert!(free < keep / 2.0, "{keep} {free}");
    let resident = both(&report, "heap of 55 TiB, shrunk to a tenth", "resident");
    assert_eq!(resident[0], resident[1]);
    check_records(&report);
}

/// Each line is an object with exactly the agreed keys.
fn check_records(report: &Tables) {
    let keys = ["experiment", "case", "metric", "unit", "better", "before", "after", "linux"];
    let mut cases = std::collections::HashSet::new();
    let mut with_linux = 0;
    for record in Record::of(report) {
        let line = record.line();
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&line).unwrap();
        assert_eq!(object.len(), keys.len(), "{line}");
        assert!(keys.iter().all(|&key| object.contains_key(key)), "{line}");
        assert_eq!(object["experiment"], "tables");
        let (before, after) = (object["before"].as_f64().unwrap(), object["after"].as_f64().unwrap());
        assert!(before.is_finite() && before >= 0.0 && after.is_finite() && after >= 0.0, "{line}");
        with_linux += usize::from(object["linux"].is_number());
        assert!(cases.insert((record.case, record.metric)), "twice: {line}");
    }
    // All but the ratios.
    assert!(with_linux >= 50, "{with_linux}");
}

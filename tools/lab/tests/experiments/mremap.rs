//! The experiment on moves at the smallest scale, and what holds at any speed of the machine.

use quire_lab::mremap::{self, Scale};
use quire_lab::{Figure, Record, RemapTechnique, Report};

type Remaps = Report<RemapTechnique>;

fn figures(report: &Remaps) -> impl Iterator<Item = &Figure<RemapTechnique>> {
    report.sections.iter().flat_map(|section| &section.figures)
}

#[test]
fn everything_is_measured_and_given_back_and_a_move_is_one_shootdown() {
    let mut steps = Vec::new();
    let report = mremap::run(&Scale::TINY, &mut |what, done, total| {
        steps.push((what.to_owned(), done, total));
    })
    .unwrap();
    assert_eq!(report.findings, [""; 0]);
    let total = steps[0].2;
    assert_eq!(steps.iter().map(|&(_, done, _)| done).collect::<Vec<_>>(), (0..total).collect::<Vec<_>>());

    // The others run the space for as long as regions move, or have ended.
    let shootdowns: Vec<_> = figures(&report).filter(|figure| figure.metric.name == "shootdowns").collect();
    assert_eq!(shootdowns.len(), 2);
    for figure in shootdowns {
        for technique in RemapTechnique::ALL {
            let sent = figure.of(technique).unwrap();
            assert!(sent <= 1.0, "{}, {technique:?}: {sent}", figure.case);
        }
    }
    check_records(&report);
}

/// Each line is an object with exactly the agreed keys.
fn check_records(report: &Remaps) {
    let keys = ["experiment", "case", "metric", "unit", "better", "before", "after", "linux"];
    let mut cases = std::collections::HashSet::new();
    let mut with_linux = 0;
    for record in Record::of(report) {
        let line = record.line();
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&line).unwrap();
        assert_eq!(object.len(), keys.len(), "{line}");
        assert!(keys.iter().all(|&key| object.contains_key(key)), "{line}");
        assert_eq!(object["experiment"], "mremap");
        let (before, after) = (object["before"].as_f64().unwrap(), object["after"].as_f64().unwrap());
        assert!(before.is_finite() && before >= 0.0 && after.is_finite() && after >= 0.0, "{line}");
        with_linux += usize::from(object["linux"].is_number());
        assert!(cases.insert((record.case, record.metric)), "twice: {line}");
    }
    // Single pages need no control of the host.
    assert!(with_linux >= 60, "{with_linux}");
}

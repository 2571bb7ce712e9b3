//! The experiment on swap at the smallest scale, and what holds at any speed of the machine.

use quire_lab::swap::{self, Scale};
use quire_lab::{Figure, Record, Report, SwapTechnique};

type Swap = Report<SwapTechnique>;

fn figures(report: &Swap) -> impl Iterator<Item = &Figure<SwapTechnique>> {
    report.sections.iter().flat_map(|section| &section.figures)
}

fn of(report: &Swap, case: &str, metric: &str, technique: SwapTechnique) -> f64 {
    let figure = figures(report).find(|figure| figure.case == case && figure.metric.name == metric);
    let figure = figure.unwrap_or_else(|| panic!("{case}: {metric} is not there"));
    figure.of(technique).unwrap()
}

#[test]
fn everything_goes_out_and_comes_back_before_and_now() {
    let mut steps = Vec::new();
    let report = swap::run(&Scale::TINY, &mut |what, done, total| {
        steps.push((what.to_owned(), done, total));
    })
    .unwrap();
    assert_eq!(report.findings, [""; 0]);
    let total = steps[0].2;
    assert_eq!(steps.iter().map(|&(_, done, _)| done).collect::<Vec<_>>(), (0..total).collect::<Vec<_>>());

    // 8 MiB are four clusters, each of which has a table of 4 kB; one word for a large folio takes none.
    for technique in SwapTechnique::ALL {
        let single = of(&report, "both ways, 8 MiB of zeros, pages of 4 KiB", "cache_memory", technique);
        assert_eq!(single, 16.0, "{technique:?}");
        let large = of(
            &report,
            "both ways, 8 MiB of zeros, folios of 2 MiB by PMD entries",
            "cache_memory",
            technique,
        );
        assert_eq!(large, if technique.whole_words() { 0.0 } else { 16.0 }, "{technique:?}");
        // Zeros take no slot on the device.
        let used = of(
            &report,
            "both ways, 4 MiB of pages that do not compress, pages of 4 KiB",
            "device_memory",
            technique,
        );
        assert!((4096.0..6000.0).contains(&used), "{technique:?}: {used}");
    }
    // Half of the data does not fit, so a store faults.
    for technique in SwapTechnique::ALL {
        let major = of(&report, "key-value, half in memory, RAM disk", "major_faults", technique);
        assert!((50.0..900.0).contains(&major), "{technique:?}: {major}");
    }
    check_records(&report);
}

/// Each line is an object with exactly the agreed keys.
fn check_records(report: &Swap) {
    let keys = ["experiment", "case", "metric", "unit", "better", "before", "after", "linux"];
    let mut cases = std::collections::HashSet::new();
    for record in Record::of(report) {
        let line = record.line();
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&line).unwrap();
        assert_eq!(object.len(), keys.len(), "{line}");
        assert!(keys.iter().all(|&key| object.contains_key(key)), "{line}");
        assert_eq!(object["experiment"], "swap");
        let (before, after) = (object["before"].as_f64().unwrap(), object["after"].as_f64().unwrap());
        assert!(before.is_finite() && before >= 0.0 && after.is_finite() && after >= 0.0, "{line}");
        assert!(object["linux"].is_null(), "the host's Linux is left alone: {line}");
        assert!(cases.insert((record.case, record.metric)), "twice: {line}");
    }
    assert!(cases.len() > 100, "{}", cases.len());
}

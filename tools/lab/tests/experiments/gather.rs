//! The experiment on unmapping at the smallest scale, and what holds at any speed of the machine.

use quire_lab::gather::{self, Scale};
use quire_lab::{Figure, GatherTechnique, Record, Report};

type Gathered = Report<GatherTechnique>;

fn figures(report: &Gathered) -> impl Iterator<Item = &Figure<GatherTechnique>> {
    report.sections.iter().flat_map(|section| &section.figures)
}

fn both(report: &Gathered, case: &str, metric: &str) -> [f64; 2] {
    let figure = figures(report).find(|figure| figure.case == case && figure.metric.name == metric);
    let figure = figure.unwrap_or_else(|| panic!("{case}: {metric} is not there"));
    GatherTechnique::ALL.map(|technique| figure.of(technique).unwrap())
}

#[test]
fn everything_is_measured_and_given_back_and_one_call_interrupts_once() {
    let mut steps = Vec::new();
    let report = gather::run(&Scale::TINY, &mut |what, done, total| {
        steps.push((what.to_owned(), done, total));
    })
    .unwrap();
    assert_eq!(report.findings, [""; 0]);
    let total = steps[0].2;
    assert_eq!(steps.iter().map(|&(_, done, _)| done).collect::<Vec<_>>(), (0..total).collect::<Vec<_>>());

    // An unmapping of any size, in any folios, and beside a child: one shootdown that interrupts the one
    // other CPU.
    for call in [
        "munmap of a page",
        "munmap of 64 KiB",
        "munmap of all",
        "munmap of all, folios of 64 KiB",
        "munmap of all, folios of 2 MiB",
        "munmap of all beside a child",
        "munmap of all beside a child, folios of 64 KiB",
        "munmap of the middle beside a child",
    ] {
        let case = format!("{call}, another CPU runs it");
        for metric in ["shootdowns", "interrupts", "tlb_shootdown_unmap", "tlb_interrupt_unmap"] {
            assert_eq!(both(&report, &case, metric), [1.0, 1.0], "{case}: {metric}");
        }
    }
    // A space that one CPU runs interrupts no other CPU, whatever it calls.
    let mut alone = 0;
    for figure in figures(&report).filter(|figure| figure.metric.name == "interrupts") {
        let quiet = figure.case.ends_with(", one CPU") || figure.case.ends_with(", another CPU ran it");
        if quiet || figure.case.starts_with("exit") {
            alone += 1;
            assert_eq!(
                GatherTechnique::ALL.map(|technique| figure.of(technique)),
                [Some(0.0); 2],
                "{figure:?}"
            );
        }
    }
    assert!(alone > 20, "{alone}");
    // Sixteen entries of a folio are one run, so the list of runs is full less often.
    let case = "DONTNEED of all beside a child, folios of 64 KiB, another CPU runs it";
    let [pages, runs] = both(&report, case, "shootdowns");
    assert_eq!(pages, 16.0 * runs);
    // Larger folios are fewer pages to fault for, and more memory.
    let resident = |what: &str| both(&report, &format!("build, {what}"), "peak_resident");
    assert!(resident("no large folios") < resident("folios of every size"));
    check_records(&report);
}

/// Each line is an object with exactly the agreed keys.
fn check_records(report: &Gathered) {
    let keys = ["experiment", "case", "metric", "unit", "better", "before", "after", "linux"];
    let mut cases = std::collections::HashSet::new();
    let mut with_linux = 0;
    for record in Record::of(report) {
        let line = record.line();
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&line).unwrap();
        assert_eq!(object.len(), keys.len(), "{line}");
        assert!(keys.iter().all(|&key| object.contains_key(key)), "{line}");
        assert_eq!(object["experiment"], "gather");
        let (before, after) = (object["before"].as_f64().unwrap(), object["after"].as_f64().unwrap());
        assert!(before.is_finite() && before >= 0.0 && after.is_finite() && after >= 0.0, "{line}");
        assert!(object["linux"].is_null() || object["linux"].as_f64() > Some(0.0), "{line}");
        with_linux += usize::from(object["linux"].is_number());
        assert!(cases.insert((record.case, record.metric)), "twice: {line}");
    }
    // Single pages need no control of the host.
    assert!(with_linux >= 8, "{with_linux}");
}

//! The whole experiment at the smallest scale, and what holds at any speed of the machine.

use quire_frame::PcpTechnique;
use quire_lab::pcp::{self, Scale};
use quire_lab::{Figure, Record, Report};

fn figure<'r>(report: &'r Report, case: &str, metric: &str) -> &'r Figure {
    let mut all = report.sections.iter().flat_map(|section| &section.figures);
    all.find(|figure| figure.case == case && figure.metric.name == metric).expect("the figure is there")
}

#[test]
fn everything_is_measured_and_given_back_and_the_lists_keep_off_the_lock() {
    let mut steps = Vec::new();
    let report =
        pcp::run(&Scale::TINY, &mut |what, done, total| steps.push((what.to_owned(), done, total))).unwrap();
    assert_eq!(report.findings, [""; 0]);
    let total = steps[0].2;
    assert_eq!(steps.iter().map(|&(_, done, _)| done).collect::<Vec<_>>(), (0..total).collect::<Vec<_>>());

    // A pair takes the lock twice where order 3 has no lists, and seldom where it has.
    for case in ["pair order 3, 1 thread", "pair order 3, 2 threads"] {
        let takes = figure(&report, case, "zone_lock_takes");
        assert_eq!(takes.of(PcpTechnique::OrderZero), Some(2000.0));
        assert!(takes.of(PcpTechnique::Posted).unwrap() <= 10.0, "{takes:?}");
        assert!(takes.of(PcpTechnique::All).unwrap() <= 10.0, "{takes:?}");
    }
    // The posted lists know no order 9. Whether a machine this small keeps huge pages on its lists is open.
    let takes = figure(&report, "pair order 9, 1 thread", "zone_lock_takes");
    assert_eq!(takes.of(PcpTechnique::Posted), Some(2000.0));
    assert!(takes.of(PcpTechnique::All) <= Some(2000.0), "{takes:?}");
    for figure in report.sections.iter().flat_map(|section| &section.figures) {
        for technique in PcpTechnique::COMPARED {
            assert!(
                figure.of(technique).is_some_and(|value| value.is_finite() && value >= 0.0),
                "{figure:?}"
            );
        }
    }
    assert!(figure(&report, "bulk order 3, 1 thread", "peak_held").of(PcpTechnique::All) > Some(0.0));
    assert!(figure(&report, "packets of 64 bytes", "throughput").of(PcpTechnique::All) > Some(0.0));
    // The lists of idle CPUs are empty within a bounded number of ticks; otherwise that is a finding above.
    assert!(figure(&report, "idle CPUs", "held_when_work_ends").of(PcpTechnique::All) > Some(0.0));
    // A fifth of memory is free, and a run this short leaves huge pages in it.
    assert!(figure(&report, "long run", "order9_success").of(PcpTechnique::All) > Some(0.0));
    check_records(&report);
}

/// Each line is an object with exactly the agreed keys, in their order.
fn check_records(report: &Report) {
    let keys = ["experiment", "case", "metric", "unit", "better", "before", "after", "linux"];
    let mut cases = std::collections::HashSet::new();
    for record in Record::of(report) {
        let line = record.line();
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&line).unwrap();
        assert_eq!(object.len(), keys.len(), "{line}");
        assert!(keys.iter().all(|&key| object.contains_key(key)), "{line}");
        assert_eq!(object["experiment"], "pcp");
        assert!(object["before"].is_number() && object["after"].is_number() && object["linux"].is_null());
        assert!(cases.insert((record.case, record.metric)), "twice: {line}");
    }
    assert!(cases.iter().any(|(case, _)| case.ends_with(" (posted)")));
}

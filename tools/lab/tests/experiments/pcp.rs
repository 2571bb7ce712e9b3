//! The whole experiment at the smallest scale, and what holds at any speed of the machine.

use super::{check_records, figure, figures, run, with_linux};
use quire_frame::PcpTechnique;
use quire_lab::pcp::{self, Scale};

#[test]
fn everything_is_measured_and_given_back_and_the_lists_keep_off_the_lock() {
    let report = run(pcp::run, &Scale::TINY);
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
    for figure in figures(&report) {
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
    let records = check_records(&report);
    assert_eq!(with_linux(&records), 0);
    assert!(records.iter().any(|record| record.case.ends_with(" (posted)")));
}

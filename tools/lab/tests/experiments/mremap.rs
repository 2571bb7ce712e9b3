//! The experiment on moves at the smallest scale, and what holds at any speed of the machine.

use super::{check_records, run, with_linux};

#[test]
fn everything_is_measured_and_given_back_and_a_move_is_one_shootdown() {
    let report = run("mremap");
    // The others run the space for as long as regions move, or have ended.
    let shootdowns: Vec<_> = report.figures().filter(|figure| figure.metric.name == "shootdowns").collect();
    assert_eq!(shootdowns.len(), 2);
    for figure in shootdowns {
        assert!(figure.values.iter().all(|&sent| sent <= 1.0), "{figure:?}");
    }
    let records = check_records(&report);
    // Single pages need no control of the host.
    assert!(with_linux(&records) >= 60);
}

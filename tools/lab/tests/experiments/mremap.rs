//! The experiment on moves at the smallest scale, and what holds at any speed of the machine.

use super::{check_records, figures, run, with_linux};
use quire_lab::RemapTechnique;
use quire_lab::mremap::{self, Scale};

#[test]
fn everything_is_measured_and_given_back_and_a_move_is_one_shootdown() {
    let report = run(mremap::run, &Scale::TINY);
    // The others run the space for as long as regions move, or have ended.
    let shootdowns: Vec<_> = figures(&report).filter(|figure| figure.metric.name == "shootdowns").collect();
    assert_eq!(shootdowns.len(), 2);
    for figure in shootdowns {
        for technique in RemapTechnique::ALL {
            let sent = figure.of(technique).unwrap();
            assert!(sent <= 1.0, "{}, {technique:?}: {sent}", figure.case);
        }
    }
    let records = check_records(&report);
    // Single pages need no control of the host.
    assert!(with_linux(&records) >= 60);
}

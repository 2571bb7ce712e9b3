//! The experiment on unmapping at the smallest scale, and what holds at any speed of the machine.

use super::{both, check_records, run, with_linux};

#[test]
fn everything_is_measured_and_given_back_and_one_call_interrupts_once() {
    let report = run("gather");
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
    for figure in report.figures().filter(|figure| figure.metric.name == "interrupts") {
        let quiet = figure.case.ends_with(", one CPU") || figure.case.ends_with(", another CPU ran it");
        if quiet || figure.case.starts_with("exit") {
            alone += 1;
            assert_eq!(figure.values, [0.0; 2], "{figure:?}");
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
    let records = check_records(&report);
    assert!(records.iter().all(|record| record.linux.is_none_or(|linux| linux > 0.0)));
    // Single pages need no control of the host.
    assert!(with_linux(&records) >= 8);
}

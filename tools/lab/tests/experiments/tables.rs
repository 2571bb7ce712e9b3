//! The experiment on empty page tables at the smallest scale, and what holds at any speed of the machine.

use super::{both, check_records, run, with_linux};

#[test]
fn everything_is_measured_and_given_back_and_whatever_empties_a_table_frees_it() {
    let report = run("tables");
    // 64 MiB have 32 PTE tables of 4 kB, with a PMD and a PUD table above them. At an offset of 1 MiB the
    // last step reaches into one more, and what is moved lies apart, under a PMD table of its own.
    let sweeps: Vec<_> = report
        .figures()
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
    let records = check_records(&report);
    // All but the ratios.
    assert!(with_linux(&records) >= 50);
}

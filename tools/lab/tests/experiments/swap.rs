//! The experiment on swap at the smallest scale, and what holds at any speed of the machine.

use super::{check_records, figure, run, with_linux};

#[test]
fn everything_goes_out_and_comes_back_before_and_now() {
    let report = run("swap");
    let values = |case: &str, metric: &str| figure(&report, case, metric).values.clone();
    // 8 MiB are four clusters, each of which has a table of 4 kB; one word for a large folio takes none.
    assert_eq!(values("both ways, 8 MiB of zeros, pages of 4 KiB", "cache_memory"), [16.0, 16.0]);
    let large = "both ways, 8 MiB of zeros, folios of 2 MiB by PMD entries";
    assert_eq!(values(large, "cache_memory"), [16.0, 0.0]);
    // Zeros take no slot on the device.
    let noise = "both ways, 4 MiB of pages that do not compress, pages of 4 KiB";
    let used = values(noise, "device_memory");
    assert!(used.iter().all(|used| (4096.0..6000.0).contains(used)), "{used:?}");
    // Half of the data does not fit, so a store faults.
    let major = values("key-value, half in memory, RAM disk", "major_faults");
    assert!(major.iter().all(|major| (50.0..900.0).contains(major)), "{major:?}");
    let records = check_records(&report);
    assert_eq!(with_linux(&records), 0, "the host's Linux is left alone");
    assert!(records.len() > 100, "{}", records.len());
}

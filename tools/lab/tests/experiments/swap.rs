//! The experiment on swap at the smallest scale, and what holds at any speed of the machine.

use super::{check_records, figure, run, with_linux};
use quire_lab::swap::{self, Scale};
use quire_lab::{Report, SwapTechnique};

fn of(report: &Report<SwapTechnique>, case: &str, metric: &str, technique: SwapTechnique) -> f64 {
    figure(report, case, metric).of(technique).unwrap()
}

#[test]
fn everything_goes_out_and_comes_back_before_and_now() {
    let report = run(swap::run, &Scale::TINY);
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
    let records = check_records(&report);
    assert_eq!(with_linux(&records), 0, "the host's Linux is left alone");
    assert!(records.len() > 100, "{}", records.len());
}

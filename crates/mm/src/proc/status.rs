//! `/proc/PID/status`.

use core::fmt::{self, Write};
use quire_space::SpaceFigures;

/// Writes the memory lines of `/proc/PID/status`.
///
/// # Errors
///
/// Those of `out`.
pub fn status(figures: &SpaceFigures, out: &mut impl Write) -> fmt::Result {
    for (name, bytes) in [
        ("VmPeak", figures.peak_mapped),
        ("VmSize", figures.mapped),
        ("VmLck", figures.locked),
        ("VmHWM", figures.peak_resident),
        ("VmRSS", figures.resident),
        ("RssAnon", figures.resident_anonymous),
        ("RssFile", figures.resident_file),
        ("RssShmem", figures.resident_shmem),
        ("VmData", figures.data),
        ("VmStk", figures.stack),
        ("VmExe", figures.exec),
        ("VmPTE", figures.page_tables),
        ("VmSwap", figures.swapped),
    ] {
        writeln!(out, "{name}:\t{:>8} kB", bytes >> 10)?;
    }
    Ok(())
}

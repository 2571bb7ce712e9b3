//! `/sys/block/zram*/mm_stat`.

use core::fmt::{self, Write};
use quire_arch::PAGE_SIZE;
use quire_swap::SwapReport;

/// Writes the file `mm_stat` of a compressing device. Left out: `huge_pages_since`, the last column.
///
/// # Errors
///
/// Those of `out`.
#[doc(hidden)]
pub fn mm_stat(device: &SwapReport, out: &mut impl Write) -> fmt::Result {
    let report = &device.device;
    for (place, figure) in [
        report.stored_pages.saturating_mul(PAGE_SIZE),
        report.compressed_bytes,
        report.used_bytes,
        report.limit_bytes.unwrap_or(0),
        report.peak_bytes,
        report.same_pages,
        report.compacted_pages,
        report.huge_pages,
    ]
    .into_iter()
    .enumerate()
    {
        let separator = if place > 0 { " " } else { "" };
        write!(out, "{separator}{figure:>8}")?;
    }
    writeln!(out)
}

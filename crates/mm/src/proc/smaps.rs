//! `/proc/PID/smaps`.

use super::maps_line;
use core::fmt::{self, Write};
use quire_arch::{PAGE_SIZE, Platform};
use quire_space::{MappingFigures, SMAPS_MNEMONICS, Space, VmFlags};

/// Writes `/proc/PID/smaps`. The share of a page of a large folio is the average over the folio's pages. What
/// does not exist here (pages merged by contents, huge pages of pools) is zero.
///
/// # Errors
///
/// Those of `out`.
pub fn smaps<P: Platform>(space: &Space<'_, P>, out: &mut impl Write) -> fmt::Result {
    let mut result = Ok(());
    space.mappings().for_each_figures(|figures| {
        if result.is_ok() {
            result = mapping(figures, out);
        }
    });
    result
}

fn mapping(figures: &MappingFigures, out: &mut impl Write) -> fmt::Result {
    maps_line(&figures.mapping, out)?;
    for (name, bytes) in [
        ("Size:", figures.mapping.range.len()),
        ("KernelPageSize:", PAGE_SIZE),
        ("MMUPageSize:", PAGE_SIZE),
        ("Rss:", figures.resident),
        ("Pss:", figures.share),
        ("Pss_Dirty:", figures.share_dirty),
        ("Shared_Clean:", figures.shared_clean),
        ("Shared_Dirty:", figures.shared_dirty),
        ("Private_Clean:", figures.private_clean),
        ("Private_Dirty:", figures.private_dirty),
        ("Referenced:", figures.referenced),
        ("Anonymous:", figures.anonymous),
        ("KSM:", 0),
        ("LazyFree:", figures.lazy_free),
        ("AnonHugePages:", figures.anonymous_huge),
        ("ShmemPmdMapped:", figures.shmem_huge),
        ("FilePmdMapped:", figures.file_huge),
        ("Shared_Hugetlb:", 0),
        ("Private_Hugetlb:", 0),
        ("Swap:", figures.swapped),
        ("SwapPss:", figures.swapped_share),
        ("Locked:", figures.locked_share()),
    ] {
        writeln!(out, "{name:<16}{:>8} kB", bytes >> 10)?;
    }
    writeln!(out, "{:<16}{:>8}", "THPeligible:", u8::from(figures.huge_eligible))?;
    vm_flags(figures.mapping.flags, out)
}

/// Writes the `VmFlags` line of `/proc/PID/smaps`.
///
/// # Errors
///
/// Those of `out`.
#[doc(hidden)]
pub fn vm_flags(flags: VmFlags, out: &mut impl Write) -> fmt::Result {
    out.write_str("VmFlags:")?;
    for (_, mnemonic) in SMAPS_MNEMONICS.iter().filter(|(flag, _)| flags.contains(*flag)) {
        write!(out, " {mnemonic}")?;
    }
    writeln!(out)
}

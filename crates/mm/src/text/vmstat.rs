//! `/proc/vmstat`.

use super::slab_pages;
use crate::memory::Memory;
use core::fmt::{self, Write};
use quire_arch::Platform;
use quire_frame::VmEvent;

/// Writes `/proc/vmstat`: what is counted. Linux's counters come first, under its names and in its order; then Quire's
/// own ([`VmEvent`] says which these are).
///
/// # Errors
///
/// Those of `out`.
pub fn vmstat<P: Platform>(memory: &Memory<P>, out: &mut impl Write) -> fmt::Result {
    let frames = memory.frames();
    let (mut free, mut free_blocks) = (0, 0);
    for zone in frames.zone_reports() {
        free += zone.free + zone.pcp;
        free_blocks += zone.free_in_page_blocks();
    }
    for (name, pages) in [
        ("nr_free_pages", free),
        ("nr_free_pages_blocks", free_blocks),
        ("nr_slab_unreclaimable", slab_pages(memory)),
        ("nr_anon_transparent_hugepages", frames.events().pmd_mapped()),
    ] {
        writeln!(out, "{name} {pages}")?;
    }
    for &event in VmEvent::ALL {
        writeln!(out, "{} {}", event.name(), frames.events().sum(event))?;
    }
    Ok(())
}

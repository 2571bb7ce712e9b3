//! `/proc/meminfo`.

use super::slab_pages;
use crate::memory::Memory;
use core::fmt::{self, Write};
use quire_arch::{Order, PAGE_SIZE, Platform};

/// Writes the lines of `/proc/meminfo` that there are figures for. Frames on per-CPU lists count as free; a page that
/// several spaces map counts in AnonPages for each.
///
/// # Errors
///
/// Those of `out`.
pub fn meminfo<P: Platform>(memory: &Memory<P>, out: &mut impl Write) -> fmt::Result {
    let totals = memory.frames().totals();
    let slab = slab_pages(memory);
    let anonymous = memory.spaces().resident_anonymous() / PAGE_SIZE;
    let anonymous_huge = memory.frames().events().pmd_mapped() * Order::PMD.pages();
    for (name, pages) in [
        ("MemTotal:", totals.managed),
        ("MemFree:", totals.free),
        ("AnonPages:", anonymous),
        ("Slab:", slab),
        ("SUnreclaim:", slab),
        ("Committed_AS:", memory.spaces().commit().promised()),
        ("AnonHugePages:", anonymous_huge),
        ("ShmemHugePages:", 0),
    ] {
        writeln!(out, "{:<16}{:>8} kB", name, (pages * PAGE_SIZE) >> 10)?;
    }
    Ok(())
}

//! `/proc/meminfo`.

use super::slab_pages;
use crate::memory::Memory;
use core::fmt::{self, Write};
use quire_arch::{PAGE_SIZE, Platform};

/// Writes the lines of `/proc/meminfo` that there are figures for. Frames on per-CPU lists count as free.
///
/// # Errors
///
/// Those of `out`.
pub fn meminfo<P: Platform>(memory: &Memory<P>, out: &mut impl Write) -> fmt::Result {
    let totals = memory.frames().totals();
    let slab = slab_pages(memory);
    for (name, pages) in [
        ("MemTotal:", totals.managed),
        ("MemFree:", totals.free),
        ("Slab:", slab),
        ("SUnreclaim:", slab),
        ("Committed_AS:", memory.spaces().commit().promised()),
    ] {
        writeln!(out, "{:<16}{:>8} kB", name, (pages * PAGE_SIZE) >> 10)?;
    }
    Ok(())
}

//! Texts in the format of Linux's `/proc`, so that people's tools and habits work.

use crate::memory::Memory;
use core::fmt::{self, Write};
use quire_arch::{PAGE_SIZE, Platform};
use quire_frame::VmEvent;
use quire_space::{Mapping, SMAPS_MNEMONICS, Space, SpaceFigures, VmFlags};

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
        ("VmData", figures.data),
        ("VmStk", figures.stack),
        ("VmExe", figures.exec),
        ("VmPTE", figures.page_tables),
    ] {
        writeln!(out, "{name}:\t{:>8} kB", bytes >> 10)?;
    }
    Ok(())
}

/// Writes one line of `/proc/PID/maps`. Files have the embedder's number as their inode.
///
/// # Errors
///
/// Those of `out`.
pub fn maps_line(mapping: &Mapping, out: &mut impl Write) -> fmt::Result {
    let Mapping { range, flags, page_offset, file } = mapping;
    let letter = |flag, letter| if flags.contains(flag) { letter } else { '-' };
    let offset = if file.is_some() { page_offset * PAGE_SIZE } else { 0 };
    writeln!(
        out,
        "{:08x}-{:08x} {}{}{}{} {:08x} 00:00 {}",
        range.start(),
        range.end(),
        letter(VmFlags::READ, 'r'),
        letter(VmFlags::WRITE, 'w'),
        letter(VmFlags::EXEC, 'x'),
        if flags.contains(VmFlags::MAYSHARE) { 's' } else { 'p' },
        offset,
        file.unwrap_or(0)
    )
}

/// Writes `/proc/PID/maps`.
///
/// # Errors
///
/// Those of `out`.
pub fn maps<P: Platform>(space: &Space<'_, P>, out: &mut impl Write) -> fmt::Result {
    let mut result = Ok(());
    space.for_each_mapping(|mapping| {
        if result.is_ok() {
            result = maps_line(&mapping, out);
        }
    });
    result
}

/// Writes the `VmFlags` line of `/proc/PID/smaps`.
///
/// # Errors
///
/// Those of `out`.
pub fn vm_flags(flags: VmFlags, out: &mut impl Write) -> fmt::Result {
    out.write_str("VmFlags:")?;
    for (_, mnemonic) in SMAPS_MNEMONICS.iter().filter(|(flag, _)| flags.contains(*flag)) {
        write!(out, " {mnemonic}")?;
    }
    writeln!(out)
}

/// Writes `/proc/vmstat`: what is counted, under Linux's names where Linux counts it.
///
/// # Errors
///
/// Those of `out`.
pub fn vmstat<P: Platform>(memory: &Memory<P>, out: &mut impl Write) -> fmt::Result {
    writeln!(out, "nr_free_pages {}", memory.frames().free_frames())?;
    for &event in VmEvent::ALL {
        writeln!(out, "{} {}", event.name(), memory.frames().events().sum(event))?;
    }
    Ok(())
}

/// Writes the lines of `/proc/meminfo` that there are figures for. Frames on per-CPU lists count as free.
///
/// # Errors
///
/// Those of `out`.
pub fn meminfo<P: Platform>(memory: &Memory<P>, out: &mut impl Write) -> fmt::Result {
    let totals = memory.frames().totals();
    for (name, pages) in [
        ("MemTotal:", totals.managed),
        ("MemFree:", memory.frames().free_frames()),
        ("Committed_AS:", memory.spaces().commit().promised()),
    ] {
        writeln!(out, "{:<16}{:>8} kB", name, (pages * PAGE_SIZE) >> 10)?;
    }
    Ok(())
}

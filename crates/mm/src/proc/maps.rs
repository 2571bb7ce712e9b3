//! `/proc/PID/maps`.

use core::fmt::{self, Write};
use quire_arch::{PAGE_SIZE, Platform};
use quire_space::{Mapping, Space, VmFlags};

/// Writes one line of `/proc/PID/maps`. Files have the embedder's number as their inode.
///
/// # Errors
///
/// Those of `out`.
#[doc(hidden)]
pub fn maps_line(mapping: &Mapping, out: &mut impl Write) -> fmt::Result {
    let Mapping { range, flags, page_offset, file } = mapping;
    let letter = |flag, letter| if flags.contains(flag) { letter } else { '-' };
    // What mremap has added may lie past all offsets, as in Linux.
    let offset = if file.is_some() { page_offset.wrapping_mul(PAGE_SIZE) } else { 0 };
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
    space.mappings().for_each(|mapping| {
        if result.is_ok() {
            result = maps_line(&mapping, out);
        }
    });
    result
}

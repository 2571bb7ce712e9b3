//! `/proc/PID/smaps`.

use core::fmt::{self, Write};
use quire_space::{SMAPS_MNEMONICS, VmFlags};

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

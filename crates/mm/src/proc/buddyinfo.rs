//! `/proc/buddyinfo`.

use super::zone_name;
use crate::memory::Memory;
use core::fmt::{self, Write};
use quire_arch::Platform;

/// Writes `/proc/buddyinfo`: for each zone with frames the free blocks of each order, on the zone's own
/// lists.
///
/// # Errors
///
/// Those of `out`.
pub fn buddyinfo<P: Platform>(memory: &Memory<P>, out: &mut impl Write) -> fmt::Result {
    for zone in memory.parts().frames().reports().zone_reports() {
        zone_name(&zone, out)?;
        out.write_char(' ')?;
        for blocks in zone.blocks_by_order() {
            write!(out, "{blocks:>6} ")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

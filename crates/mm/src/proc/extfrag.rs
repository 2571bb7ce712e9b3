//! `extfrag/extfrag_index` and `extfrag/unusable_index` below `/sys/kernel/debug`.

use super::zone_name;
use crate::memory::Memory;
use core::fmt::{self, Write};
use quire_arch::{Order, Platform};
use quire_frame::ZoneReport;

/// Writes `extfrag_index`: for each zone with frames and each order why an allocation would fail
/// ([`ZoneReport::fragmentation_index`]); -1.000 where it would not.
///
/// # Errors
///
/// Those of `out`.
#[doc(hidden)]
pub fn extfrag_index<P: Platform>(memory: &Memory<P>, out: &mut impl Write) -> fmt::Result {
    lines(memory, out, |zone, order, out| {
        let index = zone.fragmentation_index(order).unwrap_or(-1000);
        write!(out, "{:>2}.{:03} ", index / 1000, index % 1000)
    })
}

/// Writes `unusable_index`: for each zone with frames and each order the part of what is free that lies in
/// smaller pieces ([`ZoneReport::unusable_free_index`]).
///
/// # Errors
///
/// Those of `out`.
#[doc(hidden)]
pub fn unusable_index<P: Platform>(memory: &Memory<P>, out: &mut impl Write) -> fmt::Result {
    lines(memory, out, |zone, order, out| {
        let index = zone.unusable_free_index(order);
        write!(out, "{}.{:03} ", index / 1000, index % 1000)
    })
}

fn lines<P: Platform, W: Write>(
    memory: &Memory<P>,
    out: &mut W,
    figure: impl Fn(&ZoneReport, Order, &mut W) -> fmt::Result,
) -> fmt::Result {
    for zone in memory.parts().frames().reports().zone_reports() {
        zone_name(&zone, out)?;
        out.write_char(' ')?;
        for order in Order::ALL {
            figure(&zone, order, out)?;
        }
        writeln!(out)?;
    }
    Ok(())
}

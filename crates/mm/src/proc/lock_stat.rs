//! `/proc/lock_stat`.

use crate::memory::Memory;
use core::fmt::{self, Write};
use quire_arch::{MAX_NODES, Platform};

/// Columns of a lock's name, which ends at the last one.
const NAME_WIDTH: usize = 40;
/// Nodes have one digit.
const _: () = assert!(MAX_NODES <= 10);

/// Writes the statistics of the zones' locks, in columns of `/proc/lock_stat`: times in microseconds, one
/// line per zone.
///
/// Not measured, so left out: bounces between CPUs, waiting times, and the shortest and longest time that a
/// lock was held. How long it was held in all is zero unless
/// [`MemoryConfig::time_locks`](crate::MemoryConfig::time_locks) is set.
///
/// # Errors
///
/// Those of `out`.
#[doc(hidden)]
pub fn lock_stat<P: Platform>(memory: &Memory<P>, out: &mut impl Write) -> fmt::Result {
    write!(out, "{:>NAME_WIDTH$} ", "class name")?;
    writeln!(
        out,
        "{:>14} {:>14} {:>14} {:>14}",
        "contentions", "acquisitions", "holdtime-total", "holdtime-avg"
    )?;
    for zone in memory.parts().frames().reports().zone_reports() {
        let lock = zone.lock;
        // What follows the padded part is as long as the zone's name, two slashes and a digit.
        let width = NAME_WIDTH - zone.kind.name().len() - 3;
        write!(out, "{:>width$}/{}/{}:", "&zone->lock", zone.node, zone.kind)?;
        write!(out, "{:>14} {:>14}", lock.contended, lock.takes)?;
        for nanoseconds in [lock.held_ns, lock.held_ns.checked_div(lock.takes).unwrap_or(0)] {
            write!(out, " {:>11}.{:02}", nanoseconds / 1000, nanoseconds % 1000 / 10)?;
        }
        writeln!(out)?;
    }
    Ok(())
}

//! `/proc/swaps`.

use crate::memory::Memory;
use core::fmt::{self, Write};
use quire_arch::{PAGE_SIZE, Platform};
use quire_swap::SwapReport;

/// Columns of a device's name.
const NAME_WIDTH: usize = 40;

/// Writes `/proc/swaps`: a line for each device in use, sizes in KiB. A device is named by its kind and
/// number; those that are files of the host are listed as files.
///
/// # Errors
///
/// Those of `out`.
pub fn swaps<P: Platform>(memory: &Memory<P>, out: &mut impl Write) -> fmt::Result {
    out.write_str("Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n")?;
    for device in memory.parts().swap().devices().reports() {
        line(&device, out)?;
    }
    Ok(())
}

fn line(device: &SwapReport, out: &mut impl Write) -> fmt::Result {
    let kib = |slots: u64| slots * (PAGE_SIZE >> 10);
    // Short figures are followed by one more tab, for tab stops of eight columns.
    let gap = |figure: u64| if figure < 10_000_000 { "\t" } else { "" };
    let (size, used) = (kib(device.slots), kib(device.used));
    // The embedder's name may be longer. A blank follows the number, which has two digits at most.
    let width = NAME_WIDTH.saturating_sub(device.kind.len()).max(3);
    let class = if device.kind.ends_with("file") { "file\t" } else { "partition" };
    let (after_size, after_used) = (gap(size), gap(used));
    let priority = device.priority;
    writeln!(
        out,
        "{}{:<width$}{class}\t{size}\t{after_size}{used}\t{after_used}{priority}",
        device.kind, device.id
    )
}

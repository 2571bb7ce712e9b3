//! `/proc/pagetypeinfo`.

use super::zone_name;
use crate::memory::Memory;
use core::fmt::{self, Write};
use quire_arch::{NodeId, Order, Platform};
use quire_frame::{Migratetype, PAGEBLOCK_ORDER, ZoneReport};

/// Most blocks of one kind that are counted; from there on Linux says that there may be more.
const MOST_BLOCKS: u64 = 100_000;

/// Writes `/proc/pagetypeinfo`: for each zone with frames its free blocks by migratetype and order, and its
/// page blocks by migratetype. As on Linux, the headings are repeated for each node.
///
/// # Errors
///
/// Those of `out`.
pub fn pagetypeinfo<P: Platform>(memory: &Memory<P>, out: &mut impl Write) -> fmt::Result {
    let frames = memory.parts().frames();
    for node in (0..memory.platform().node_count()).filter_map(NodeId::new) {
        let zones = || frames.reports().zone_reports().filter(move |zone| zone.node == node);
        if zones().next().is_none() {
            continue;
        }
        heading(out)?;
        for zone in zones() {
            free_blocks(&zone, out)?;
        }
        page_blocks(zones(), out)?;
    }
    Ok(())
}

fn heading(out: &mut impl Write) -> fmt::Result {
    writeln!(out, "Page block order: {PAGEBLOCK_ORDER}")?;
    writeln!(out, "Pages per block:  {}", PAGEBLOCK_ORDER.pages())?;
    write!(out, "\n{:<43} ", "Free pages count per migrate type at order")?;
    for order in Order::ALL {
        write!(out, "{:>6} ", order.get())?;
    }
    writeln!(out)
}

/// A line for each type.
fn free_blocks(zone: &ZoneReport, out: &mut impl Write) -> fmt::Result {
    for migratetype in Migratetype::ALL {
        write!(out, "Node {:>4}, zone {:>8}, type {:>12} ", zone.node, zone.kind, migratetype.name())?;
        for types in zone.blocks {
            let blocks = types[migratetype.index()];
            let more = if blocks >= MOST_BLOCKS { ">" } else { "" };
            write!(out, "{more}{:>6} ", blocks.min(MOST_BLOCKS))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// A line for each zone.
fn page_blocks(zones: impl Iterator<Item = ZoneReport>, out: &mut impl Write) -> fmt::Result {
    write!(out, "\n{:<23}", "Number of blocks type ")?;
    for migratetype in Migratetype::ALL {
        write!(out, "{:>12} ", migratetype.name())?;
    }
    writeln!(out)?;
    for zone in zones {
        zone_name(&zone, out)?;
        out.write_char(' ')?;
        for blocks in zone.pageblocks {
            write!(out, "{blocks:>12} ")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

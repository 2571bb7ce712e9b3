//! `/proc/zoneinfo`.

use super::{lists_by_age, zone_name};
use crate::memory::Memory;
use core::fmt::{self, Write};
use quire_arch::{NodeId, Platform};
use quire_frame::{PcpReport, ZoneId, ZoneKind, ZoneReport};
use quire_memcg::LruList;

/// Writes `/proc/zoneinfo`: every kind of zone of every node. Of one without frames there is only the first
/// part.
///
/// - `pages free` and `nr_free_pages` count frames on per-CPU lists.
/// - A boost raises `low` and `high`, and they are printed with it, as on Linux; `min` it does not raise.
/// - The `count` of a pageset includes frames that other CPUs returned to it.
/// - `protection` has a place for each kind of zone.
///
/// - The LRU lists are of a node, so that they are among the `per-node stats` only, which come with the first
///   zone of a node that has frames.
///
/// Left out: the other `per-node stats`, `promo`, `cma`, the `nr_zone_` counters, the `numa_` counters, the
/// threshold of the counters (they are exact) and `node_unreclaimable`.
///
/// # Errors
///
/// Those of `out`.
pub fn zoneinfo<P: Platform>(memory: &Memory<P>, out: &mut impl Write) -> fmt::Result {
    let frames = memory.parts().frames();
    for node in (0..memory.platform().node_count()).filter_map(NodeId::new) {
        let mut is_first = true;
        for kind in ZoneKind::ALL {
            let id = ZoneId::new(node, kind);
            let zone = frames.reports().zone_report(id);
            zone_name(&zone, out)?;
            writeln!(out)?;
            if zone.present > 0 && core::mem::take(&mut is_first) {
                out.write_str("  per-node stats\n")?;
                for (list, pages) in LruList::ALL.iter().zip(lists_by_age(memory, Some(node))) {
                    writeln!(out, "      nr_{:<9} {pages}", list.name())?;
                }
            }
            levels(&zone, out)?;
            if zone.present > 0 {
                counters(&zone, out)?;
                out.write_str("  pagesets\n")?;
                for pageset in frames.reports().pcp_reports(id) {
                    write_pageset(&pageset, out)?;
                }
                writeln!(out, "  start_pfn:           {}", zone.span.start().0)?;
            }
        }
    }
    Ok(())
}

/// Free frames, and watermarks.
fn levels(zone: &ZoneReport, out: &mut impl Write) -> fmt::Result {
    writeln!(out, "  pages free     {}", zone.free + zone.pcp)?;
    let marks = zone.watermarks;
    for (name, pages) in [
        ("boost", marks.boost),
        ("min", marks.min),
        ("low", marks.low + marks.boost),
        ("high", marks.high + marks.boost),
        ("spanned", zone.span.len()),
        ("present", zone.present),
        ("managed", zone.managed),
    ] {
        writeln!(out, "        {name:<8} {pages}")?;
    }
    out.write_str("        protection: (")?;
    for (place, kind) in ZoneKind::ALL.into_iter().enumerate() {
        let separator = if place > 0 { ", " } else { "" };
        let reserve = if kind > zone.kind { zone.lowmem_reserve } else { 0 };
        write!(out, "{separator}{reserve}")?;
    }
    out.write_str(")\n")
}

fn counters(zone: &ZoneReport, out: &mut impl Write) -> fmt::Result {
    writeln!(out, "      nr_free_pages {}", zone.free + zone.pcp)?;
    writeln!(out, "      nr_free_pages_blocks {}", zone.free_in_page_blocks())
}

fn write_pageset(pageset: &PcpReport, out: &mut impl Write) -> fmt::Result {
    writeln!(out, "    cpu: {}", pageset.cpu)?;
    for (name, pages) in [
        ("count:", pageset.count + pageset.returned),
        ("high:", pageset.high),
        ("batch:", pageset.batch),
        ("high_min:", pageset.high_bounds.0),
        ("high_max:", pageset.high_bounds.1),
    ] {
        writeln!(out, "              {name:<9} {pages}")?;
    }
    Ok(())
}

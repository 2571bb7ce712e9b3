//! `/proc/slabinfo`.

use crate::memory::Memory;
use core::fmt::{self, Write};
use quire_arch::Platform;
use quire_slab::cache_reports;

/// Writes `/proc/slabinfo`: a line for each slab cache, the newest first.
///
/// The columns have the meaning that they had with Linux's allocator of that design (SLAB; J. Bonwick,
/// "Magazines and Vmem", 2001); its successor SLUB prints zeros for the tunables:
/// - `active_objs` are those in use, with those that are unlinked but not yet free for lock-free readers'
///   sake;
/// - `limit` is the most free objects that a CPU keeps, `batchcount` how many move at once, and
///   `sharedfactor` the most batches in the depot that all CPUs share;
/// - `active_slabs` are those that some cache's user or a CPU needs, `sharedavail` the objects in the depot.
///
/// # Errors
///
/// Those of `out`.
pub fn slabinfo<P: Platform>(memory: &Memory<P>, out: &mut impl Write) -> fmt::Result {
    out.write_str(
        "slabinfo - version: 2.1\n\
         # name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> \
         : tunables <limit> <batchcount> <sharedfactor> \
         : slabdata <active_slabs> <num_slabs> <sharedavail>\n",
    )?;
    for cache in cache_reports(memory.parts().frames()) {
        let active = cache.in_use + cache.retired;
        write!(out, "{:<17} {active:>6} {:>6} {:>6} ", cache.name, cache.objects, cache.object_bytes)?;
        write!(out, "{:>4} {:>4} ", cache.objects_per_slab, cache.order.pages())?;
        write!(out, ": tunables {:>4} {:>4} {:>4} ", cache.front_limit, cache.batch, cache.depot_limit)?;
        let (active, slabs, shared) = (cache.active_slabs, cache.slabs, cache.in_depot);
        writeln!(out, ": slabdata {active:>6} {slabs:>6} {shared:>6}")?;
    }
    Ok(())
}

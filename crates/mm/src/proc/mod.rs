//! Texts in the format of Linux's `/proc` and debugfs, so that existing tools work.
//!
//! Layout, names, widths and the order of lines are those of Linux 6.18. Lines without figures are left out;
//! each text lists them. On a busy machine a text is not a consistent snapshot, as in Linux.
//!
//! **Frames on per-CPU lists** are free: MemFree, `nr_free_pages` and zoneinfo's `pages free` count them.
//! buddyinfo and pagetypeinfo show the zones' own lists, as on Linux. What they show, times the size of each
//! block, and the `count` of zoneinfo's pagesets add up to `nr_free_pages` (page blocks of type Isolate are
//! shown but are not free).

mod buddyinfo;
mod extfrag;
mod huge;
mod lock_stat;
mod maps;
mod memcg;
mod meminfo;
mod mm_stat;
mod oom_score;
mod pagemap;
mod pagetypeinfo;
mod slabinfo;
mod smaps;
mod status;
mod swaps;
mod vmstat;
mod zoneinfo;

pub use buddyinfo::buddyinfo;
pub use extfrag::{extfrag_index, unusable_index};
pub use huge::HugeFile;
pub use lock_stat::lock_stat;
pub use maps::{maps, maps_line};
pub use memcg::memcg_file;
pub use meminfo::meminfo;
pub use mm_stat::mm_stat;
pub use oom_score::oom_score;
pub use pagemap::pagemap_entry;
pub use pagetypeinfo::pagetypeinfo;
pub use slabinfo::slabinfo;
pub use smaps::{smaps, vm_flags};
pub use status::status;
pub use swaps::swaps;
pub use vmstat::vmstat;
pub use zoneinfo::zoneinfo;

/// For the project's own tests and tools.
#[doc(hidden)]
pub use quire_space::SMAPS_MNEMONICS;

use crate::memory::Memory;
use core::fmt::{self, Write};
use quire_arch::{NodeId, Platform};
use quire_frame::ZoneReport;
use quire_memcg::{LruList, MemcgId};

/// Writes what each line of buddyinfo, and each zone's part of other texts, begins with.
fn zone_name(zone: &ZoneReport, out: &mut impl Write) -> fmt::Result {
    write!(out, "Node {}, zone {:>8}", zone.node, zone.kind)
}

/// Frames of slab caches. All of them hold metadata that is in use while its owner is: none is reclaimable.
fn slab_pages<P: Platform>(memory: &Memory<P>) -> u64 {
    quire_slab::cache_reports(memory.parts().frames()).map(|cache| cache.pages).sum()
}

/// Pages on each LRU list, of all memcgs; on one node or on all.
fn lists_by_age<P: Platform>(memory: &Memory<P>, node: Option<NodeId>) -> [u64; LruList::COUNT] {
    let memcgs = memory.parts().memcgs();
    memcgs.folios().take_in(None);
    let Some(node) = node else { return memcgs.folios().subtree_sizes(MemcgId::ROOT) };
    let mut sums = [0; LruList::COUNT];
    memcgs.tree().for_each_in_subtree(MemcgId::ROOT, |memcg| {
        for (sum, pages) in sums.iter_mut().zip(memcgs.folios().sizes(memcg, node)) {
            *sum += pages;
        }
    });
    sums
}

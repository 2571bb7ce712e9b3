//! `/proc/vmstat`.

use super::{lists_by_age, slab_pages};
use crate::memory::Memory;
use core::fmt::{self, Write};
use quire_arch::{Order, PAGE_SIZE, Platform};
use quire_frame::VmEvent;
use quire_memcg::LruList;

/// Writes `/proc/vmstat`. Linux's counters come first, under its names and in its order; then Quire's own
/// ([`VmEvent`] says which these are).
///
/// # Errors
///
/// Those of `out`.
pub fn vmstat<P: Platform>(memory: &Memory<P>, out: &mut impl Write) -> fmt::Result {
    let frames = memory.parts().frames();
    let (mut free, mut free_blocks) = (0, 0);
    for zone in frames.reports().zone_reports() {
        free += zone.free + zone.pcp;
        free_blocks += zone.free_in_page_blocks();
    }
    writeln!(out, "nr_free_pages {free}")?;
    writeln!(out, "nr_free_pages_blocks {free_blocks}")?;
    for (list, pages) in LruList::ALL.iter().zip(lists_by_age(memory, None)) {
        writeln!(out, "nr_{} {pages}", list.name())?;
    }
    writeln!(out, "nr_slab_unreclaimable {}", slab_pages(memory))?;
    // Linux counts these per node, among the current values.
    let (of_nodes, of_machine) = VmEvent::ALL.split_at(VmEvent::Pswpin as usize);
    events(memory, of_nodes, out)?;
    let (mut anonymous, mut mapped) = (0, 0);
    memory.for_each_resident(|_, resident| {
        anonymous += resident.anonymous / PAGE_SIZE;
        mapped += (resident.file + resident.shmem) / PAGE_SIZE;
    });
    let files = memory.file_totals();
    let swap_cached = memory.parts().swap().devices().cached_pages();
    // As in Linux, those of the swap cache are among them.
    let cached = files.cached + swap_cached;
    writeln!(out, "nr_anon_pages {anonymous}\nnr_mapped {mapped}\nnr_file_pages {cached}")?;
    writeln!(out, "nr_dirty {}\nnr_writeback {}\nnr_shmem {}", files.dirty, files.writeback, files.shmem)?;
    writeln!(out, "nr_shmem_hugepages {}", files.shmem_huge / Order::PMD.pages())?;
    writeln!(out, "nr_shmem_pmdmapped {}", frames.events().shmem_pmd_mapped())?;
    writeln!(out, "nr_file_hugepages {}", files.huge / Order::PMD.pages())?;
    writeln!(out, "nr_file_pmdmapped {}", frames.events().file_pmd_mapped())?;
    writeln!(out, "nr_anon_transparent_hugepages {}", frames.events().pmd_mapped())?;
    writeln!(out, "nr_swapcached {swap_cached}")?;
    events(memory, of_machine, out)
}

fn events<P: Platform>(memory: &Memory<P>, events: &[VmEvent], out: &mut impl Write) -> fmt::Result {
    let counted = memory.parts().frames().events();
    events.iter().try_for_each(|&event| writeln!(out, "{} {}", event.name(), counted.sum(event)))
}

//! `/proc/meminfo`.

use super::{lists_by_age, slab_pages};
use crate::memory::Memory;
use core::fmt::{self, Write};
use quire_arch::{Order, PAGE_SIZE, Platform};
use quire_memcg::LruList;

/// Writes the lines of `/proc/meminfo` for which there are figures. Frames on per-CPU lists count as free; a
/// page that several spaces map counts in AnonPages or Mapped for each. Before the first swap device
/// anonymous pages are on no LRU list, and count in none of `Active` to `Unevictable`. Only mlocked pages
/// are unevictable.
///
/// # Errors
///
/// Those of `out`.
pub fn meminfo<P: Platform>(memory: &Memory<P>, out: &mut impl Write) -> fmt::Result {
    let totals = memory.parts().frames().reports().totals();
    let slab = slab_pages(memory);
    let (mut anonymous, mut mapped) = (0, 0);
    memory.for_each_resident(|_, resident| {
        anonymous += resident.anonymous / PAGE_SIZE;
        mapped += (resident.file + resident.shmem) / PAGE_SIZE;
    });
    let files = memory.file_totals();
    let events = memory.parts().frames().events();
    let pmd_mapped = [events.pmd_mapped(), events.file_pmd_mapped(), events.shmem_pmd_mapped()]
        .map(|folios| folios * Order::PMD.pages());
    let lists = lists_by_age(memory, None);
    let list = |list: LruList| lists[list as usize];
    let (inactive_anon, active_anon) = (list(LruList::InactiveAnon), list(LruList::ActiveAnon));
    let (inactive_file, active_file) = (list(LruList::InactiveFile), list(LruList::ActiveFile));
    let unevictable = list(LruList::Unevictable);
    let swap = memory.parts().swap();
    // Of the compressed caches: their RAM, and the uncompressed size of their pages.
    let (mut compressed, mut original) = (0_u64, 0_u64);
    for device in swap.devices().reports().map(|report| report.device).filter(|device| device.is_cache) {
        // The figures of a device may be the embedder's.
        compressed = compressed.saturating_add(device.used_bytes / PAGE_SIZE);
        original = original.saturating_add(device.stored_pages);
    }
    for (name, pages) in [
        ("MemTotal:", totals.managed),
        ("MemFree:", totals.free),
        ("Cached:", files.cached),
        ("SwapCached:", swap.devices().cached_pages()),
        ("Active:", active_anon + active_file),
        ("Inactive:", inactive_anon + inactive_file),
        ("Active(anon):", active_anon),
        ("Inactive(anon):", inactive_anon),
        ("Active(file):", active_file),
        ("Inactive(file):", inactive_file),
        ("Unevictable:", unevictable),
        ("Mlocked:", unevictable),
        ("SwapTotal:", swap.devices().total_slots()),
        ("SwapFree:", swap.devices().free_slots()),
        ("Zswap:", compressed),
        ("Zswapped:", original),
        ("Dirty:", files.dirty),
        ("Writeback:", files.writeback),
        ("AnonPages:", anonymous),
        ("Mapped:", mapped),
        ("Shmem:", files.shmem),
        ("Slab:", slab),
        ("SUnreclaim:", slab),
        ("Committed_AS:", memory.parts().commit().promised() + files.promised),
        ("AnonHugePages:", pmd_mapped[0]),
        ("ShmemHugePages:", files.shmem_huge),
        ("ShmemPmdMapped:", pmd_mapped[2]),
        ("FileHugePages:", files.huge),
        ("FilePmdMapped:", pmd_mapped[1]),
    ] {
        writeln!(out, "{:<16}{:>8} kB", name, pages.saturating_mul(PAGE_SIZE >> 10))?;
    }
    Ok(())
}

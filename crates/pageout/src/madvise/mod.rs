//! `madvise` on resident pages: MADV_COLD, MADV_PAGEOUT, MADV_FREE.

mod cold;
mod free;

pub use cold::{Ageing, Cold};
pub use free::LazyFree;

use crate::unmap::{Unmapped, unmap_cached};
use crate::unmap_batch::UnmapBatch;
use core::ops::ControlFlow;
use core::ptr;
use quire_arch::{LeafFlags, Order, Pfn, Platform};
use quire_file::ShmemPages;
use quire_frame::FrameFlags;
use quire_pagetable::{HugeSlot, Tables, WalkStep, Walker};
use quire_thp::Thp;
use quire_vma::{Mapped, Rmap, Vma};

/// Splits a folio that no other process maps, and drops the reference to it. One that others map, or that
/// cannot be split, is skipped.
fn split_own<P: Platform>(thp: Thp<'_, P>, tables: &Tables<'_, P>, head: Pfn) {
    let own = tables.memory().frames().known(head).word().flags().contains(FrameFlags::ANONYMOUS_EXCLUSIVE);
    if own || !thp.is_mapped_elsewhere(head, tables.space()) {
        let _ = thp.split_held(head, Order::ZERO, false);
    }
    tables.memory().memcgs().folios().release_folio(head);
}

/// Splits a folio of shared memory that no other process maps into pages, which unmaps all of it, as in
/// Linux: they stay cached. Drops the reference to it. One that others map, hold or have locked is skipped.
fn split_own_shared<P: Platform>(
    (shmem, rmap): (ShmemPages<'_, P, Vma>, Rmap<'_, P>),
    tables: &Tables<'_, P>,
    head: Pfn,
) {
    let memory = tables.memory();
    let order = memory.frames().known(head).word().order();
    if let Some(guard) = memory.frames().folios().try_lock_folio(head) {
        let elsewhere = |mapped: &Mapped<'_, P>| {
            let is_elsewhere = !ptr::eq(mapped.tables.space(), tables.space())
                && Walker::new(&mapped.tables).maps_some(mapped.range, (head, order));
            if is_elsewhere { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        // SAFETY: the folio is locked, and the caller has a reference.
        let walked = unsafe { rmap.try_walk_locked(head, elsewhere) };
        if matches!(walked, Some(ControlFlow::Continue(()))) && shmem.leaves_swap_cache(head) {
            let mut batch = UnmapBatch::new(rmap);
            let is_unmapped = unmap_cached(&mut batch, head) == Unmapped::All;
            // A split is of what no TLB has.
            batch.flush();
            if is_unmapped {
                let _ = shmem.split(head, None);
            }
        }
        drop(guard);
    }
    memory.memcgs().folios().release_folio(head);
}

/// Only a part of a PMD leaf is in the range: the leaf is split if no other process maps the folio, else
/// skipped, as the huge zero page is.
fn cut_own<P: Platform>(tables: &Tables<'_, P>, slot: HugeSlot) -> WalkStep {
    let pin = tables.pin();
    let locked = tables.lock_slot(&pin, slot);
    let Some(leaf) = Tables::<P>::huge_leaf(&locked, slot) else { return WalkStep::Again };
    let alone = !leaf.flags.contains(LeafFlags::SPECIAL)
        && tables.memory().frames().folios().lock_head(leaf.pfn).maps() == Tables::<P>::huge_pages();
    if alone { WalkStep::Split } else { WalkStep::Next }
}

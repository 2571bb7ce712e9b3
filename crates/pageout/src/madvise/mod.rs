//! `madvise` on resident pages: MADV_COLD, MADV_PAGEOUT, MADV_FREE.

mod cold;
mod free;

pub use cold::{Ageing, Cold};
pub use free::LazyFree;

use quire_arch::{LeafFlags, Order, Pfn, Platform};
use quire_frame::FrameFlags;
use quire_pagetable::{HugeSlot, Tables, WalkStep};
use quire_thp::Thp;

/// Splits a folio that no other process maps, and drops the reference to it. One that others map, or that
/// cannot be split, is skipped.
fn split_own<P: Platform>(thp: Thp<'_, P>, tables: &Tables<'_, P>, head: Pfn) {
    let own = tables.memory().frames().known(head).word().flags().contains(FrameFlags::ANONYMOUS_EXCLUSIVE);
    if own || !thp.is_mapped_elsewhere(head, tables.space()) {
        let _ = thp.split_held(head, Order::ZERO, false);
    }
    tables.memory().memcgs().folios().release_folio(head);
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

//! Unmapping large leaves.

use super::{Unmapper, Zap, make_absent};
use crate::huge::HugeLeaves;
use crate::huge_slot::HugeSlot;
use crate::residency::Residency;
use crate::table::{LockedTable, Tables};
use crate::walk::WalkStep;
use quire_arch::{Leaf, LeafFlags, Pfn, Pin, Platform, VirtRange};
use quire_memcg::UnevictableFolios;

impl<P: Platform> Unmapper<'_, P> {
    /// As [`zap`](Self::zap), for a part of what a large leaf maps.
    pub(super) fn zap_in_huge(&mut self, slot: HugeSlot, part: VirtRange, what: Zap) -> WalkStep {
        let tables = self.gather.tables;
        let range = tables.slot_range(slot);
        if part != range {
            // No fault can happen in the rest either: its mapping was cut, so it is write-locked.
            if what == Zap::Mapping
                && !self.is_cached_leaf(slot)
                && HugeLeaves::new(&tables).make_huge_absent(slot)
            {
                self.gather.add_stale(range);
                self.gather.add_split(slot, part);
                return WalkStep::Next;
            }
            return WalkStep::Split;
        }
        if self.gather.is_full() {
            if what == Zap::Mapping {
                // One flush for all: it is taken out after it.
                let pin = tables.pin();
                let locked = tables.lock_slot(&pin, slot);
                make_absent(&locked, slot.index..slot.index + 1);
                self.gather.add_stale(range);
                self.gather.add_absent(range);
                return WalkStep::Next;
            }
            self.gather.relieve();
        }
        if self.zap_huge(slot, what) { WalkStep::Next } else { WalkStep::Again }
    }

    /// Whether the large leaf at `slot` maps the cache of a file: a split empties it.
    fn is_cached_leaf(&self, slot: HugeSlot) -> bool {
        let tables = self.gather.tables;
        let pin = tables.pin();
        let leaf = Tables::<P>::huge_leaf(&tables.lock_slot(&pin, slot), slot);
        leaf.is_some_and(|leaf| tables.maps_cached(leaf))
    }

    /// Empties the large leaf at `slot`; the gather is not full. Returns false if there is none any
    /// more.
    pub(super) fn zap_huge(&mut self, slot: HugeSlot, what: Zap) -> bool {
        let tables = self.gather.tables;
        let pin = tables.pin();
        let locked = tables.lock_slot(&pin, slot);
        if Tables::<P>::huge_leaf(&locked, slot).is_none() {
            return false;
        }
        if let Some(table) = self.take_huge(&pin, &locked, slot, what) {
            tables.space().residency.table_gone();
            self.gather.add_empty_table(table);
        }
        true
    }

    /// The same, with the PMD table locked. Returns the table that was deposited for the leaf; it stays
    /// counted as one of the space.
    pub(crate) fn take_huge(
        &mut self,
        pin: &Pin<'_, P>,
        locked: &LockedTable<'_, P>,
        slot: HugeSlot,
        what: Zap,
    ) -> Option<Pfn> {
        let tables = self.gather.tables;
        let leaf = Tables::<P>::huge_leaf(locked, slot)?;
        // Without the mmap lock mprotect may not have flushed a leaf that it has made unusable.
        if leaf.flags.contains(LeafFlags::READ) || matches!(what, Zap::Cached { .. }) {
            self.gather.add_stale(tables.slot_range(slot));
        }
        if leaf.flags.contains(LeafFlags::SPECIAL) {
            locked.take(slot.index);
            self.gather.add_huge_zero(leaf.pfn);
        } else {
            self.zap_whole_folio(pin, (locked, slot), leaf, what);
        }
        HugeLeaves::new(&tables).withdraw(slot)
    }

    /// Empties the leaf at `slot`, which maps a folio.
    fn zap_whole_folio(
        &mut self,
        pin: &Pin<'_, P>,
        (locked, slot): (&LockedTable<'_, P>, HugeSlot),
        leaf: Leaf,
        what: Zap,
    ) {
        let tables = self.gather.tables;
        let pages = Tables::<P>::huge_pages();
        let folio = tables.memory().frames().folios().lock_head(leaf.pfn);
        locked.take(slot.index);
        if what.munlocks() {
            // If its file keeps it in memory, reclaim puts it back when it comes to it.
            UnevictableFolios::of(tables.memory().memcgs().folios()).munlock(pin, &folio, || false);
        }
        if matches!(what, Zap::Cached { .. }) && folio.folio().is_in_file_cache() {
            HugeLeaves::new(&tables).uncount_whole_map(pin, leaf.pfn);
            Self::count_cached_gone(&folio, pages);
            self.gather.count_gone(Residency::of(folio.folio().kind(), u64::from(pages)));
            return;
        }
        let whole = folio.maps() == pages && !folio.may_be_mapped_by_name();
        if whole {
            let _ = folio.remove_maps(pages);
            tables.memory().memcgs().splits().undefer_split(&folio);
        }
        let (head, order, kind) = (folio.folio().head(), folio.folio().order(), folio.folio().kind());
        drop(folio);
        HugeLeaves::new(&tables).uncount_whole_map(pin, head);
        self.gather.count_gone(Residency::of(kind, u64::from(pages)));
        if whole {
            self.gather.add_folio(head, order);
        } else {
            self.gather.add_run(leaf.pfn, pages);
        }
    }
}

//! The end of an unmapping: the flush, and what waits for it.

use super::{Unmapper, Zap};
use crate::huge::HugeLeaves;
use crate::huge_slot::HugeSlot;
use crate::residency::Residency;
use crate::table::Tables;
use crate::walk::{WalkEntry, WalkStep, Walker};
use quire_arch::{Entry, Leaf, LeafFlags, Level, PagingFormat, Platform, VirtRange};
use quire_frame::VmEvent;
use quire_sync::atomic::raw::Ordering;

impl<P: Platform> Unmapper<'_, P> {
    /// Sets aside the pending flush, so that additions to it can be detected; see
    /// [`settle_since`](Self::settle_since).
    pub fn set_aside(&mut self) -> Option<VirtRange> {
        if self.gather.is_unsettled() {
            self.settle();
        }
        self.gather.take_stale()
    }

    /// Flushes, as [`settle`](Self::settle), if something was added since `aside` was set aside. Otherwise
    /// the flush stays pending.
    pub fn settle_since(&mut self, aside: Option<VirtRange>) {
        let came = self.gather.has_stale() || self.gather.has_absent();
        if let Some(range) = aside {
            self.gather.add_stale(range);
        }
        if came {
            self.settle();
        }
    }

    /// Flushes, and removes from the tables the entries that were made unusable.
    pub fn settle(&mut self) {
        let tables = self.gather.tables;
        {
            let pin = tables.pin();
            self.gather.flush(&pin);
            self.gather.drop_noted();
        }
        if let Some(range) = self.gather.take_absent() {
            self.take_out_absent(range);
            self.gather.drop_noted();
        }
        while let Some((slot, part)) = self.gather.pop_split() {
            self.cut_huge(slot, part);
        }
        while let Some(range) = self.gather.pop_restored() {
            self.restore(range);
        }
    }

    /// Flushes the TLBs and frees everything. Cannot fail and allocates nothing.
    // By reference: an unmapper is large, and one that is passed by value is copied, which costs 130
    // instructions.
    pub fn finish(&mut self) {
        let tables = self.gather.tables;
        if self.gather.holds_nothing() {
            if self.gather.has_counted() {
                self.gather.count(&tables.pin());
            }
            self.gather.drop_cached();
            return;
        }
        if self.gather.unlinked.is_none() && !self.gather.is_unsettled() && !self.gather.has_many() {
            // Most often nothing else waits for the flush.
            let pin = tables.pin();
            self.gather.flush(&pin);
            return self.gather.free_all(pin);
        }
        self.settle();
        self.gather.free_many();
        while let Some(table) = self.gather.pop_unlinked() {
            self.free_detached_table(table);
        }
        self.gather.free_all(tables.pin());
    }

    /// Removes the leaves that were made unusable. The flush is done, and no fault can come.
    fn take_out_absent(&mut self, range: VirtRange) {
        let tables = self.gather.tables;
        Walker::new(&tables).walk(range, &mut |place, part| {
            let table = match place {
                WalkEntry::Table(table) => table,
                WalkEntry::Huge(slot) => {
                    self.gather.make_room_flushed();
                    self.zap_huge(slot, Zap::Mapping);
                    return WalkStep::Next;
                }
            };
            let pin = tables.pin();
            let mut locked = tables.lock(&pin, table, Level::PTE);
            let mut gone = Residency::default();
            for (index, _) in Tables::<P>::pages(part) {
                if self.gather.is_full_of_slots() {
                    drop(locked);
                    self.gather.drop_cached();
                    locked = tables.lock(&pin, table, Level::PTE);
                }
                match locked.take(index) {
                    Entry::Leaf(Leaf { pfn, flags }) if !flags.contains(LeafFlags::SPECIAL) => {
                        gone.add(tables.memory().frames().folio(pfn).kind(), 1);
                        self.gather.unmap_flushed(pfn, 1);
                    }
                    Entry::Swap(entry) => self.drop_swapped(entry, 1),
                    _ => {}
                }
            }
            self.gather.count_gone(gone);
            WalkStep::Next
        });
    }

    /// Puts the deposited table in the place of the leaf at `slot`, which was
    /// [made absent](HugeLeaves::make_huge_absent) and flushed, with an entry for each page that does not lie
    /// in `part`; those are unmapped.
    fn cut_huge(&mut self, slot: HugeSlot, part: VirtRange) {
        let tables = self.gather.tables;
        let pin = tables.pin();
        let locked = tables.lock_slot(&pin, slot);
        let Some(leaf) = Tables::<P>::huge_leaf(&locked, slot) else {
            // Another thread split the folio for another mapping, and with it this leaf: its entries are as
            // unusable as it was.
            drop(locked);
            self.take_out_absent(part);
            self.restore(tables.slot_range(slot));
            return;
        };
        let leaves = HugeLeaves::new(&tables);
        let Some(table) = leaves.withdraw(slot) else { return };
        let folio = leaves.lock_head_of(leaf);
        let live = leaves.fill_around(table, Leaf { flags: leaf.flags | LeafFlags::READ, ..leaf }, part);
        tables.memory().frames().known(table).as_table().set_live(live);
        if let Some(folio) = &folio {
            leaves.uncount_whole_map(&pin, folio.folio().head());
        }
        // Release, as when a leaf is split.
        let linked = P::Paging::encode(Entry::Table(table), Level::PMD);
        locked.entries[slot.index].store(linked, Ordering::Release);
        match folio {
            Some(folio) => {
                self.gather.count_gone(Residency::of(folio.folio().kind(), part.pages()));
                self.gather.unmap_locked(folio, part.pages() as u32);
            }
            None => self.gather.add_huge_zero(leaf.pfn),
        }
        tables.memory().frames().events().add(&pin, VmEvent::ThpSplitPmd, 1);
    }

    /// Makes the leaves of tables in `range` usable again that were made unusable, all of them, before a
    /// flush that is done. No fault can happen.
    fn restore(&self, range: VirtRange) {
        let tables = self.gather.tables;
        Walker::new(&tables).walk(range, &mut |place, part| {
            if let WalkEntry::Table(table) = place {
                let pin = tables.pin();
                let locked = tables.lock(&pin, table, Level::PTE);
                for (index, _) in Tables::<P>::pages(part) {
                    locked.widen(index, LeafFlags::READ);
                }
            }
            WalkStep::Next
        });
    }
}

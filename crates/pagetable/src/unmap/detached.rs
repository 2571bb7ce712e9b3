//! Tables that were unlinked with their entries.

use super::Unmapper;
use crate::huge::HugeLeaves;
use crate::huge_slot::HugeSlot;
use crate::residency::Residency;
use crate::table::Tables;
use core::sync::atomic::Ordering;
use quire_arch::{Entry, Leaf, LeafFlags, Level, PagingFormat, Pfn, Platform};

impl<P: Platform> Unmapper<'_, P> {
    /// Reads a table that was unlinked with its entries, after the flush: what it maps is unmapped, and it
    /// and all tables below it are gathered.
    pub(super) fn free_detached_table(&mut self, table: Pfn) {
        let tables = self.gather.tables;
        let level = tables.level_of(table);
        if tables.is_empty(table) {
            // What it led to has moved, or was unmapped before.
        } else if level == Level::PTE {
            self.free_detached_bottom(table);
        } else {
            let mut live = tables.memory().frames().known(table).as_table().live();
            for (index, slot) in tables.entries(table)[..P::Paging::entries(level)].iter().enumerate() {
                let raw = slot.load(Ordering::Relaxed);
                if raw == 0 {
                    continue;
                }
                match P::Paging::decode(raw, level) {
                    Entry::Table(child) => self.free_detached_table(child),
                    Entry::Leaf(leaf) => self.free_detached_leaf(HugeSlot { table, index }, leaf),
                    _ => {}
                }
                // Few tables are full, and most of what is unmapped is small.
                live = live.saturating_sub(1);
                if live == 0 {
                    break;
                }
            }
        }
        tables.space().residency.table_gone();
        self.gather.add_empty_table(table);
        self.gather.free_batch();
    }

    fn free_detached_leaf(&mut self, slot: HugeSlot, leaf: Leaf) {
        let tables = self.gather.tables;
        let pin = tables.pin();
        if leaf.flags.contains(LeafFlags::SPECIAL) {
            self.gather.add_huge_zero(leaf.pfn);
        } else {
            let folio = tables.memory().frames().folios().lock_head(leaf.pfn);
            self.gather.count_gone(Residency::of(folio.folio().kind(), u64::from(Tables::<P>::huge_pages())));
            HugeLeaves::new(&tables).uncount_whole_map(&pin, leaf.pfn);
            self.gather.unmap_locked(folio, Tables::<P>::huge_pages());
        }
        if let Some(table) = HugeLeaves::new(&tables).withdraw(slot) {
            tables.space().residency.table_gone();
            self.gather.add_empty_table(table);
        }
    }

    fn free_detached_bottom(&mut self, table: Pfn) {
        let tables = self.gather.tables;
        // Pinned, since it spins for head locks.
        let _pin = tables.pin();
        let entries = tables.entries(table);
        let mut live = tables.memory().frames().known(table).as_table().live() as usize;
        let mut gone = Residency::default();
        let end = P::Paging::entries(Level::PTE);
        let mut index = 0;
        while live > 0 && index < end {
            let raw = entries[index].load(Ordering::Relaxed);
            if raw == 0 {
                index += 1;
                continue;
            }
            let pages = match P::Paging::decode(raw, Level::PTE) {
                Entry::Leaf(Leaf { pfn, flags }) if !flags.contains(LeafFlags::SPECIAL) => {
                    let folio = tables.memory().frames().folios().lock_head(pfn);
                    let end = if flags.contains(LeafFlags::READ) { end } else { index + 1 };
                    let pages = tables.run_length(entries, (index, end), (raw, pfn), &folio);
                    tables.fetch_ahead(entries, index, pages);
                    gone.add(folio.folio().kind(), pages as u64);
                    self.gather.unmap_locked(folio, pages as u32);
                    if self.gather.is_full_of_slots() {
                        self.gather.drop_cached();
                    }
                    pages
                }
                Entry::Swap(entry) => {
                    let pages = Tables::<P>::swap_run(entries, (index, end), entry);
                    self.drop_swapped(entry, pages);
                    self.gather.drop_cached();
                    pages
                }
                _ => 1,
            };
            index += pages;
            live = live.saturating_sub(pages);
        }
        self.gather.count_gone(gone);
    }
}

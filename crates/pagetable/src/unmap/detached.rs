//! Tables that were unlinked with their entries.

use super::Unmapper;
use crate::huge::HugeLeaves;
use crate::huge_slot::HugeSlot;
use crate::residency::Residency;
use crate::table::Tables;
use core::mem;
use core::ops::Range;
use core::sync::atomic::Ordering;
use quire_arch::{Entry, Leaf, LeafFlags, Level, PagingFormat, Pfn, Pin, Platform};
use quire_memcg::SinglesToFree;
use quire_sync::atomic::raw::AtomicU64;

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
            let entries = &tables.entries(table)[..P::Paging::entries(level)];
            let mut live = tables.memory().frames().known(table).as_table().live();
            for part in self.parts_of(table, level) {
                let mut index = part.start;
                // Few tables are full, and most of what is unmapped is small.
                let entries = &entries[..part.end];
                while live > 0 {
                    index = next_live(entries, index);
                    // Not the other part, which is freed already: a child is freed once.
                    let Some(slot) = entries.get(index) else { break };
                    match P::Paging::decode(slot.load(Ordering::Relaxed), level) {
                        Entry::Table(child) => self.free_detached_table(child),
                        Entry::Leaf(leaf) => self.free_detached_leaf(HugeSlot { table, index }, leaf),
                        _ => {}
                    }
                    live -= 1;
                    index += 1;
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

    /// The entries of an unlinked table in two parts, those first that are likely to be live: from where what
    /// was unmapped begins.
    fn parts_of(&self, table: Pfn, level: Level) -> [Range<usize>; 2] {
        let tables = self.gather.tables;
        let (from, end) = (self.gather.unlinked_from, P::Paging::entries(level));
        let start = tables.memory().frames().known(table).as_table().start();
        let is_here = P::Paging::table_range(start, level).contains(from);
        let first = if is_here { P::Paging::index(from, level) } else { 0 };
        [first..end, 0..first]
    }

    fn free_detached_bottom(&mut self, table: Pfn) {
        let tables = self.gather.tables;
        // Pinned, since it spins for head locks.
        let pin = tables.pin();
        let mut live = tables.memory().frames().known(table).as_table().live() as usize;
        let mut singles = SinglesToFree::new(tables.memory().memcgs().folios());
        let mut gone = Residency::default();
        for part in self.parts_of(table, Level::PTE) {
            live = self.free_detached_part(&pin, table, part, live, (&mut singles, &mut gone));
        }
        self.free_singles(&pin, &mut singles);
        self.gather.count_gone(gone);
    }

    /// Frees single pages of a table that was unlinked.
    fn free_singles(&mut self, pin: &Pin<'_, P>, singles: &mut SinglesToFree<'_, P>) {
        let gather = &mut self.gather;
        singles.free(pin, |pfn| {
            gather.counts.refuse_single();
            gather.unmap_flushed(pfn, 1);
            if gather.is_full_of_slots() {
                // One that is on no list reclaim would not find.
                gather.drop_cached();
            }
        });
    }

    /// Unmaps what these entries map, of which `live` are live, and returns how many are left.
    fn free_detached_part(
        &mut self,
        pin: &Pin<'_, P>,
        table: Pfn,
        part: Range<usize>,
        mut live: usize,
        (singles, gone): (&mut SinglesToFree<'_, P>, &mut Residency),
    ) -> usize {
        let tables = self.gather.tables;
        let entries = tables.entries(table);
        let mut index = part.start;
        // Single pages that went, and those of them that others map.
        let (mut unmapped, mut shared) = (0, 0);
        // Whether the last page was one of a larger folio: the next one is, most likely.
        let mut is_large = false;
        while live > 0 && index < part.end {
            let raw = entries[index].load(Ordering::Relaxed);
            if raw == 0 {
                index = next_live(&entries[..part.end], index + 1);
                continue;
            }
            if !is_large && P::Paging::is_present_leaf(raw, Level::PTE) {
                let mut next = index;
                let pages = entries[index..part.end].iter().map_while(|entry| {
                    let raw = entry.load(Ordering::Relaxed);
                    P::Paging::is_present_leaf(raw, Level::PTE).then(|| {
                        tables.fetch_ahead(entries, next, 1);
                        next += 1;
                        P::Paging::frame_of(raw)
                    })
                });
                let (went, others) = singles.unmap(pin, pages);
                if went > 0 {
                    unmapped += went;
                    shared += others;
                    index += went as usize;
                    live = live.saturating_sub(went as usize);
                    continue;
                }
                if singles.is_full() {
                    self.gather.counts.add_singles(unmapped, unmapped - shared);
                    gone.anonymous += mem::take(&mut unmapped);
                    shared = 0;
                    self.free_singles(pin, singles);
                    continue;
                }
            }
            let pages = match P::Paging::decode(raw, Level::PTE) {
                Entry::Leaf(Leaf { pfn, flags }) if !flags.contains(LeafFlags::SPECIAL) => {
                    let folio = tables.memory().frames().folios().lock_head(pfn);
                    is_large = folio.folio().is_large();
                    let end = if flags.contains(LeafFlags::READ) { part.end } else { index + 1 };
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
                    let pages = Tables::<P>::swap_run(entries, (index, part.end), entry);
                    self.drop_swapped(entry, pages);
                    self.gather.drop_cached();
                    pages
                }
                _ => 1,
            };
            index += pages;
            live = live.saturating_sub(pages);
        }
        self.gather.counts.add_singles(unmapped, unmapped - shared);
        gone.anonymous += unmapped;
        live
    }
}

/// The first of `entries` from `index` on that is not empty, or their number.
#[inline]
fn next_live(entries: &[AtomicU64], mut index: usize) -> usize {
    const AT_ONCE: usize = 8;
    while let Some(entry) = entries.get(index) {
        if entry.load(Ordering::Relaxed) != 0 {
            return index;
        }
        index += 1;
        while index.is_multiple_of(AT_ONCE)
            && let Some(block) = entries.get(index..index + AT_ONCE)
            && block.iter().all(|entry| entry.load(Ordering::Relaxed) == 0)
        {
            index += AT_ONCE;
        }
    }
    entries.len()
}

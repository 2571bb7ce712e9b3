//! Tables that become empty while mappings cover them.
//!
//! Such a table is freed. Its count of live entries shows that it is empty, so no entry is read. It is freed
//! in two steps, neither of which holds two locks. Under its own lock it is found empty and marked dead, so
//! that nothing enters it any more. Then its entry is removed from the table above, which may be empty now.
//! The gather flushes its addresses, since a CPU may have cached the walk to it, and frees it after the
//! epoch.
//!
//! A table that a call empties without covering all that it is responsible for may lie at a border that the
//! program crosses again and again, or one of two that it uses in turn. So the last two such bottom tables
//! are *kept*, and the last one of each level above; they are freed when others take their place.

use super::{FreeableRange, Unmapper};
use crate::memory::TablesTechnique;
use crate::table::{Tables, parts};
use quire_arch::{Level, PagingFormat, Pfn, Platform, VirtAddr, VirtRange};
use quire_sync::atomic::raw::Ordering;

impl<P: Platform> Unmapper<'_, P> {
    /// Takes every empty table for a part of `range`, and each above it that becomes empty. A few
    /// are kept if they lie only partly in `hole`, in which nothing is mapped or the call has emptied
    /// all. The caller holds the mmap lock for writing; faults may run concurrently.
    pub fn free_empty(&mut self, range: VirtRange, hole: FreeableRange) {
        let tables = self.gather.tables;
        if tables.memory().techniques().tables == TablesTechnique::Free && !range.is_empty() {
            // Those above a table that is not empty are not, either.
            if Tables::<P>::is_in_one_table(range)
                && tables.find(range.start()).is_some_and(|table| !tables.is_empty(table))
            {
                return;
            }
            self.free_empty_below(tables.space().root(), P::Paging::root_level(), range, hole);
        }
    }

    fn free_empty_below(&mut self, table: Pfn, level: Level, range: VirtRange, hole: FreeableRange) {
        let tables = self.gather.tables;
        let Some(below) = level.down() else { return };
        for (index, part) in parts::<P::Paging>(range, level) {
            let raw = tables.entries(table)[index].load(Ordering::Acquire);
            let Some(child) = P::Paging::table_of(raw, level) else { continue };
            if below > Level::PTE {
                self.free_empty_below(child, below, part, hole);
            }
            // A look without the lock: a table that is filled in this moment is not empty, and no other
            // thread empties one in this moment.
            if !tables.is_empty(child) {
                continue;
            }
            if hole.covers_table::<P::Paging>(part.start(), below) {
                self.free_if_empty((table, index), (child, below), part.start());
            } else {
                self.keep(below, part.start());
            }
        }
    }

    /// Keeps the empty table at `level` for `addr`; the one that was kept longest is freed, if it is empty
    /// still.
    fn keep(&mut self, level: Level, addr: VirtAddr) {
        let tables = self.gather.tables;
        let start = P::Paging::table_range(addr, level).start();
        if let Some(before) = tables.space().kept.push(level, start) {
            self.free_kept_if_empty(level, before);
        }
    }

    /// Takes the kept tables for parts of `range`, if they are empty still. As for
    /// [`free_empty`](Self::free_empty); no fault can happen in the range.
    pub fn free_kept(&mut self, range: VirtRange) {
        let tables = self.gather.tables;
        let mut level = Level::PTE;
        while level < P::Paging::root_level() {
            let lies_in = |addr: VirtAddr| !P::Paging::table_range(addr, level).intersect(range).is_empty();
            while let Some(addr) = tables.space().kept.take(level, lies_in) {
                self.free_kept_if_empty(level, addr);
            }
            level = Level(level.0 + 1);
        }
    }

    /// Takes the bottom table for `addr`, if there is one and it is empty, whatever the technique: a large
    /// leaf may take its place. As for [`free_empty`](Self::free_empty).
    pub fn free_for_leaf(&mut self, addr: VirtAddr) {
        self.free_kept_if_empty(Level::PTE, addr);
    }

    /// Unlinks the table at `level` for `addr`, which was kept, if it still exists and is empty. What that
    /// leaves empty is kept in its place.
    fn free_kept_if_empty(&mut self, level: Level, addr: VirtAddr) {
        let tables = self.gather.tables;
        let above = Level(level.0 + 1);
        let Some(parent) = tables.find_table(addr, above) else { return };
        let index = P::Paging::index(addr, above);
        let raw = tables.entries(parent)[index].load(Ordering::Acquire);
        if let Some(child) = P::Paging::table_of(raw, above)
            && self.free_if_empty((parent, index), (child, level), addr)
            && above < P::Paging::root_level()
            && tables.memory().techniques().tables == TablesTechnique::Free
            && tables.is_empty(parent)
        {
            self.keep(above, addr);
        }
    }

    /// Unlinks `child`, a table for `addr`, from `parent`, if it is empty. Returns whether it
    /// was.
    fn free_if_empty(
        &mut self,
        (parent, index): (Pfn, usize),
        (child, level): (Pfn, Level),
        addr: VirtAddr,
    ) -> bool {
        let tables = self.gather.tables;
        {
            // Pinned for both steps: a fault that finds the table dead waits for the second.
            let pin = tables.pin();
            if !tables.lock(&pin, child, level).mark_dead_if_empty() {
                return false;
            }
            tables.lock(&pin, parent, Level(level.0 + 1)).take(index);
        }
        tables.space().residency.table_gone();
        self.gather.add_stale_table(P::Paging::table_range(addr, level));
        self.gather.count_empty_table();
        self.gather.add_empty_table(child);
        true
    }
}

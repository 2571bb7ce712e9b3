//! Unmapping: frees pages, and tables that become empty.
//!
//! A table that becomes empty while mappings cover it is freed too. Its count of live entries shows that it
//! is empty, so no entry is read. It is freed in two steps, neither of which holds two locks. Under its own
//! lock it is found empty and marked dead, so that nothing enters it any more. Then its entry is removed from
//! the table above, which may be empty now. The gather flushes its addresses, since a CPU may have cached the
//! walk to it, and frees it after the epoch.
//!
//! A table that a call empties without covering all that it is responsible for may lie at a border that the
//! program crosses again and again, or one of two that it uses in turn. So the last two such bottom tables
//! are *kept*, and the last one of each level above; they are freed when others take their place.

use super::zap::Zap;
use super::{Tables, TablesTechnique};
use crate::gather::Gather;
use quire_arch::{Entry, Level, PagingFormat, Pfn, Platform, VirtAddr, VirtRange};
use quire_sync::atomic::raw::Ordering;

/// The free gap around an unmapped range: from the end of the mapping below it to the start of the one above.
/// A table may be freed only if all that it covers lies in here.
#[derive(Clone, Copy, Debug)]
pub struct FreeableRange(pub VirtRange);

impl FreeableRange {
    /// Everything: for the exit of a space.
    pub fn everything() -> Self {
        Self(VirtRange::new(VirtAddr(0), VirtAddr(u64::MAX)))
    }

    fn covers_table<F: PagingFormat>(&self, addr: VirtAddr, level: Level) -> bool {
        self.0.covers(F::table_range(addr, level))
    }
}

impl<P: Platform> Tables<'_, P> {
    /// Takes all pages of `unmapped` and every table that covers part of it and lies wholly in `hole` into
    /// `gather`. The caller holds the mmap lock for writing; its mappings are gone, and nothing else is in
    /// the hole, so no fault can be filling these tables. Nothing is allocated and nothing fails.
    pub fn unmap(&self, unmapped: VirtRange, hole: FreeableRange, gather: &mut Gather<'_, P>) {
        if !unmapped.is_empty() {
            self.unmap_below(self.space.root(), P::Paging::root_level(), unmapped, hole, gather);
            self.free_empty(unmapped, hole, gather);
            gather.add_paged_out(unmapped);
        }
    }

    /// Takes every empty table for a part of `range`, and each above it that becomes empty, into `gather`. A
    /// few are kept if they lie only partly in `hole`, in which nothing is mapped or the call has emptied
    /// all. The caller holds the mmap lock for writing; faults may run concurrently.
    pub fn free_empty(&self, range: VirtRange, hole: FreeableRange, gather: &mut Gather<'_, P>) {
        if self.memory.techniques().tables == TablesTechnique::Free && !range.is_empty() {
            self.free_empty_below(self.space.root(), P::Paging::root_level(), range, hole, gather);
        }
    }

    fn free_empty_below(
        &self,
        table: Pfn,
        level: Level,
        range: VirtRange,
        hole: FreeableRange,
        gather: &mut Gather<'_, P>,
    ) {
        let Some(below) = level.down() else { return };
        for (index, part) in super::parts::<P::Paging>(range, level) {
            let raw = self.entries(table)[index].load(Ordering::Acquire);
            let Entry::Table(child) = P::Paging::decode(raw, level) else { continue };
            if below > Level::PTE {
                self.free_empty_below(child, below, part, hole, gather);
            }
            // A look without the lock: a table that is filled in this moment is not empty, and no other
            // thread empties one in this moment.
            if !self.is_empty(child) {
                continue;
            }
            if hole.covers_table::<P::Paging>(part.start(), below) {
                self.free_if_empty((table, index), (child, below), part.start(), gather);
            } else {
                self.keep(below, part.start(), gather);
            }
        }
    }

    /// Keeps the empty table at `level` for `addr`; the one that was kept longest is freed, if it is empty
    /// still.
    fn keep(&self, level: Level, addr: VirtAddr, gather: &mut Gather<'_, P>) {
        let start = P::Paging::table_range(addr, level).start();
        if let Some(before) = self.space.kept.push(level, start) {
            self.free_kept_if_empty(level, before, gather);
        }
    }

    /// Takes the kept tables for parts of `range` into `gather`, if they are empty still. As for
    /// [`free_empty`](Self::free_empty); no fault can happen in the range.
    pub fn free_kept(&self, range: VirtRange, gather: &mut Gather<'_, P>) {
        let mut level = Level::PTE;
        while level < P::Paging::root_level() {
            let lies_in = |addr: VirtAddr| !P::Paging::table_range(addr, level).intersect(range).is_empty();
            while let Some(addr) = self.space.kept.take(level, lies_in) {
                self.free_kept_if_empty(level, addr, gather);
            }
            level = Level(level.0 + 1);
        }
    }

    /// Unlinks the table at `level` for `addr`, which was kept, if it still exists and is empty. What that
    /// leaves empty is kept in its place.
    fn free_kept_if_empty(&self, level: Level, addr: VirtAddr, gather: &mut Gather<'_, P>) {
        let above = Level(level.0 + 1);
        let Some(parent) = self.find_table(addr, above) else { return };
        let index = P::Paging::index(addr, above);
        let raw = self.entries(parent)[index].load(Ordering::Acquire);
        if let Entry::Table(child) = P::Paging::decode(raw, above)
            && self.free_if_empty((parent, index), (child, level), addr, gather)
            && above < P::Paging::root_level()
            && self.is_empty(parent)
        {
            self.keep(above, addr, gather);
        }
    }

    /// Unlinks `child`, a table for `addr`, from `parent` into `gather`, if it is empty. Returns whether it
    /// was.
    fn free_if_empty(
        &self,
        (parent, index): (Pfn, usize),
        (child, level): (Pfn, Level),
        addr: VirtAddr,
        gather: &mut Gather<'_, P>,
    ) -> bool {
        {
            // Pinned for both steps: a fault that finds the table dead waits for the second.
            let pin = self.pin();
            if !self.lock(&pin, child, level).mark_dead_if_empty() {
                return false;
            }
            self.lock(&pin, parent, Level(level.0 + 1)).take(index);
        }
        self.space.residency.table_gone();
        gather.add_stale_table(P::Paging::table_range(addr, level));
        gather.count_empty_table();
        gather.add_empty_table(child);
        true
    }

    fn unmap_below(
        &self,
        table: Pfn,
        level: Level,
        part: VirtRange,
        hole: FreeableRange,
        gather: &mut Gather<'_, P>,
    ) {
        let Some(below) = level.down() else { return };
        for (index, part) in super::parts::<P::Paging>(part, level) {
            let raw = self.entries(table)[index].load(Ordering::Acquire);
            let child = match P::Paging::decode(raw, level) {
                Entry::Table(child) => child,
                Entry::Leaf(_) => {
                    self.zap(part, Zap::Mapping, gather);
                    continue;
                }
                _ => continue,
            };
            if hole.covers_table::<P::Paging>(part.start(), below) {
                // All that it leads to is freed with it: it is read after the flush.
                let pin = self.pin();
                self.lock(&pin, table, level).take(index);
                // Nothing else that it is responsible for was mapped since the last flush of it.
                if self.is_empty(child) {
                    gather.add_stale_table(part);
                } else {
                    gather.add_stale(part);
                }
                gather.add_unlinked(child);
            } else if below == Level::PTE {
                self.zap_below(Some((table, index)), child, part, Zap::Mapping, gather);
            } else {
                self.unmap_below(child, below, part, hole, gather);
            }
        }
    }
}

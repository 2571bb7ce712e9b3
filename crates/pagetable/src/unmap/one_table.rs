//! Ranges that one bottom table covers: most that programs unmap. One look-up is enough for all steps.

use super::{FreeableRange, Unmapper, Zap};
use crate::table::Tables;
use quire_arch::{Entry, Level, PagingFormat, Pfn, Platform, VirtRange};
use quire_sync::atomic::raw::Ordering;

/// What leads to a range.
enum Lowest {
    /// The one bottom table that covers it, and where its entry is.
    Table(Pfn, (Pfn, usize)),
    /// No bottom table, and none above it becomes empty.
    Nothing,
    /// Anything else.
    Other,
}

impl<P: Platform> Unmapper<'_, P> {
    /// As [`zap`](Self::zap), after which every table that is empty is taken, too; a few are kept
    /// ([`free_empty`](Self::free_empty)). The caller holds the mmap lock for writing; faults may come.
    #[inline]
    pub fn drop_contents(&mut self, range: VirtRange, what: Zap) {
        let hole = FreeableRange(range);
        if !self.unmap_in_one_table(range, hole, what) {
            self.zap(range, what);
            self.free_empty(range, hole);
        }
    }

    /// Takes all pages of `range` out, and its table if that is empty then. Returns false, with nothing
    /// changed, if there is more to do.
    #[inline]
    pub(super) fn unmap_in_one_table(&mut self, range: VirtRange, hole: FreeableRange, what: Zap) -> bool {
        let tables = self.gather.tables;
        match self.lowest_of(range, hole) {
            Lowest::Table(table, place) => {
                self.zap_below((what == Zap::Mapping).then_some(place), table, range, what);
                // One that was full of runs went with its entries: what is above it may be empty.
                let raw = tables.entries(place.0)[place.1].load(Ordering::Acquire);
                if P::Paging::table_of(raw, Level::PMD).is_none() || tables.is_empty(table) {
                    self.free_empty(range, hole);
                }
            }
            Lowest::Nothing => {}
            Lowest::Other => return false,
        }
        self.gather.add_paged_out(range);
        true
    }

    /// What leads to `range`, of which `hole` is the free gap around it once it is unmapped.
    #[inline]
    fn lowest_of(&self, range: VirtRange, hole: FreeableRange) -> Lowest {
        let tables = self.gather.tables;
        if !Tables::<P>::is_in_one_table(range) {
            return Lowest::Other;
        }
        let addr = range.start();
        let mut table = tables.space().root();
        let mut level = P::Paging::root_level();
        while let Some(below) = level.down() {
            let index = P::Paging::index(addr, level);
            let raw = tables.entries(table)[index].load(Ordering::Acquire);
            match P::Paging::table_of(raw, level) {
                // It is unlinked with its entries.
                Some(_) if hole.covers_table::<P::Paging>(addr, below) => return Lowest::Other,
                Some(child) if below == Level::PTE => return Lowest::Table(child, (table, index)),
                Some(child) => table = child,
                None if matches!(P::Paging::decode(raw, level), Entry::Leaf(_)) => return Lowest::Other,
                // An empty table is left of an attempt that found no memory for those below it.
                None if level < P::Paging::root_level() && tables.is_empty(table) => return Lowest::Other,
                None => return Lowest::Nothing,
            }
            level = below;
        }
        Lowest::Other
    }
}

//! Taking empty tables down where no mapping is left.

use super::Tables;
use crate::gather::Gather;
use quire_arch::{Entry, Level, PagingFormat, Pfn, Platform, VirtAddr, VirtRange};

/// The free room around an unmapped range: from the end of the mapping below it to the start of the one above.
/// A table may go only if all that it covers lies in here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hole(pub(crate) VirtRange);

impl Hole {
    /// Everything: for the exit of a space.
    pub(crate) fn everything() -> Self {
        Self(VirtRange::new(VirtAddr(0), VirtAddr(u64::MAX)))
    }

    fn covers_table<F: PagingFormat>(&self, addr: VirtAddr, level: Level) -> bool {
        self.0.covers(F::table_range(addr, level))
    }
}

impl<P: Platform> Tables<'_, P> {
    /// Unhooks every table that covers part of `unmapped` and lies wholly in `hole` into `gather`, from the bottom
    /// up. The caller holds the mmap lock for writing and has emptied `unmapped`; nothing else is in the hole, so
    /// nobody can be filling these tables.
    pub(crate) fn free_hole(&self, unmapped: VirtRange, hole: Hole, gather: &mut Gather<'_, P>) {
        if !unmapped.is_empty() {
            self.free_below(self.core.root(), P::Paging::root_level(), unmapped, hole, gather);
        }
    }

    fn free_below(&self, table: Pfn, level: Level, part: VirtRange, hole: Hole, gather: &mut Gather<'_, P>) {
        let Some(below) = level.down() else { return };
        for (index, part) in super::parts::<P::Paging>(part, level) {
            let raw = self.entries(table)[index].load(core::sync::atomic::Ordering::Acquire);
            let Entry::Table(child) = P::Paging::decode(raw, level) else { continue };
            self.free_below(child, below, part, hole, gather);
            if !hole.covers_table::<P::Paging>(part.start(), below) {
                continue;
            }
            // Checked under the child's own lock: a table that still has entries is never taken down, whatever
            // the caller believed about the hole.
            let pin = self.pin();
            let empty = self.lock(&pin, child, below).is_empty();
            debug_assert!(empty, "a table in a hole has live entries");
            if empty {
                self.lock(&pin, table, level).take(index);
                self.core.usage.table_gone();
                gather.add_table(child, P::Paging::table_range(part.start(), below));
            }
        }
    }
}

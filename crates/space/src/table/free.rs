//! Unmapping: pages go, and tables under which nothing is left.

use super::Tables;
use super::zap::Zap;
use crate::gather::Gather;
use quire_arch::{Entry, Level, PagingFormat, Pfn, Platform, VirtAddr, VirtRange};
use quire_sync::atomic::raw::Ordering;

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
    /// Takes all pages of `unmapped` and every table that covers part of it and lies wholly in `hole` into `gather`. The
    /// caller holds the mmap lock for writing; its mappings are gone, and nothing else is in the hole, so nobody can be
    /// filling these tables. Nothing is allocated and nothing fails.
    pub(crate) fn unmap(&self, unmapped: VirtRange, hole: Hole, gather: &mut Gather<'_, P>) {
        if !unmapped.is_empty() {
            self.unmap_below(self.core.root(), P::Paging::root_level(), unmapped, hole, gather);
        }
    }

    fn unmap_below(&self, table: Pfn, level: Level, part: VirtRange, hole: Hole, gather: &mut Gather<'_, P>) {
        let Some(below) = level.down() else {
            self.zap_in_table(table, part, Zap::Mapping, gather);
            return;
        };
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
                // All that it leads to goes with it: it is read after the flush.
                let pin = self.pin();
                self.lock(&pin, table, level).take(index);
                gather.add_unhooked(child, P::Paging::table_range(part.start(), below));
            } else {
                self.unmap_below(child, below, part, hole, gather);
            }
        }
    }
}

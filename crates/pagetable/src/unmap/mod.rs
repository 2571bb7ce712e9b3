//! Unmapping: what is taken out of the tables goes to a gather, which is flushed once and then freed.

mod detached;
mod empty;
mod huge;
mod one_table;
mod settle;
mod swapped;
mod zap;

use crate::cpus::FlushCause;
use crate::gather::Gather;
use crate::table::{LockedTable, Tables, parts};
use core::fmt;
use core::ops::Range;
use quire_arch::{Entry, Leaf, LeafFlags, Level, PagingFormat, Pfn, Platform, VirtAddr, VirtRange};
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

/// What may happen to a range while it is zapped, and what stays in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Zap {
    /// The mapping stays, and faults may come. Markers stay too: guard pages outlive the advice that drops
    /// contents.
    Contents,
    /// The mapping is gone: no fault can come.
    Mapping,
    /// As [`Contents`](Self::Contents), for an mlocked mapping: its pages are munlocked.
    LockedContents,
    /// A file loses pages. Only theirs go, and with `copies` those that programs have made of them, which are
    /// munlocked if the mapping is mlocked (`locked`). The mapping stays. The caller keeps the pages of the
    /// file in its cache until this is flushed, so they do not count as mapped until then.
    Cached {
        /// Whether copies go, too.
        copies: bool,
        /// Whether the mapping is mlocked.
        locked: bool,
    },
}

impl Zap {
    /// Whether all pages go, and none is mlocked.
    #[inline]
    fn is_plain(self) -> bool {
        matches!(self, Self::Contents | Self::Mapping)
    }

    /// Whether private pages that go are munlocked.
    fn munlocks(self) -> bool {
        matches!(self, Self::LockedContents | Self::Cached { locked: true, .. })
    }
}

/// Takes pages and tables out of the page tables of one space, into a gather of its own.
#[must_use = "what was unmapped is lost unless the unmapper is finished"]
pub struct Unmapper<'s, P: Platform> {
    pub(crate) gather: Gather<'s, P>,
}

impl<'s, P: Platform> Unmapper<'s, P> {
    /// One that has unmapped nothing of `tables` yet, and will for `cause`.
    pub fn new(tables: Tables<'s, P>, cause: FlushCause) -> Self {
        Self { gather: Gather::new(tables, cause) }
    }

    /// What was unmapped.
    #[inline]
    pub fn gather(&mut self) -> &mut Gather<'s, P> {
        &mut self.gather
    }

    /// Takes all pages of `unmapped` and every table that covers part of it and lies wholly in `hole` out.
    /// The caller holds the mmap lock for writing; its mappings are gone, and nothing else is in
    /// the hole, so no fault can be filling these tables. Nothing is allocated and nothing fails.
    pub fn unmap(&mut self, unmapped: VirtRange, hole: FreeableRange) {
        let tables = self.gather.tables;
        if !unmapped.is_empty() && !self.unmap_in_one_table(unmapped, hole, Zap::Mapping) {
            self.unmap_below(tables.space().root(), P::Paging::root_level(), unmapped, hole);
            self.free_empty(unmapped, hole);
            self.gather.add_paged_out(unmapped);
        }
    }

    fn unmap_below(&mut self, table: Pfn, level: Level, part: VirtRange, hole: FreeableRange) {
        let tables = self.gather.tables;
        let Some(below) = level.down() else { return };
        for (index, part) in parts::<P::Paging>(part, level) {
            let raw = tables.entries(table)[index].load(Ordering::Acquire);
            let Some(child) = P::Paging::table_of(raw, level) else {
                if matches!(P::Paging::decode(raw, level), Entry::Leaf(_)) {
                    self.zap(part, Zap::Mapping);
                }
                continue;
            };
            if hole.covers_table::<P::Paging>(part.start(), below) {
                // All that it leads to is freed with it: it is read after the flush.
                let pin = tables.pin();
                tables.lock(&pin, table, level).take(index);
                // Nothing else that it is responsible for was mapped since the last flush of it.
                if tables.is_empty(child) {
                    self.gather.add_stale_table(part);
                } else {
                    self.gather.add_stale(part);
                }
                self.gather.add_unlinked(child, part.start());
            } else if below == Level::PTE {
                self.zap_below(Some((table, index)), child, part, Zap::Mapping);
            } else {
                self.unmap_below(child, below, part, hole);
            }
        }
    }
}

#[cfg(debug_assertions)]
impl<P: Platform> Drop for Unmapper<'_, P> {
    fn drop(&mut self) {
        assert!(self.gather.is_done(), "an unmapper was dropped before it was finished");
    }
}

impl<P: Platform> fmt::Debug for Unmapper<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unmapper").field("gather", &self.gather).finish()
    }
}

/// Makes leaves unusable for the MMU, keeping their frames.
fn make_absent<P: Platform>(locked: &LockedTable<'_, P>, entries: Range<usize>) {
    for index in entries {
        if let Entry::Leaf(Leaf { pfn, flags }) = locked.get(index)
            && flags.contains(LeafFlags::READ)
        {
            locked.replace(index, Entry::Leaf(Leaf { pfn, flags: flags - LeafFlags::READ }));
        }
    }
}

//! The page tables of one space: finding and making tables, and locking them.
//!
//! A table is a frame of kind `Table`; its descriptor holds the table's lock, the number of its live entries
//! (guarded by the lock) and what it is responsible for. Entries are read without locks and written only
//! under the table's lock, by exchange or compare-exchange, since the MMU sets accessed and dirty bits
//! meanwhile.
//!
//! Tables are freed when they are empty ([`free_empty`](crate::Unmapper::free_empty)), and only by the holder
//! of the mmap lock for writing. So a thread that holds it, in any mode, may rely on the tables that it
//! finds. Others (a fault that holds only its VMA, an rmap walker) look them up inside a section of the
//! epoch, in which a freed table is still a table, empty and dead. Reading it gives the right result:
//! nothing. A thread that wants to add an entry sees under its lock that it is dead
//! ([`LockedTable::is_dead`]), and looks again from the root.

mod find;
mod locked;
mod make;
mod run;
mod slot;

pub use find::Found;
pub use locked::LockedTable;

use crate::memory::MemoryCore;
use crate::space_tables::SpaceTables;
use core::fmt;
use quire_arch::{Leaf, LeafFlags, Level, PAGE_SIZE, PagingFormat, Pfn, Pin, Platform, VirtAddr, VirtRange};
use quire_sync::atomic::raw::AtomicU64;

/// The entries of a table. A format may use only the first of them.
pub type Entries = [AtomicU64; 512];

/// The page tables of one space.
pub struct Tables<'s, P: Platform> {
    memory: &'s MemoryCore<P>,
    space: &'s SpaceTables,
}

impl<P: Platform> Clone for Tables<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for Tables<'_, P> {}

impl<P: Platform> fmt::Debug for Tables<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tables").field("space", self.space).finish_non_exhaustive()
    }
}

impl<'s, P: Platform> Tables<'s, P> {
    /// The tables of `space`.
    #[inline]
    pub fn new(memory: &'s MemoryCore<P>, space: &'s SpaceTables) -> Self {
        Self { memory, space }
    }

    /// What all tables of the machine share.
    #[inline]
    pub fn memory(&self) -> &'s MemoryCore<P> {
        self.memory
    }

    /// The space whose tables these are.
    #[inline]
    pub fn space(&self) -> &'s SpaceTables {
        self.space
    }

    /// The entries of `table`.
    #[inline]
    pub fn entries(&self, table: Pfn) -> &'s Entries {
        // SAFETY: callers name tables of this space that stay linked while they use them (head of this file);
        // a linked table is a frame of entries until its epoch has passed.
        unsafe { self.memory.frames().table(table) }
    }

    /// The level of `table`.
    #[inline]
    pub fn level_of(&self, table: Pfn) -> Level {
        self.memory.frames().known(table).as_table().level()
    }

    /// Whether the table has no live entries, seen without its lock.
    pub(crate) fn is_empty(&self, table: Pfn) -> bool {
        self.memory.frames().known(table).as_table().live() == 0
    }

    /// Whether a leaf of a locked table maps the cache of a file.
    pub fn maps_cached(&self, leaf: Leaf) -> bool {
        let is_page = !leaf.flags.contains(LeafFlags::SPECIAL);
        is_page && self.memory.frames().folio(leaf.pfn).is_in_file_cache()
    }

    /// The machine's pin, for locking a table.
    pub fn pin(&self) -> Pin<'s, P> {
        self.memory.platform().pin()
    }

    /// The indices of a bottom table's entries for `part`, each with its address. `part` lies in one table.
    #[inline]
    pub fn pages(part: VirtRange) -> impl Iterator<Item = (usize, VirtAddr)> {
        let first = P::Paging::index(part.start(), Level::PTE);
        let start = part.start();
        (0..part.pages() as usize)
            .map(move |page| (first + page, VirtAddr(start.0 + page as u64 * PAGE_SIZE)))
    }
}

/// Cuts `range`, which lies in one table at `level`, into the parts that its entries cover.
pub(crate) fn parts<F: PagingFormat>(
    range: VirtRange,
    level: Level,
) -> impl Iterator<Item = (usize, VirtRange)> {
    let bytes = F::entry_bytes(level);
    let mut at = range.start();
    core::iter::from_fn(move || {
        if at >= range.end() {
            return None;
        }
        let next = VirtAddr((at.0 & !(bytes - 1)).saturating_add(bytes)).min(range.end());
        let part = (F::index(at, level), VirtRange::new(at, next));
        at = next;
        Some(part)
    })
}

/// `pages` pages from `addr` on.
#[inline]
pub fn pages_from(addr: VirtAddr, pages: usize) -> VirtRange {
    VirtRange::new(addr, VirtAddr(addr.0 + pages as u64 * PAGE_SIZE))
}

/// The page that holds `addr`.
#[inline]
pub fn page_of(addr: VirtAddr) -> VirtRange {
    pages_from(addr.page_start(), 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_arch::paging::{X86_64Level4, invented::Invented3};
    use std::vec::Vec;

    #[test]
    fn parts_end_at_the_entries_borders() {
        let range = VirtRange::new(VirtAddr(0x1f_f000), VirtAddr(0x40_1000));
        let cut: Vec<_> = parts::<X86_64Level4>(range, Level::PMD).collect();
        assert_eq!(cut.len(), 3);
        assert_eq!(cut[0], (0, VirtRange::new(VirtAddr(0x1f_f000), VirtAddr(0x20_0000))));
        assert_eq!(cut[2], (2, VirtRange::new(VirtAddr(0x40_0000), VirtAddr(0x40_1000))));
    }

    #[test]
    fn parts_know_formats_with_other_index_widths() {
        let bytes = Invented3::entry_bytes(Level::PMD);
        assert_eq!(bytes, 64 * PAGE_SIZE);
        let range = VirtRange::new(VirtAddr(bytes - PAGE_SIZE), VirtAddr(3 * bytes));
        assert_eq!(parts::<Invented3>(range, Level::PMD).count(), 3);
    }
}

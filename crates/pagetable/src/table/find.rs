//! Finding tables without a lock.

use super::Tables;
use crate::huge_slot::HugeSlot;
use quire_arch::{Entry, Level, PagingFormat, Pfn, Platform, VirtAddr, VirtRange};
use quire_sync::atomic::raw::Ordering;

/// What is found at an address.
#[derive(Clone, Copy, Debug)]
pub enum Found {
    /// A bottom table.
    Table(Pfn),
    /// A leaf in the place of a bottom table.
    Huge(HugeSlot),
    /// No table.
    Nothing,
}

impl<P: Platform> Tables<'_, P> {
    /// Whether one bottom table, or a leaf in its place, covers all of `range`.
    #[inline]
    pub(crate) fn is_in_one_table(range: VirtRange) -> bool {
        !range.is_empty() && P::Paging::table_range(range.start(), Level::PTE).covers(range)
    }

    /// The table or leaf at `addr`. Lock-free.
    #[inline]
    pub fn lookup(&self, addr: VirtAddr) -> Found {
        let mut table = self.space.root();
        let mut level = P::Paging::root_level();
        while let Some(below) = level.down() {
            let index = P::Paging::index(addr, level);
            // Acquire: pairs with the release of what links a table. `install` links one of zeros; what puts
            // one in the place of a leaf, by `split_huge`, by `detach_part` or on unmapping, a filled one.
            let raw = self.entries(table)[index].load(Ordering::Acquire);
            table = match P::Paging::table_of(raw, level) {
                Some(table) => table,
                None if matches!(P::Paging::decode(raw, level), Entry::Leaf(_)) => {
                    return Found::Huge(HugeSlot { table, index });
                }
                None => return Found::Nothing,
            };
            level = below;
        }
        Found::Table(table)
    }

    /// The PMD table that covers `addr`, if there is one. Lock-free.
    pub fn find_pmd(&self, addr: VirtAddr) -> Option<Pfn> {
        self.find_table(addr, Level::PMD)
    }

    /// The table at `lowest`, above the bottom, that covers `addr`, if there is one. Lock-free.
    pub fn find_table(&self, addr: VirtAddr, lowest: Level) -> Option<Pfn> {
        let mut table = self.space.root();
        let mut level = P::Paging::root_level();
        while level > lowest {
            // Acquire: pairs with the release in `install`; the table was zeroed before it was linked, and
            // what takes the place of a leaf is a bottom table.
            let raw = self.entries(table)[P::Paging::index(addr, level)].load(Ordering::Acquire);
            table = P::Paging::table_of(raw, level)?;
            level = Level(level.0 - 1);
        }
        Some(table)
    }

    /// The bottom table that covers `addr`, if there is one. Lock-free.
    #[inline]
    pub fn find(&self, addr: VirtAddr) -> Option<Pfn> {
        match self.lookup(addr) {
            Found::Table(table) => Some(table),
            Found::Huge(_) | Found::Nothing => None,
        }
    }
}

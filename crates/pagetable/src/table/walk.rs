//! Walks over what a range maps.

use super::{HugeSlot, Tables, parts};
use quire_arch::{Entry, Level, PagingFormat, Pfn, Platform, VirtAddr, VirtRange};
use quire_sync::atomic::raw::Ordering;

/// What a walk finds.
#[derive(Clone, Copy, Debug)]
pub enum WalkEntry {
    /// A bottom table.
    Table(Pfn),
    /// A leaf in the place of a bottom table. It may have become something else by the time that its lock is
    /// held.
    Huge(HugeSlot),
}

/// How a walk continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WalkStep {
    /// Done with this part.
    Next,
    /// Only a part of the large leaf is concerned: it is split into a table, which is visited.
    Split,
    /// The leaf is gone: the walk looks again.
    Again,
    /// The walk ends.
    Stop,
}

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
    /// Calls `visit` for every bottom table, and every leaf in the place of one, that covers part of `range`,
    /// in the order of the addresses, with the part of `range` that it covers. The caller makes sure that the
    /// tables stay linked.
    pub fn walk(&self, range: VirtRange, visit: &mut impl FnMut(WalkEntry, VirtRange) -> WalkStep) {
        if !range.is_empty() {
            self.walk_below(self.space.root(), P::Paging::root_level(), range, visit);
        }
    }

    /// Returns [`WalkStep::Stop`] where the walk ends.
    fn walk_below(
        &self,
        table: Pfn,
        level: Level,
        range: VirtRange,
        visit: &mut impl FnMut(WalkEntry, VirtRange) -> WalkStep,
    ) -> WalkStep {
        let Some(below) = level.down() else { return visit(WalkEntry::Table(table), range) };
        for (index, part) in parts::<P::Paging>(range, level) {
            loop {
                let raw = self.entries(table)[index].load(Ordering::Acquire);
                let step = match P::Paging::decode(raw, level) {
                    Entry::Table(child) => match self.walk_below(child, below, part, visit) {
                        WalkStep::Stop => WalkStep::Stop,
                        _ => WalkStep::Next,
                    },
                    Entry::Leaf(_) => visit(WalkEntry::Huge(HugeSlot { table, index }), part),
                    _ => WalkStep::Next,
                };
                match step {
                    WalkStep::Next => break,
                    WalkStep::Split => self.split_huge(HugeSlot { table, index }),
                    WalkStep::Again => {}
                    WalkStep::Stop => return WalkStep::Stop,
                }
            }
        }
        WalkStep::Next
    }

    /// The table or leaf at `addr`. Lock-free.
    #[inline]
    pub fn lookup(&self, addr: VirtAddr) -> Found {
        let mut table = self.space.root();
        let mut level = P::Paging::root_level();
        while let Some(below) = level.down() {
            let index = P::Paging::index(addr, level);
            // Acquire: pairs with the release in `install`; the table's entries are zeroed before it is
            // linked.
            let raw = self.entries(table)[index].load(Ordering::Acquire);
            match P::Paging::decode(raw, level) {
                Entry::Table(pfn) => table = pfn,
                Entry::Leaf(_) => return Found::Huge(HugeSlot { table, index }),
                _ => return Found::Nothing,
            }
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
            // Acquire as above.
            let raw = self.entries(table)[P::Paging::index(addr, level)].load(Ordering::Acquire);
            let Entry::Table(pfn) = P::Paging::decode(raw, level) else { return None };
            table = pfn;
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

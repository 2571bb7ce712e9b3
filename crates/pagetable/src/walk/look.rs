//! Finding out which pages are resident.

use super::{WalkEntry, WalkStep, Walker};
use crate::table::{LockedTable, Tables};
use arrayvec::ArrayVec;
use quire_arch::{
    Access, Entry, Leaf, LeafFlags, Level, Order, PAGE_SIZE, PagingFormat, Pfn, Platform, VirtAddr, VirtRange,
};
use quire_swap::SlotId;
use quire_sync::atomic::raw::Ordering;

/// Entries that are looked at under one hold of a table's lock.
const AT_ONCE: usize = 64;

/// What an entry says of its page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MappedPage {
    /// It is in memory.
    InMemory,
    /// It is paged out.
    Out,
    /// Nothing: there is no entry, or a marker.
    None,
}

impl<P: Platform> Walker<'_, P> {
    /// Calls `visit` with each stretch of `range`, in order, of whose pages the same is to be said. No lock
    /// of a table is held then.
    pub fn look_present(self, range: VirtRange, mut visit: impl FnMut(VirtRange, MappedPage)) {
        let (mut from, mut state) = (range.start(), None);
        let mut note = |at: VirtAddr, now: MappedPage| {
            if state != Some(now) {
                if let Some(before) = state {
                    visit(VirtRange::new(from, at), before);
                }
                (from, state) = (at, Some(now));
            }
        };
        let mut at = range.start();
        self.walk(range, &mut |place, part| {
            if at < part.start() {
                note(at, MappedPage::None);
            }
            match place {
                WalkEntry::Huge(slot) => {
                    let pin = self.tables.pin();
                    if Tables::<P>::huge_leaf(&self.tables.lock_slot(&pin, slot), slot).is_none() {
                        return WalkStep::Again;
                    }
                    note(part.start(), MappedPage::InMemory);
                }
                WalkEntry::Table(table) => {
                    let mut pages = Tables::<P>::pages(part);
                    loop {
                        let mut seen = ArrayVec::<_, AT_ONCE>::new();
                        {
                            let pin = self.tables.pin();
                            let locked = self.tables.lock(&pin, table, Level::PTE);
                            let some = pages.by_ref().take(AT_ONCE);
                            seen.extend(some.map(|(index, addr)| (addr, self.mapped_page(&locked, index))));
                        }
                        if seen.is_empty() {
                            break;
                        }
                        seen.into_iter().for_each(|(addr, page)| note(addr, page));
                    }
                }
            }
            at = part.end();
            WalkStep::Next
        });
        if at < range.end() {
            note(at, MappedPage::None);
        }
        if let Some(state) = state {
            visit(VirtRange::new(from, range.end()), state);
        }
    }

    /// What entry `index` of the locked table says.
    fn mapped_page(self, locked: &LockedTable<'_, P>, index: usize) -> MappedPage {
        match locked.get(index) {
            Entry::Leaf(_) => MappedPage::InMemory,
            Entry::Swap(entry) => {
                match self.tables.memory().swap().counts().is_in_memory(SlotId::of(entry)) {
                    true => MappedPage::InMemory,
                    false => MappedPage::Out,
                }
            }
            _ => MappedPage::None,
        }
    }

    /// The first page of `range` at which `access` would fault or would not be recorded: a caller that
    /// populates memory for writes needs its contents from then on.
    pub fn first_missing(self, range: VirtRange, access: Access) -> Option<VirtAddr> {
        let mut needs = access.needs();
        needs.set(LeafFlags::DIRTY, access == Access::Write);
        let (mut at, mut missing) = (range.start(), None);
        self.walk(range, &mut |place, part| {
            if at < part.start() {
                missing = Some(at);
                return WalkStep::Stop;
            }
            let pin = self.tables.pin();
            match place {
                WalkEntry::Huge(slot) => {
                    match Tables::<P>::huge_leaf(&self.tables.lock_slot(&pin, slot), slot) {
                        Some(leaf) if leaf.flags.contains(needs) => {}
                        _ => missing = Some(part.start()),
                    }
                }
                WalkEntry::Table(table) => {
                    let locked = self.tables.lock(&pin, table, Level::PTE);
                    missing = Tables::<P>::pages(part).find_map(|(index, addr)| match locked.get(index) {
                        Entry::Leaf(leaf) if leaf.flags.contains(needs) => None,
                        _ => Some(addr),
                    });
                }
            }
            at = part.end();
            // Who populates asks once for each missing page, so the tables behind the first are not visited.
            if missing.is_some() { WalkStep::Stop } else { WalkStep::Next }
        });
        missing.or((at < range.end()).then_some(at))
    }

    /// Calls `visit` with the entry of every page of `range`, in order. A large leaf is one call, with the
    /// leaf of its first page, and so are the pages that a missing table would cover.
    pub fn look(self, range: VirtRange, mut visit: impl FnMut(VirtRange, Entry)) {
        let mut at = range.start();
        self.walk(range, &mut |place, part| {
            if at < part.start() {
                visit(VirtRange::new(at, part.start()), Entry::None);
            }
            let pin = self.tables.pin();
            let table = match place {
                WalkEntry::Table(table) => table,
                WalkEntry::Huge(slot) => {
                    let leaf = Tables::<P>::huge_leaf(&self.tables.lock_slot(&pin, slot), slot);
                    let Some(leaf) = leaf else { return WalkStep::Again };
                    let before = (part.start().0 - self.tables.slot_range(slot).start().0) / PAGE_SIZE;
                    visit(part, Entry::Leaf(Leaf { pfn: leaf.pfn.offset(before), ..leaf }));
                    at = part.end();
                    return WalkStep::Next;
                }
            };
            let locked = self.tables.lock(&pin, table, Level::PTE);
            for (index, addr) in Tables::<P>::pages(part) {
                visit(VirtRange::new(addr, VirtAddr(addr.0 + PAGE_SIZE)), locked.get(index));
            }
            at = part.end();
            WalkStep::Next
        });
        if at < range.end() {
            visit(VirtRange::new(at, range.end()), Entry::None);
        }
    }

    /// Whether an entry of `range` maps a page of the folio of `order` at `head`. Lock-free.
    pub fn maps_some(self, range: VirtRange, folio: (Pfn, Order)) -> bool {
        self.count_mapped(range, folio, 1) > 0
    }

    /// How many pages of the folio of `order` at `head` the entries of `range` map; it is not looked for more
    /// than `enough`. Lock-free.
    pub fn count_mapped(self, range: VirtRange, (head, order): (Pfn, Order), enough: u64) -> u64 {
        let mut found = 0;
        self.walk(range, &mut |place, part| {
            let (table, level, first, entries) = match place {
                WalkEntry::Table(table) => {
                    (table, Level::PTE, P::Paging::index(part.start(), Level::PTE), part.pages() as usize)
                }
                WalkEntry::Huge(slot) => (slot.table, Level::PMD, slot.index, 1),
            };
            let pages = part.pages() / entries as u64;
            for entry in &self.tables.entries(table)[first..first + entries] {
                if let Entry::Leaf(Leaf { pfn, flags }) =
                    P::Paging::decode(entry.load(Ordering::Relaxed), level)
                    && !flags.contains(LeafFlags::SPECIAL)
                    && pfn.0.wrapping_sub(head.0) < order.pages()
                {
                    found += pages;
                    if found >= enough {
                        return WalkStep::Stop;
                    }
                }
            }
            WalkStep::Next
        });
        found
    }
}

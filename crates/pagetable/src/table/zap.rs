//! Zapping: removing pages from tables that stay.

use super::{HugeSlot, LockedTable, Tables, TablesTechnique, WalkEntry, WalkStep};
use crate::gather::{Gather, pages_from};
use crate::residency::Residency;
use core::ops::Range;
use core::sync::atomic::Ordering;
use quire_arch::paging::PteMarker;
use quire_arch::{Entry, Leaf, LeafFlags, Level, PagingFormat, Pfn, Platform, VirtAddr, VirtRange};

/// What may happen to a range while it is zapped, and what stays in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Zap {
    /// The mapping stays, and faults may come. Markers stay too: guard pages outlive the advice that drops
    /// contents.
    Contents,
    /// The same for an mlocked mapping: its pages are munlocked.
    LockedContents,
    /// The mapping is gone: no fault can come.
    Mapping,
}

impl<P: Platform> Tables<'_, P> {
    /// Empties every entry in `range` into `gather`. Nothing is allocated and nothing fails. Tables stay
    /// linked even if they are empty afterwards; see [`unmap`](Self::unmap).
    #[inline]
    pub fn zap(&self, range: VirtRange, what: Zap, gather: &mut Gather<'_, P>) {
        self.walk(range, &mut |place, part| match place {
            WalkEntry::Table(table) => {
                self.zap_in_table(table, part, what, gather);
                WalkStep::Next
            }
            WalkEntry::Huge(slot) => self.zap_in_huge(slot, part, what, gather),
        });
        gather.add_paged_out(range);
    }

    /// As [`zap`](Self::zap), for a part of what a large leaf maps.
    pub(super) fn zap_in_huge(
        &self,
        slot: HugeSlot,
        part: VirtRange,
        what: Zap,
        gather: &mut Gather<'_, P>,
    ) -> WalkStep {
        let range = self.slot_range(slot);
        if part != range {
            // No fault can happen in the rest either: its mapping was cut, so it is write-locked.
            if what == Zap::Mapping && self.make_huge_absent(slot) {
                gather.add_stale(range);
                gather.add_split(slot, part);
                return WalkStep::Next;
            }
            return WalkStep::Split;
        }
        if gather.is_full() {
            if what == Zap::Mapping {
                // One flush for all: it is taken out after it.
                let pin = self.pin();
                let locked = self.lock_slot(&pin, slot);
                make_absent(&locked, slot.index..slot.index + 1);
                gather.add_stale(range);
                gather.add_absent(range);
                return WalkStep::Next;
            }
            gather.relieve();
        }
        if self.zap_huge(slot, what, gather) { WalkStep::Next } else { WalkStep::Again }
    }

    pub(super) fn zap_in_table(&self, table: Pfn, part: VirtRange, what: Zap, gather: &mut Gather<'_, P>) {
        self.zap_below(None, table, part, what, gather);
    }

    /// As above. A table that would be empty after the flush can go before it, if the place of its entry is
    /// known.
    pub(super) fn zap_below(
        &self,
        place: Option<(Pfn, usize)>,
        table: Pfn,
        part: VirtRange,
        what: Zap,
        gather: &mut Gather<'_, P>,
    ) {
        let mut at = part.start();
        while at < part.end() {
            {
                let pin = self.pin();
                let locked = self.lock(&pin, table, Level::PTE);
                at = self.zap_until_full(&locked, VirtRange::new(at, part.end()), what, gather);
                if at < part.end() && what == Zap::Mapping {
                    // One flush for all: the rest is taken out after it.
                    let rest = VirtRange::new(at, part.end());
                    let first = P::Paging::index(at, Level::PTE);
                    let entries = first..first + rest.pages() as usize;
                    if let Some((parent, index)) = place
                        && self.memory.techniques().tables == TablesTechnique::Free
                        && locked.mark_dead_with(entries.clone())
                    {
                        drop(locked);
                        self.lock(&pin, parent, Level::PMD).take(index);
                        gather.add_stale(rest);
                        gather.count_empty_table();
                        gather.add_unlinked(table);
                        return;
                    }
                    make_absent(&locked, entries);
                    gather.add_stale(rest);
                    gather.add_absent(rest);
                    return;
                }
            }
            if at < part.end() {
                gather.relieve();
            }
        }
    }

    /// Empties entries until `gather` is full, and returns where to continue: at the end of `part` if all is
    /// done.
    fn zap_until_full(
        &self,
        locked: &LockedTable<'_, P>,
        part: VirtRange,
        what: Zap,
        gather: &mut Gather<'_, P>,
    ) -> VirtAddr {
        let first = P::Paging::index(part.start(), Level::PTE);
        let end = first + part.pages() as usize;
        let mut gone = Residency::default();
        let mut stale: Option<(usize, usize)> = None;
        let mut index = first;
        while index < end && !locked.is_empty() && !gather.is_full() {
            let raw = locked.entries[index].load(Ordering::Relaxed);
            if raw == 0 {
                index += 1;
                continue;
            }
            let pages = if P::Paging::is_present_leaf(raw, Level::PTE) {
                let pages = self.zap_run(locked, (index, end), raw, (what, &mut gone), gather);
                let (start, _) = stale.unwrap_or((index, index));
                stale = Some((start, index + pages));
                pages
            } else {
                match P::Paging::decode(raw, Level::PTE) {
                    Entry::Marker(PteMarker::Guard) if what != Zap::Mapping => 1,
                    Entry::Leaf(_) => self.zap_run(locked, (index, end), raw, (what, &mut gone), gather),
                    Entry::Swap(entry) => self.zap_swapped(locked, (index, end), entry, gather),
                    _ => {
                        locked.take(index);
                        1
                    }
                }
            };
            index += pages;
        }
        let addr = |index: usize| pages_from(part.start(), index - first).end();
        if let Some((start, end)) = stale {
            gather.add_stale(VirtRange::new(addr(start), addr(end)));
        }
        gather.count_gone(gone);
        if index < end && !locked.is_empty() { addr(index) } else { part.end() }
    }

    /// Empties the run that starts with the leaf `raw` at `index`, and returns its length.
    #[inline]
    fn zap_run(
        &self,
        locked: &LockedTable<'_, P>,
        (index, end): (usize, usize),
        raw: u64,
        (what, gone): (Zap, &mut Residency),
        gather: &mut Gather<'_, P>,
    ) -> usize {
        let Entry::Leaf(Leaf { pfn, flags }) = P::Paging::decode(raw, Level::PTE) else { return 1 };
        if flags.contains(LeafFlags::SPECIAL) {
            locked.take(index);
            return 1;
        }
        let folio = self.memory.frames().lock_head(pfn);
        let end = if flags.contains(LeafFlags::READ) { end } else { index + 1 };
        let pages = self.run_length(locked.entries, (index, end), (raw, pfn), &folio);
        locked.clear(index, pages);
        if what == Zap::LockedContents {
            self.memory().memcgs().folios().munlock(&self.pin(), &folio);
        }
        // What may be mapped by others until the flush is counted after it.
        let whole = folio.maps() == pages as u32 && !folio.may_be_mapped_by_name();
        if whole {
            let _ = folio.remove_maps(pages as u32);
            self.memory.memcgs().splits().undefer_split(&folio);
        }
        let (head, order, kind) = (folio.folio().head(), folio.folio().order(), folio.folio().kind());
        drop(folio);
        gone.add(kind, pages as u64);
        if whole {
            gather.add_folio(head, order);
        } else {
            gather.add_run(pfn, pages as u32);
        }
        pages
    }

    /// Removes the leaves that were made unusable. The flush is done, and no fault can come.
    pub fn take_out_absent(&self, range: VirtRange, gather: &mut Gather<'_, P>) {
        self.walk(range, &mut |place, part| {
            let table = match place {
                WalkEntry::Table(table) => table,
                WalkEntry::Huge(slot) => {
                    gather.make_room_flushed();
                    self.zap_huge(slot, Zap::Mapping, gather);
                    return WalkStep::Next;
                }
            };
            let pin = self.pin();
            let mut locked = self.lock(&pin, table, Level::PTE);
            let mut gone = Residency::default();
            for (index, _) in Self::pages(part) {
                if gather.is_full_of_slots() {
                    drop(locked);
                    gather.drop_cached();
                    locked = self.lock(&pin, table, Level::PTE);
                }
                match locked.take(index) {
                    Entry::Leaf(Leaf { pfn, flags }) if !flags.contains(LeafFlags::SPECIAL) => {
                        gone.add(self.memory.frames().folio(pfn).kind(), 1);
                        gather.unmap_flushed(pfn, 1);
                    }
                    Entry::Swap(entry) => self.drop_swapped(entry, 1, gather),
                    _ => {}
                }
            }
            gather.count_gone(gone);
            WalkStep::Next
        });
    }

    /// Reads a table that was unlinked with its entries, after the flush: what it maps is unmapped, and it
    /// and all tables below it are gathered.
    pub fn free_detached_table(&self, table: Pfn, gather: &mut Gather<'_, P>) {
        let level = self.level_of(table);
        if self.is_empty(table) {
            // What it led to has moved, or was unmapped before.
        } else if level == Level::PTE {
            self.free_detached_bottom(table, gather);
        } else {
            let mut live = self.memory.frames().known(table).as_table().live();
            for (index, slot) in self.entries(table)[..P::Paging::entries(level)].iter().enumerate() {
                let raw = slot.load(Ordering::Relaxed);
                if raw == 0 {
                    continue;
                }
                match P::Paging::decode(raw, level) {
                    Entry::Table(child) => self.free_detached_table(child, gather),
                    Entry::Leaf(leaf) => self.free_detached_leaf(HugeSlot { table, index }, leaf, gather),
                    _ => {}
                }
                // Few tables are full, and most of what is unmapped is small.
                live = live.saturating_sub(1);
                if live == 0 {
                    break;
                }
            }
        }
        self.space.residency.table_gone();
        gather.add_empty_table(table);
        gather.free_batch();
    }

    fn free_detached_leaf(&self, slot: HugeSlot, leaf: Leaf, gather: &mut Gather<'_, P>) {
        let pin = self.pin();
        if leaf.flags.contains(LeafFlags::SPECIAL) {
            gather.add_huge_zero(leaf.pfn);
        } else {
            let folio = self.memory.frames().lock_head(leaf.pfn);
            gather.count_gone(Residency::of(folio.folio().kind(), u64::from(Self::huge_pages())));
            self.uncount_whole_map(&pin, leaf.pfn);
            gather.unmap_locked(folio, Self::huge_pages());
        }
        if let Some(table) = self.withdraw(slot) {
            self.space.residency.table_gone();
            gather.add_empty_table(table);
        }
    }

    fn free_detached_bottom(&self, table: Pfn, gather: &mut Gather<'_, P>) {
        // Pinned, since it spins for head locks.
        let _pin = self.pin();
        let entries = self.entries(table);
        let mut live = self.memory.frames().known(table).as_table().live() as usize;
        let mut gone = Residency::default();
        let end = P::Paging::entries(Level::PTE);
        let mut index = 0;
        while live > 0 && index < end {
            let raw = entries[index].load(Ordering::Relaxed);
            if raw == 0 {
                index += 1;
                continue;
            }
            let pages = match P::Paging::decode(raw, Level::PTE) {
                Entry::Leaf(Leaf { pfn, flags }) if !flags.contains(LeafFlags::SPECIAL) => {
                    let folio = self.memory.frames().lock_head(pfn);
                    let end = if flags.contains(LeafFlags::READ) { end } else { index + 1 };
                    let pages = self.run_length(entries, (index, end), (raw, pfn), &folio);
                    self.fetch_ahead(entries, index, pages);
                    gone.add(folio.folio().kind(), pages as u64);
                    gather.unmap_locked(folio, pages as u32);
                    if gather.is_full_of_slots() {
                        gather.drop_cached();
                    }
                    pages
                }
                Entry::Swap(entry) => {
                    let pages = Self::swap_run(entries, (index, end), entry);
                    self.drop_swapped(entry, pages, gather);
                    gather.drop_cached();
                    pages
                }
                _ => 1,
            };
            index += pages;
            live = live.saturating_sub(pages);
        }
        gather.count_gone(gone);
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

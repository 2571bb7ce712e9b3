//! Moving pages from one range to another, entry by entry.

use super::{HugeSlot, Place, Step, Tables};
use crate::gather::Gather;
use core::sync::atomic::Ordering;
use quire_arch::{
    Entry, Leaf, LeafFlags, Level, PAGE_SIZE, PagingFormat, Pfn, Pin, Platform, VirtAddr, VirtRange,
};
use quire_frame::AllocError;

impl<P: Platform> Tables<'_, P> {
    /// Makes every bottom table that moving `from` to `to` will write to. After this the move cannot fail.
    pub(crate) fn prepare_move(
        &self,
        pin: &Pin<'_, P>,
        from: VirtRange,
        to: VirtAddr,
    ) -> Result<(), AllocError> {
        let mut result = Ok(());
        self.walk(from, &mut |place, part| {
            let start = VirtAddr(to.0 + (part.start().0 - from.start().0));
            if let Place::Huge(slot) = place
                && self.moves_whole(slot, part, start)
            {
                if result.is_ok() {
                    result = self.make(pin, start, Level::PMD).map(|_| ());
                }
                return Step::Next;
            }
            let target = VirtRange::new(start, VirtAddr(start.0 + part.len()));
            // A table's worth of pages meets at most two tables on the other side.
            let last = VirtAddr(target.end().0 - PAGE_SIZE);
            for addr in [target.start(), last] {
                if result.is_ok() {
                    result = self.find_or_make(pin, addr).map(|_| ());
                }
            }
            Step::Next
        });
        result
    }

    /// Whether the large leaf at `slot` moves as it is: all of it, between places that are aligned alike.
    fn moves_whole(&self, slot: HugeSlot, part: VirtRange, to: VirtAddr) -> bool {
        part == self.slot_range(slot) && Self::huge_range(to).start() == to
    }

    /// Moves every entry of `from` to the same place behind `to`, whose tables exist and whose entries are none. The
    /// old translations are noted in `gather`; the caller holds both VMAs write-locked until it is finished.
    pub(crate) fn relocate(&self, from: VirtRange, to: VirtAddr, gather: &mut Gather<'_, P>) {
        self.walk(from, &mut |place, part| {
            let pin = self.pin();
            let source = match place {
                Place::Table(source) => source,
                Place::Huge(slot) => {
                    let target = VirtAddr(to.0 + (part.start().0 - from.start().0));
                    if self.moves_whole(slot, part, target) {
                        return self.relocate_huge(&pin, slot, target, gather);
                    }
                    return self.relocate_part(&pin, slot, part, target, gather);
                }
            };
            if self.lock(&pin, source, Level::PTE).is_empty() {
                return Step::Next;
            }
            if self.relocate_table(&pin, part, VirtAddr(to.0 + (part.start().0 - from.start().0)), gather) {
                return Step::Next;
            }
            let mut at = part.start();
            while at < part.end() {
                let target_addr = VirtAddr(to.0 + (at.0 - from.start().0));
                let room = P::Paging::table_range(target_addr, Level::PTE).end().0 - target_addr.0;
                let end = VirtAddr(at.0.saturating_add(room)).min(part.end());
                if let Some(target) = self.find(target_addr) {
                    self.relocate_run(&pin, source, target, VirtRange::new(at, end), target_addr, gather);
                }
                at = end;
            }
            Step::Next
        });
    }

    /// Moves a large leaf, with the table that was deposited for it, to `to`, whose PMD table exists.
    fn relocate_huge(
        &self,
        pin: &Pin<'_, P>,
        slot: HugeSlot,
        to: VirtAddr,
        gather: &mut Gather<'_, P>,
    ) -> Step {
        let Some(table) = self.find_pmd(to) else { return Step::Split };
        let target = HugeSlot { table, index: P::Paging::index(to, Level::PMD) };
        let range = self.slot_range(slot);
        let (first, second) = (slot.table.min(target.table), slot.table.max(target.table));
        let first = self.lock(pin, first, Level::PMD);
        let second = (slot.table != target.table).then(|| self.lock(pin, second, Level::PMD));
        let (source, there) = match &second {
            None => (&first, &first),
            Some(second) if slot.table < target.table => (&first, second),
            Some(second) => (second, &first),
        };
        let Some(leaf) = Self::huge_leaf(source, slot) else { return Step::Again };
        if let Some(deposit) = self.withdraw(slot) {
            self.spaces.init_table(deposit, Level::PTE, to, self.core);
            self.deposit(target, deposit);
        }
        let entry = source.take(slot.index);
        there.install(target.index, entry);
        if leaf.flags.contains(LeafFlags::READ) {
            gather.add_stale(range);
        }
        Step::Next
    }

    /// Moves the table of `part` as it is, if it was a large leaf when the move was prepared: somebody may have split the folio
    /// for another mapping since, and there is no table at `to` then. Answers whether it did.
    fn relocate_table(
        &self,
        pin: &Pin<'_, P>,
        part: VirtRange,
        to: VirtAddr,
        gather: &mut Gather<'_, P>,
    ) -> bool {
        if self.find(to).is_some() {
            return false;
        }
        let Some((from, there)) = self.find_pmd(part.start()).zip(self.find_pmd(to)) else { return false };
        let index = P::Paging::index(part.start(), Level::PMD);
        // One after the other: nobody else comes to either place.
        let entry = self.lock(pin, from, Level::PMD).take(index);
        if let Entry::Table(table) = entry {
            let level = u64::from(Level::PTE.0);
            self.spaces.frames().known(table).index().store(to.0 | level, Ordering::Relaxed);
        }
        self.lock(pin, there, Level::PMD).install(P::Paging::index(to, Level::PMD), entry);
        gather.add_stale(part);
        true
    }

    /// Moves `part` of what a large leaf maps to `to`, whose tables exist, page by page. What stays is unusable until `gather`
    /// is finished: so one flush does for both.
    fn relocate_part(
        &self,
        pin: &Pin<'_, P>,
        slot: HugeSlot,
        part: VirtRange,
        to: VirtAddr,
        gather: &mut Gather<'_, P>,
    ) -> Step {
        let usable = match Self::huge_leaf(&self.lock_slot(pin, slot), slot) {
            None => return Step::Again,
            Some(leaf) => leaf.flags.contains(LeafFlags::READ) && !leaf.flags.contains(LeafFlags::SPECIAL),
        };
        if !usable {
            // No TLB knows it: it becomes a table without a flush.
            return Step::Split;
        }
        let Some(leaf) = self.detach_part(slot, part) else { return Step::Again };
        let range = self.slot_range(slot);
        gather.add_stale(range);
        if part != range {
            gather.add_reopened(range);
        }
        let first = P::Paging::index(part.start(), Level::PTE) as u64;
        let flags = leaf.flags | LeafFlags::READ;
        for nth in 0..part.pages() {
            let addr = VirtAddr(to.0 + nth * PAGE_SIZE);
            if let Some(target) = self.find(addr) {
                let page = Entry::Leaf(Leaf { pfn: leaf.pfn.offset(first + nth), flags });
                self.lock(pin, target, Level::PTE).install(P::Paging::index(addr, Level::PTE), page);
            }
        }
        Step::Next
    }

    /// Moves the entries of one run, which lies in one table on each side.
    fn relocate_run(
        &self,
        pin: &Pin<'_, P>,
        source: Pfn,
        target: Pfn,
        run: VirtRange,
        target_start: VirtAddr,
        gather: &mut Gather<'_, P>,
    ) {
        // Two tables are locked in the order of their frames. Within one table there is one lock.
        let (first, second) = (source.min(target), source.max(target));
        let first = self.lock(pin, first, Level::PTE);
        let second = if source == target { None } else { Some(self.lock(pin, second, Level::PTE)) };
        let (from, to) = match &second {
            None => (&first, &first),
            Some(second) if source < target => (&first, second),
            Some(second) => (second, &first),
        };
        let shift = P::Paging::index(target_start, Level::PTE);
        for (nth, (index, addr)) in Self::pages(run).enumerate() {
            if from.entries[index].load(Ordering::Relaxed) == 0 {
                continue;
            }
            let entry = from.take(index);
            // Each entry keeps its own bits: a run must not inherit those of its first.
            to.install(shift + nth, entry);
            if let Entry::Leaf(Leaf { flags, .. }) = entry
                && flags.contains(LeafFlags::READ)
            {
                gather.add_stale(VirtRange::new(addr, VirtAddr(addr.0 + PAGE_SIZE)));
            }
        }
    }
}

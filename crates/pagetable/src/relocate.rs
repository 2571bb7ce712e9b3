//! Moving pages from one range to another, in the largest pieces that fit.
//!
//! A piece is some PMD tables by their entries in the PUD table, some bottom tables by their entries in the
//! PMD table, a large leaf, or entries of a bottom table. A table moves as it is, with all that it maps, in
//! two steps under the locks of both upper tables, so it must map nothing else: the addresses that it is
//! responsible for, on either side, may hold nothing but what moves. That is more than the move's own range
//! where nothing lies before or after it.
//!
//! The holder of the mmap lock has write-locked all VMAs concerned and holds their root lock exclusively. So
//! no fault and no walker of the rmap sees a table between its two places; the MMU and
//! `pin_page_fast` of `quire-space` may, and both look again.

use crate::gather::Gather;
use crate::huge::HugeLeaves;
use crate::huge_slot::HugeSlot;
use crate::memory::RemapTechnique;
use crate::table::{LockedTable, Tables};
use core::convert::Infallible;
use quire_arch::{
    Entry, Leaf, LeafFlags, Level, PAGE_SIZE, PagingFormat, Pfn, Pin, Platform, VirtAddr, VirtRange,
};
use quire_frame::AllocError;
use quire_sync::atomic::raw::{AtomicU64, Ordering};

/// The arguments of a move.
#[derive(Clone, Copy, Debug)]
pub struct Relocation {
    /// The pages.
    pub from: VirtRange,
    /// The target of the first page.
    pub to: VirtAddr,
    /// Addresses around `from` in which nothing else is mapped, without those to which the pages move.
    pub room: VirtRange,
    /// Addresses around the target in which nothing is mapped.
    pub target_room: VirtRange,
}

impl Relocation {
    /// The target of `addr`.
    fn target(&self, addr: VirtAddr) -> VirtAddr {
        VirtAddr(self.to.0.wrapping_add(addr.0.wrapping_sub(self.from.start().0)))
    }

    /// How many entries of an upper table, from the one that is responsible for `entry` on, can move: both
    /// sides of each hold nothing but what moves.
    fn entries(&self, entry: VirtRange) -> usize {
        let bytes = entry.len();
        let start = self.target(entry.start());
        let below = entry.start() < self.room.start() || start < self.target_room.start();
        if start.0 & (bytes - 1) != 0 || below || start.0.checked_add(bytes).is_none() {
            return 0;
        }
        let room = self.room.end().0.saturating_sub(entry.start().0) / bytes;
        let target_room = self.target_room.end().0.saturating_sub(start.0) / bytes;
        let wanted = (self.from.end().0 - entry.start().0).div_ceil(bytes);
        room.min(target_room).min(wanted) as usize
    }
}

/// Pieces that are prepared under one pin.
const PIECES: u32 = 32;

/// What moves in one step.
#[derive(Clone, Copy, Debug)]
enum Piece {
    /// The tables that entries at this level lead to, all in one table on either side. Some may be none.
    Tables(Level),
    /// A large leaf, to a place that is aligned alike.
    Huge(HugeSlot),
    /// Pages that a large leaf maps, to where they cannot move as one.
    Part(HugeSlot),
    /// Entries of this bottom table.
    Pages(Pfn),
}

quire_arch::part_of! {
    /// Moves pages of a space to other addresses.
    pub struct Mover { pub tables: Tables<'w> }
}

impl<P: Platform> Mover<'_, P> {
    /// Makes every table that moving will write to. After this the move cannot fail.
    pub fn prepare_move(self, job: &Relocation) -> Result<(), AllocError> {
        let (mut held, mut pieces) = (None, 0_u32);
        self.for_each_piece(job, |piece, part| {
            // There may be many tables to make: some under each pin.
            pieces = pieces.wrapping_add(1);
            if pieces.is_multiple_of(PIECES) {
                held = None;
            }
            let pin = held.get_or_insert_with(|| self.tables.pin());
            let start = job.target(part.start());
            match piece {
                Piece::Tables(level) => self.tables.make(pin, start, level).map(|_| ()),
                Piece::Huge(_) => self.tables.make(pin, start, Level::PMD).map(|_| ()),
                Piece::Pages(table) if self.tables.is_empty(table) => Ok(()),
                Piece::Pages(_) | Piece::Part(_) => {
                    // A table's worth of pages meets at most two tables on the other side.
                    self.tables.find_or_make(pin, start)?;
                    self.tables.find_or_make(pin, VirtAddr(start.0 + part.len() - PAGE_SIZE))?;
                    Ok(())
                }
            }
        })
    }

    /// Moves what was prepared. The old translations are noted in `gather`; the caller holds both VMAs
    /// write-locked until it is finished.
    pub fn relocate(self, job: &Relocation, gather: &mut Gather<'_, P>) {
        let Ok(()) = self.for_each_piece(job, |piece, part| {
            let pin = self.tables.pin();
            let to = job.target(part.start());
            let target = VirtRange::new(to, VirtAddr(to.0 + part.len()));
            match piece {
                Piece::Tables(level) => self.relocate_tables(&pin, level, part, to, gather),
                Piece::Huge(slot) => self.relocate_huge(&pin, slot, to, gather),
                Piece::Part(slot) => self.relocate_part(&pin, slot, part, to, gather),
                Piece::Pages(table) if self.tables.is_empty(table) => {}
                // A thread that split the folio for another mapping has made a table of what was prepared as
                // a leaf.
                Piece::Pages(_)
                    if Tables::<P>::huge_range(to) == target && self.tables.find(to).is_none() =>
                {
                    self.relocate_tables(&pin, Level::PMD, part, to, gather);
                }
                Piece::Pages(table) => self.relocate_pages(&pin, table, part, to, gather),
            }
            Ok::<(), Infallible>(())
        });
        gather.add_paged_out(job.from);
    }

    /// Calls `visit` with the pieces of the move, in the order of their addresses, each with the part of the
    /// range that it is. What is empty is skipped.
    fn for_each_piece<E>(
        self,
        job: &Relocation,
        mut visit: impl FnMut(Piece, VirtRange) -> Result<(), E>,
    ) -> Result<(), E> {
        let largest = match self.tables.memory().techniques().mremap {
            RemapTechnique::Ptes => Level::PTE,
            RemapTechnique::Puds => Level::PUD,
        };
        let mut at = job.from.start();
        'next: while at < job.from.end() {
            let mut table = self.tables.space().root();
            let mut level = P::Paging::root_level();
            loop {
                let entry = P::Paging::table_range(at, Level(level.0 - 1));
                let part = VirtRange::new(at, entry.end().min(job.from.end()));
                let index = P::Paging::index(at, level);
                let raw = self.tables.entries(table)[index].load(Ordering::Acquire);
                let found = P::Paging::decode(raw, level);
                if level <= largest
                    && matches!(found, Entry::Table(_))
                    && let Some(end) = self.movable_until(job, table, level, entry)
                {
                    at = end.min(job.from.end());
                    visit(Piece::Tables(level), VirtRange::new(part.start(), at))?;
                    continue 'next;
                }
                match found {
                    Entry::Table(child) if level == Level::PMD => visit(Piece::Pages(child), part)?,
                    Entry::Table(child) => {
                        (table, level) = (child, Level(level.0 - 1));
                        continue;
                    }
                    Entry::Leaf(_) => {
                        let slot = HugeSlot { table, index };
                        let start = job.target(at);
                        let whole = part == entry && Tables::<P>::huge_range(start).start() == start;
                        visit(if whole { Piece::Huge(slot) } else { Piece::Part(slot) }, part)?;
                    }
                    _ => {}
                }
                at = part.end();
                continue 'next;
            }
        }
        Ok(())
    }

    /// The end of the entries of `table`, at `level`, from the one for the addresses `entry` on, that lead to
    /// tables which can move as they are; `None` if that cannot. A table left on the other side blocks this:
    /// then the move continues one level below.
    fn movable_until(self, job: &Relocation, table: Pfn, level: Level, entry: VirtRange) -> Option<VirtAddr> {
        let there = job.target(entry.start());
        let (index, target_index) = (P::Paging::index(entry.start(), level), P::Paging::index(there, level));
        let most = job.entries(entry).min(P::Paging::entries(level) - index.max(target_index));
        let target = self.tables.find_table(there, level).map(|target| self.tables.entries(target));
        let entries = self.tables.entries(table)[index..index + most].iter();
        let movable = |(nth, entry): &(usize, &AtomicU64)| {
            let raw = entry.load(Ordering::Acquire);
            // Nothing to move.
            let is_table = raw == 0 || P::Paging::is_table(raw, level);
            is_table && target.is_none_or(|target| target[target_index + nth].load(Ordering::Relaxed) == 0)
        };
        let count = entries.enumerate().take_while(movable).count() as u64;
        (count > 0).then(|| VirtAddr(entry.start().0 + count * entry.len()))
    }

    /// Moves the tables that the entries at `level` for `part` lead to. The table at `level` for `to` exists.
    fn relocate_tables(
        self,
        pin: &Pin<'_, P>,
        level: Level,
        part: VirtRange,
        to: VirtAddr,
        gather: &mut Gather<'_, P>,
    ) {
        let (source, target) =
            (self.tables.find_table(part.start(), level), self.tables.find_table(to, level));
        let Some((source, target)) = source.zip(target) else { return };
        let (first, shift) = (P::Paging::index(part.start(), level), P::Paging::index(to, level));
        let last = P::Paging::index(VirtAddr(part.end().0 - 1), level);
        let below = Level(level.0 - 1);
        self.with_both(pin, (source, target), level, |from, there| {
            let mut moved = 0;
            for (slot, nth) in from.entries[first..=last].iter().zip(0..) {
                // Read only now, under the locks. The MMU sets no bits of such an entry that are needed.
                let raw = slot.load(Ordering::Relaxed);
                if !P::Paging::is_table(raw, level) {
                    continue;
                }
                if below > Level::PTE
                    && let Entry::Table(child) = P::Paging::decode(raw, level)
                {
                    let start =
                        P::Paging::table_range(to, below).start().0 + nth * P::Paging::entry_bytes(level);
                    let frame = self.tables.memory().frames().known(child);
                    frame.as_table().set_place(below, VirtAddr(start));
                }
                slot.store(0, Ordering::Relaxed);
                LockedTable::<P>::put_raw(&there.entries[shift + nth as usize], raw);
                moved += 1;
            }
            from.count_taken(moved);
            there.count_installed(moved);
            gather.count_moved(moved);
        });
        gather.add_stale(part);
    }

    /// Moves a large leaf, with the table that was deposited for it, to `to`, whose PMD table exists.
    fn relocate_huge(self, pin: &Pin<'_, P>, slot: HugeSlot, to: VirtAddr, gather: &mut Gather<'_, P>) {
        let Some(table) = self.tables.find_pmd(to) else { return };
        let target = HugeSlot { table, index: P::Paging::index(to, Level::PMD) };
        let range = self.tables.slot_range(slot);
        self.with_both(pin, (slot.table, table), Level::PMD, |source, there| {
            let Some(leaf) = Tables::<P>::huge_leaf(source, slot) else { return };
            if let Some(deposit) = HugeLeaves::new(self.tables).withdraw(slot) {
                HugeLeaves::new(self.tables).deposit(target, deposit);
            }
            let entry = source.take(slot.index);
            there.install(target.index, entry);
            gather.count_moved(1);
            if leaf.flags.contains(LeafFlags::READ) {
                gather.add_stale(range);
            }
        });
    }

    /// Moves `part` of what a large leaf maps, page by page. What stays is unusable until `gather` is
    /// finished, so one flush does for both.
    fn relocate_part(
        self,
        pin: &Pin<'_, P>,
        slot: HugeSlot,
        part: VirtRange,
        to: VirtAddr,
        gather: &mut Gather<'_, P>,
    ) {
        let leaf = Tables::<P>::huge_leaf(&self.tables.lock_slot(pin, slot), slot);
        let is_usable = |leaf: Leaf| leaf.flags.contains(LeafFlags::READ) && !self.tables.maps_cached(leaf);
        if !leaf.is_some_and(is_usable) {
            // No TLB has it: it becomes a table without a flush. One of a file's cache goes.
            HugeLeaves::new(self.tables).split_huge(slot);
            if let Some(table) = self.tables.find(part.start()) {
                self.relocate_pages(pin, table, part, to, gather);
            }
            return;
        }
        let range = self.tables.slot_range(slot);
        let Some(leaf) = HugeLeaves::new(self.tables).detach_part(slot, part, gather) else { return };
        gather.add_stale(range);
        if part != range {
            gather.add_restored(range);
        }
        let first = P::Paging::index(part.start(), Level::PTE);
        let usable = Leaf { flags: leaf.flags | LeafFlags::READ, ..leaf };
        for nth in 0..part.pages() {
            let addr = VirtAddr(to.0 + nth * PAGE_SIZE);
            if let Some(target) = self.tables.find(addr) {
                let page =
                    Entry::Leaf(HugeLeaves::new(self.tables).page_of_leaf(usable, first + nth as usize));
                self.tables.lock(pin, target, Level::PTE).install(P::Paging::index(addr, Level::PTE), page);
                gather.count_moved(1);
            }
        }
    }

    /// Moves the entries of `part`, all in the bottom table `source`.
    fn relocate_pages(
        self,
        pin: &Pin<'_, P>,
        source: Pfn,
        part: VirtRange,
        to: VirtAddr,
        gather: &mut Gather<'_, P>,
    ) {
        let mut at = part.start();
        while at < part.end() {
            let target_addr = VirtAddr(to.0 + (at.0 - part.start().0));
            let room = P::Paging::table_range(target_addr, Level::PTE).end().0 - target_addr.0;
            let end = VirtAddr(at.0.saturating_add(room)).min(part.end());
            if let Some(target) = self.tables.find(target_addr) {
                let first = P::Paging::index(at, Level::PTE);
                let pages = ((end.0 - at.0) / PAGE_SIZE) as usize;
                let shift = P::Paging::index(target_addr, Level::PTE);
                let (moved, stale) = self.with_both(pin, (source, target), Level::PTE, |from, there| {
                    relocate_run(from, there, first, shift, pages)
                });
                gather.count_moved(moved);
                if let Some((start, end)) = stale {
                    let addr = |nth: usize| VirtAddr(at.0 + nth as u64 * PAGE_SIZE);
                    gather.add_stale(VirtRange::new(addr(start), addr(end)));
                }
            }
            at = end;
        }
    }

    /// Calls `inside` with the two tables locked, which may be one.
    fn with_both<R>(
        self,
        pin: &Pin<'_, P>,
        (source, target): (Pfn, Pfn),
        level: Level,
        inside: impl FnOnce(&LockedTable<'_, P>, &LockedTable<'_, P>) -> R,
    ) -> R {
        if source == target {
            let both = self.tables.lock(pin, source, level);
            return inside(&both, &both);
        }
        let (source, target) = self.tables.lock_pair(pin, (source, target), level);
        inside(&source, &target)
    }
}

/// Moves what the `pages` entries of `from` after `first` hold to those of `there` after `shift`, which are
/// none. Returns how many there were, and from which to which of them was usable.
fn relocate_run<P: Platform>(
    from: &LockedTable<'_, P>,
    there: &LockedTable<'_, P>,
    first: usize,
    shift: usize,
    pages: usize,
) -> (usize, Option<(usize, usize)>) {
    let (from_entries, entries) = (&from.entries[first..first + pages], &there.entries[shift..shift + pages]);
    let usable = |entry: &AtomicU64| P::Paging::is_present_leaf(entry.load(Ordering::Relaxed), Level::PTE);
    // The first is found at once, as a rule.
    let first_usable = from_entries.iter().position(usable);
    let (mut last_usable, mut moved) = (0, 0);
    for (nth, (slot, target)) in from_entries.iter().zip(entries).enumerate() {
        let seen = slot.load(Ordering::Relaxed);
        if seen == 0 {
            continue;
        }
        // Each entry keeps its own bits: a run must not inherit those of its first.
        let raw = LockedTable::<P>::empty_entry(slot, seen);
        LockedTable::<P>::put_raw(target, raw);
        moved += 1;
        if P::Paging::is_present_leaf(raw, Level::PTE) {
            last_usable = nth + 1;
        }
    }
    let stale = first_usable.map(|first| (first, last_usable));
    from.count_taken(moved);
    there.count_installed(moved);
    (moved, stale)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn range(start: u64, end: u64) -> VirtRange {
        VirtRange::new(VirtAddr(start), VirtAddr(end))
    }

    #[test]
    fn a_table_moves_only_with_nothing_else_in_it() {
        let job = |room, target_room| Relocation {
            from: range(3 * MIB, 5 * MIB),
            to: VirtAddr(11 * MIB),
            room,
            target_room,
        };
        let wide = job(range(MIB, 7 * MIB), range(9 * MIB, 15 * MIB));
        assert_ne!(wide.entries(range(2 * MIB, 4 * MIB)), 0, "its start is aligned down");
        assert_ne!(wide.entries(range(4 * MIB, 6 * MIB)), 0, "and its end up");
        let after_neighbour = job(range(3 * MIB, 7 * MIB), range(9 * MIB, 15 * MIB));
        assert_eq!(after_neighbour.entries(range(2 * MIB, 4 * MIB)), 0);
        assert_ne!(after_neighbour.entries(range(4 * MIB, 6 * MIB)), 0);
        let before_neighbour = job(range(MIB, 7 * MIB), range(9 * MIB, 13 * MIB));
        assert_ne!(before_neighbour.entries(range(2 * MIB, 4 * MIB)), 0);
        assert_eq!(before_neighbour.entries(range(4 * MIB, 6 * MIB)), 0);
    }

    #[test]
    fn a_table_moves_only_between_places_that_are_aligned_alike() {
        let everywhere = range(0, 1 << 40);
        let mut job = Relocation {
            from: range(2 * MIB, 8 * MIB),
            to: VirtAddr(32 * MIB),
            room: everywhere,
            target_room: everywhere,
        };
        assert_ne!(job.entries(range(2 * MIB, 4 * MIB)), 0);
        job.to = VirtAddr(32 * MIB + PAGE_SIZE);
        assert_eq!(job.entries(range(2 * MIB, 4 * MIB)), 0);
    }

    #[test]
    fn a_place_below_all_addresses_is_none() {
        let job = Relocation {
            from: range(3 * MIB, 5 * MIB),
            to: VirtAddr(MIB),
            room: range(0, 1 << 40),
            target_room: range(0, 3 * MIB),
        };
        assert_ne!(job.entries(range(2 * MIB, 4 * MIB)), 0);
        let job = Relocation { from: range(1024 * MIB, 1025 * MIB), to: VirtAddr(1023 * MIB), ..job };
        assert_eq!(job.entries(range(0, 2048 * MIB)), 0);
    }
}

//! Moving pages from one range to another, in the largest pieces that fit (technique E).
//!
//! A piece is a PMD table by its entry in the PUD table, a bottom table by its entry in the PMD table, a large leaf, or
//! the entries of a bottom table. A table moves as it is, with all that it maps, in two steps under the locks of both upper
//! tables, so it must map nothing else: the addresses that it is responsible for, on either side, may hold nothing but what
//! moves. That is more than the move's own range where nothing lies before or after it.
//!
//! The holder of the mmap lock has write-locked all VMAs concerned and holds the lock of their family alone. So no fault
//! and no walker of the rmap sees a table between its two places; the MMU and [`pin_page_fast`](crate::Space::pin_page_fast)
//! may, and both look again.

use super::{HugeSlot, LockedTable, RemapTechnique, Tables};
use crate::gather::Gather;
use quire_arch::{Entry, LeafFlags, Level, PAGE_SIZE, PagingFormat, Pfn, Pin, Platform, VirtAddr, VirtRange};
use quire_frame::AllocError;
use quire_sync::atomic::raw::Ordering;

/// What is to be moved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Relocation {
    /// The pages.
    pub(crate) from: VirtRange,
    /// Where the first goes.
    pub(crate) to: VirtAddr,
    /// Addresses around `from` in which nothing else is mapped, those to which the pages go left out.
    pub(crate) room: VirtRange,
    /// Addresses around the target in which nothing is mapped.
    pub(crate) target_room: VirtRange,
}

impl Relocation {
    /// Where what is at `addr` goes.
    fn target(&self, addr: VirtAddr) -> VirtAddr {
        VirtAddr(self.to.0.wrapping_add(addr.0.wrapping_sub(self.from.start().0)))
    }

    /// Whether both sides of `entry`, what an entry of an upper table is responsible for, hold nothing but what moves.
    fn may_take(&self, entry: VirtRange) -> bool {
        let start = self.target(entry.start());
        let bytes = entry.len();
        start.0 & (bytes - 1) == 0
            && self.room.covers(entry)
            && start
                .0
                .checked_add(bytes)
                .is_some_and(|end| self.target_room.covers(VirtRange::new(start, VirtAddr(end))))
    }
}

/// What moves in one step.
#[derive(Clone, Copy, Debug)]
enum Piece {
    /// The table that the entry at this level leads to.
    Table(Level),
    /// A large leaf, to a place that is aligned alike.
    Huge(HugeSlot),
    /// Entries of this bottom table.
    Pages(Pfn),
}

impl<P: Platform> Tables<'_, P> {
    /// Makes every table that moving will write to. After this the move cannot fail.
    pub(crate) fn prepare_move(&self, pin: &Pin<'_, P>, job: &Relocation) -> Result<(), AllocError> {
        self.for_each_piece(job, |piece, part| {
            let start = job.target(part.start());
            match piece {
                Piece::Table(level) => self.make(pin, start, level).map(|_| ()),
                Piece::Huge(_) => self.make(pin, start, Level::PMD).map(|_| ()),
                Piece::Pages(table) => {
                    if self.spaces.frames().known(table).live().load(Ordering::Relaxed) == 0 {
                        return Ok(());
                    }
                    // A table's worth of pages meets at most two tables on the other side.
                    self.find_or_make(pin, start)?;
                    self.find_or_make(pin, VirtAddr(start.0 + part.len() - PAGE_SIZE))?;
                    Ok(())
                }
            }
        })
    }

    /// Moves what was prepared. The old translations are noted in `gather`; the caller holds both VMAs write-locked until it
    /// is finished.
    pub(crate) fn relocate(&self, job: &Relocation, gather: &mut Gather<'_, P>) {
        let moved = self.for_each_piece(job, |piece, part| {
            let pin = self.pin();
            let to = job.target(part.start());
            match piece {
                Piece::Table(level) => self.relocate_table(&pin, level, part, to, gather),
                Piece::Huge(slot) => self.relocate_huge(&pin, slot, to, gather),
                // A leaf when the move was prepared, which a walker of the rmap has split since: there is no table for its
                // entries on the other side, and nothing else in its block on either.
                Piece::Pages(_)
                    if self.find(to).is_none()
                        && self.may_move(job, Level::PMD, Self::huge_range(part.start())) =>
                {
                    self.relocate_table(&pin, Level::PMD, part, to, gather);
                }
                Piece::Pages(table) => self.relocate_pages(&pin, table, part, to, gather),
            }
            Ok::<(), core::convert::Infallible>(())
        });
        debug_assert!(moved.is_ok());
    }

    /// Calls `visit` with the pieces of the move, in the order of their addresses, each with the part of the range that it
    /// is. What is empty is passed over. A large leaf that cannot move as one becomes a table.
    fn for_each_piece<E>(
        &self,
        job: &Relocation,
        mut visit: impl FnMut(Piece, VirtRange) -> Result<(), E>,
    ) -> Result<(), E> {
        let largest = match self.spaces.remap_technique() {
            RemapTechnique::Ptes => Level::PTE,
            RemapTechnique::Pmds => Level::PMD,
            RemapTechnique::Puds => Level::PUD,
        };
        let mut at = job.from.start();
        'next: while at < job.from.end() {
            let mut table = self.core.root();
            let mut level = P::Paging::root_level();
            loop {
                let entry = P::Paging::table_range(at, Level(level.0 - 1));
                let part = VirtRange::new(at, entry.end().min(job.from.end()));
                let index = P::Paging::index(at, level);
                let raw = self.entries(table)[index].load(Ordering::Acquire);
                match P::Paging::decode(raw, level) {
                    Entry::Table(_) if level <= largest && self.may_move(job, level, entry) => {
                        visit(Piece::Table(level), part)?;
                    }
                    Entry::Table(child) if level == Level::PMD => visit(Piece::Pages(child), part)?,
                    Entry::Table(child) => {
                        (table, level) = (child, Level(level.0 - 1));
                        continue;
                    }
                    Entry::Leaf(_) => {
                        let slot = HugeSlot { table, index };
                        let start = job.target(at);
                        if part != entry || Self::huge_range(start).start() != start {
                            self.split_huge(slot);
                            continue 'next;
                        }
                        visit(Piece::Huge(slot), part)?;
                    }
                    _ => {}
                }
                at = part.end();
                continue 'next;
            }
        }
        Ok(())
    }

    /// Whether what the entry at `level` for the addresses `entry` leads to can move as it is. A table that was left at the
    /// other side is in the way: then the move goes on below.
    fn may_move(&self, job: &Relocation, level: Level, entry: VirtRange) -> bool {
        job.may_take(entry) && {
            let to = job.target(entry.start());
            let there = self.find_table(to, level);
            there.is_none_or(|table| {
                self.entries(table)[P::Paging::index(to, level)].load(Ordering::Relaxed) == 0
            })
        }
    }

    /// Moves the table that the entry at `level` leads to, of which `part` is what moves. The table at `level` for `to`
    /// exists.
    fn relocate_table(
        &self,
        pin: &Pin<'_, P>,
        level: Level,
        part: VirtRange,
        to: VirtAddr,
        gather: &mut Gather<'_, P>,
    ) {
        let (source, target) = (self.find_table(part.start(), level), self.find_table(to, level));
        let Some((source, target)) = source.zip(target) else { return };
        let (index, target_index) = (P::Paging::index(part.start(), level), P::Paging::index(to, level));
        let below = Level(level.0 - 1);
        self.with_both(pin, (source, target), level, |from, there| {
            // Read only now, under the locks.
            let Entry::Table(child) = from.take(index) else { return };
            let start = P::Paging::table_range(to, below).start();
            let frame = self.spaces.frames().known(child);
            // Those below keep theirs: of a bottom table only the level is asked.
            frame.index().store(start.0 | u64::from(below.0), Ordering::Relaxed);
            there.install(target_index, Entry::Table(child));
        });
        gather.add_stale(part);
    }

    /// Moves a large leaf, with the table that was deposited for it, to `to`, whose PMD table exists.
    fn relocate_huge(&self, pin: &Pin<'_, P>, slot: HugeSlot, to: VirtAddr, gather: &mut Gather<'_, P>) {
        let Some(table) = self.find_pmd(to) else { return };
        let target = HugeSlot { table, index: P::Paging::index(to, Level::PMD) };
        let range = self.slot_range(slot);
        self.with_both(pin, (slot.table, table), Level::PMD, |source, there| {
            let Some(leaf) = Self::huge_leaf(source, slot) else { return };
            if let Some(deposit) = self.withdraw(slot) {
                self.deposit(target, deposit);
            }
            let entry = source.take(slot.index);
            there.install(target.index, entry);
            if leaf.flags.contains(LeafFlags::READ) {
                gather.add_stale(range);
            }
        });
    }

    /// Moves the entries of `part`, all in the bottom table `source`.
    fn relocate_pages(
        &self,
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
            if let Some(target) = self.find(target_addr) {
                let first = P::Paging::index(at, Level::PTE);
                let pages = ((end.0 - at.0) / PAGE_SIZE) as usize;
                let shift = P::Paging::index(target_addr, Level::PTE);
                let stale = self.with_both(pin, (source, target), Level::PTE, |from, there| {
                    relocate_run(from, there, first, shift, pages)
                });
                if let Some((start, end)) = stale {
                    let addr = |nth: usize| VirtAddr(at.0 + nth as u64 * PAGE_SIZE);
                    gather.add_stale(VirtRange::new(addr(start), addr(end)));
                }
            }
            at = end;
        }
    }

    /// Locks two tables at `level`, which may be one, in the order of their frames.
    fn with_both<R>(
        &self,
        pin: &Pin<'_, P>,
        (source, target): (Pfn, Pfn),
        level: Level,
        inside: impl FnOnce(&LockedTable<'_, P>, &LockedTable<'_, P>) -> R,
    ) -> R {
        let first = self.lock(pin, source.min(target), level);
        if source == target {
            return inside(&first, &first);
        }
        let second = self.lock(pin, source.max(target), level);
        if source < target { inside(&first, &second) } else { inside(&second, &first) }
    }
}

/// Moves what the `pages` entries of `from` after `first` hold to those of `there` after `shift`, which are none. Answers
/// from which to which of them was usable.
fn relocate_run<P: Platform>(
    from: &LockedTable<'_, P>,
    there: &LockedTable<'_, P>,
    first: usize,
    shift: usize,
    pages: usize,
) -> Option<(usize, usize)> {
    let mut stale: Option<(usize, usize)> = None;
    let mut moved = 0;
    let entries = from.entries[first..first + pages].iter().zip(shift..);
    for (nth, (slot, target)) in entries.enumerate() {
        let seen = slot.load(Ordering::Relaxed);
        if seen == 0 {
            continue;
        }
        // Each entry keeps its own bits: a run must not inherit those of its first.
        let raw = LockedTable::<P>::empty_entry(slot, seen);
        there.put_raw(target, raw);
        moved += 1;
        if P::Paging::is_present_leaf(raw, Level::PTE) {
            stale = Some((stale.map_or(nth, |(start, _)| start), nth + 1));
        }
    }
    from.count_taken(moved);
    there.count_installed(moved);
    stale
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
        assert!(wide.may_take(range(2 * MIB, 4 * MIB)), "its start is aligned down");
        assert!(wide.may_take(range(4 * MIB, 6 * MIB)), "and its end up");
        let after_neighbour = job(range(3 * MIB, 7 * MIB), range(9 * MIB, 15 * MIB));
        assert!(!after_neighbour.may_take(range(2 * MIB, 4 * MIB)));
        assert!(after_neighbour.may_take(range(4 * MIB, 6 * MIB)));
        let before_neighbour = job(range(MIB, 7 * MIB), range(9 * MIB, 13 * MIB));
        assert!(before_neighbour.may_take(range(2 * MIB, 4 * MIB)));
        assert!(!before_neighbour.may_take(range(4 * MIB, 6 * MIB)));
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
        assert!(job.may_take(range(2 * MIB, 4 * MIB)));
        job.to = VirtAddr(32 * MIB + PAGE_SIZE);
        assert!(!job.may_take(range(2 * MIB, 4 * MIB)));
    }

    #[test]
    fn a_place_below_all_addresses_is_none() {
        let job = Relocation {
            from: range(3 * MIB, 5 * MIB),
            to: VirtAddr(MIB),
            room: range(0, 1 << 40),
            target_room: range(0, 3 * MIB),
        };
        assert!(job.may_take(range(2 * MIB, 4 * MIB)));
        let job = Relocation { from: range(1024 * MIB, 1025 * MIB), to: VirtAddr(1023 * MIB), ..job };
        assert!(!job.may_take(range(0, 2048 * MIB)));
    }
}

//! Page tables: finding, allocating, walking.
//!
//! A table is a frame of kind `Table`; its descriptor holds the table's lock, the number of its live entries
//! (guarded by the lock) and what it is responsible for. Entries are read without locks and written only
//! under the table's lock, by exchange or compare-exchange, since the MMU sets accessed and dirty bits
//! meanwhile.
//!
//! Tables are freed when they are empty ([`free_empty`](Tables::free_empty)), and only by the holder of the
//! mmap lock for writing. So a thread that holds it, in any mode, may rely on the tables that it finds.
//! Others (a fault that holds only its VMA, an rmap walker) look them up inside a section of the epoch, in
//! which a freed table is still a table, empty and dead. Reading it gives the right result: nothing. A thread
//! that wants to add an entry sees under its lock that it is dead ([`LockedTable::is_dead`]), and looks again
//! from the root.

mod change;
mod charge;
mod copy;
mod free;
mod huge;
mod look;
mod mlock;
mod relocate;
mod run;
mod settle;
mod swapped;
mod walk;
mod zap;

pub use change::Permissions;
pub use charge::NewPage;
pub use copy::Copying;
pub use free::FreeableRange;
pub use relocate::Relocation;
pub use swapped::SwappedRun;
pub use walk::{Found, WalkEntry, WalkStep};
pub use zap::Zap;

use crate::huge_slot::HugeSlot;
use crate::memory::{MemoryCore, TablesTechnique};
use crate::space_tables::SpaceTables;
use core::fmt;
use core::ops::Range;
use quire_arch::{
    Entry, Leaf, LeafFlags, Level, LockClass, Order, PAGE_SIZE, PagingFormat, Pfn, Pin, Platform, VirtAddr,
    VirtRange,
};
use quire_frame::{AllocError, AllocRequest, Frame, Kind};
use quire_sync::atomic::raw::{AtomicU64, Ordering};

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

/// The live count that marks a dead table: it was, or is about to be, unlinked, and gets no more entries.
const DEAD: u32 = u32::MAX;

/// The result of linking a table below another.
enum Linked {
    /// There is one.
    Table(Pfn),
    /// A large leaf is in its place.
    Leaf,
    /// The upper one is dead.
    Gone,
}

/// A locked table.
pub struct LockedTable<'s, P: Platform> {
    /// The entries. They change under this lock, but for the bits that the MMU sets.
    pub entries: &'s Entries,
    frame: &'s Frame,
    level: Level,
    execution: core::marker::PhantomData<fn() -> P>,
}

fn lock_class(level: Level) -> LockClass {
    if level == Level::PTE { LockClass::PteTable } else { LockClass::UpperTable }
}

impl<P: Platform> LockedTable<'_, P> {
    /// The decoded entry `index`.
    #[inline]
    pub fn get(&self, index: usize) -> Entry {
        P::Paging::decode(self.entries[index].load(Ordering::Relaxed), self.level)
    }

    /// Writes an entry that was none. Release: a walker that reads it sees the page or table filled.
    #[inline]
    pub fn install(&self, index: usize, entry: Entry) {
        let old = self.entries[index].swap(P::Paging::encode(entry, self.level), Ordering::Release);
        debug_assert_eq!(old, 0, "an installed entry was not none");
        self.add_live(1);
    }

    /// Overwrites a live entry and returns its last value.
    #[inline]
    pub fn replace(&self, index: usize, entry: Entry) -> Entry {
        let raw = P::Paging::encode(entry, self.level);
        P::Paging::decode(self.entries[index].swap(raw, Ordering::AcqRel), self.level)
    }

    /// Gives a leaf the permissions `access`, keeping the bits that the MMU may be setting concurrently.
    pub fn widen(&self, index: usize, access: LeafFlags) {
        let slot = &self.entries[index];
        let mut raw = slot.load(Ordering::Relaxed);
        while let Entry::Leaf(leaf) = P::Paging::decode(raw, self.level) {
            let new = Leaf { pfn: leaf.pfn, flags: leaf.flags | access };
            let encoded = P::Paging::encode(Entry::Leaf(new), self.level);
            match slot.compare_exchange(raw, encoded, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => raw = now,
            }
        }
    }

    /// Clears accessed or dirty bits of the leaf at `index`. Where they are in an entry depends on whether it
    /// is present.
    pub fn unmark(&self, index: usize, marks: LeafFlags) {
        let slot = &self.entries[index];
        let mut raw = slot.load(Ordering::Relaxed);
        while let Entry::Leaf(leaf) = P::Paging::decode(raw, self.level)
            && leaf.flags.intersects(marks)
        {
            // The MMU may be setting the same bits concurrently: such a page counts as used.
            let new =
                P::Paging::encode(Entry::Leaf(Leaf { pfn: leaf.pfn, flags: leaf.flags - marks }), self.level);
            match slot.compare_exchange(raw, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => raw = now,
            }
        }
    }

    /// Empties an entry and returns its last value.
    #[inline]
    pub fn take(&self, index: usize) -> Entry {
        let raw = self.entries[index].swap(0, Ordering::AcqRel);
        if raw != 0 {
            self.add_live(-1);
        }
        P::Paging::decode(raw, self.level)
    }

    /// Writes `raw` into an entry of a locked table that is none; counted by the caller
    /// ([`count_installed`](Self::count_installed)). Release as in [`install`](Self::install). The MMU does
    /// not write to empty entries, so a store is enough.
    #[inline]
    pub fn put_raw(slot: &AtomicU64, raw: u64) {
        debug_assert_eq!(slot.load(Ordering::Relaxed), 0, "an entry was not none");
        slot.store(raw, Ordering::Release);
    }

    /// Counts entries that [`put_raw`](Self::put_raw) wrote.
    #[inline]
    pub fn count_installed(&self, entries: usize) {
        self.add_live(entries as i32);
    }

    /// Forbids writes through the present leaf at `index`, and returns its form now.
    #[inline]
    pub fn write_protect(&self, index: usize) -> u64 {
        let slot = &self.entries[index];
        Self::protect_entry(slot, slot.load(Ordering::Relaxed))
    }

    /// As [`write_protect`](Self::write_protect), for an entry of a locked table that was just read as `raw`.
    #[inline]
    pub fn protect_entry(slot: &AtomicU64, mut raw: u64) -> u64 {
        loop {
            let protected = P::Paging::without_write(raw);
            let marked = P::Paging::ACCESSED | P::Paging::DIRTY;
            if protected == raw {
                return raw;
            }
            if raw & marked == marked {
                // There is nothing left for the MMU to set, so it does not write the entry.
                slot.store(protected, Ordering::Relaxed);
                return protected;
            }
            match slot.compare_exchange(raw, protected, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return protected,
                Err(now) => raw = now,
            }
        }
    }

    /// Empties an entry of a locked table that was just read as `seen`, and returns its last value; counted
    /// by the caller ([`count_taken`](Self::count_taken)).
    #[inline]
    pub fn empty_entry(slot: &AtomicU64, seen: u64) -> u64 {
        let marked = P::Paging::ACCESSED | P::Paging::DIRTY;
        if seen & marked == marked || !P::Paging::is_present_leaf(seen, Level::PTE) {
            // There is nothing left for the MMU to set, so it does not write the entry.
            slot.store(0, Ordering::Relaxed);
            seen
        } else {
            slot.swap(0, Ordering::AcqRel)
        }
    }

    /// Counts entries that [`empty_entry`](Self::empty_entry) emptied.
    #[inline]
    pub fn count_taken(&self, entries: usize) {
        self.add_live(-(entries as i32));
    }

    /// Empties `pages` live leaves from `index` on, whose accessed and dirty bits are not needed any more:
    /// concurrent updates by the MMU may be lost, so a store is enough; an exchange would cost ten times as
    /// much.
    #[inline]
    pub fn clear(&self, index: usize, pages: usize) {
        for slot in &self.entries[index..index + pages] {
            slot.store(0, Ordering::Relaxed);
        }
        self.add_live(-(pages as i32));
    }

    /// Whether no entry is live.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.frame.as_table().live() == 0
    }

    /// Whether the table is being freed. Nothing may be put in.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.frame.as_table().live() == DEAD
    }

    /// Marks the table dead if no entry is live, and returns whether it did.
    pub fn mark_dead_if_empty(&self) -> bool {
        let empty = self.is_empty();
        if empty {
            self.frame.as_table().set_live(DEAD);
        }
        empty
    }

    /// As [`mark_dead_if_empty`](Self::mark_dead_if_empty), if no entries but those of `leaving` are live.
    /// They are read once the table is unlinked and flushed.
    pub fn mark_dead_with(&self, leaving: Range<usize>) -> bool {
        let live = |entry: &&AtomicU64| entry.load(Ordering::Relaxed) != 0;
        let last = self.entries[leaving].iter().filter(live).count() == self.frame.as_table().live() as usize;
        if last {
            self.frame.as_table().set_live(DEAD);
        }
        last
    }

    /// A plain addition: the count changes only under the table's lock.
    #[inline]
    fn add_live(&self, change: i32) {
        let table = self.frame.as_table();
        debug_assert_ne!(table.live(), DEAD, "an entry of a dead table changed");
        table.set_live(table.live().wrapping_add_signed(change));
    }
}

impl<P: Platform> fmt::Debug for LockedTable<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockedTable").field("level", &self.level).finish_non_exhaustive()
    }
}

impl<P: Platform> Drop for LockedTable<'_, P> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: a `LockedTable` is made only by `Tables::lock`, which took the lock.
        unsafe { self.frame.as_table().unlock::<P>(lock_class(self.level)) };
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

    /// Takes the lock of `table`, which is at `level`. A CPU that spins for it must not wait for a holder
    /// that was preempted, so the holder is pinned.
    #[inline]
    pub fn lock<'p>(&self, _pin: &'p Pin<'_, P>, table: Pfn, level: Level) -> LockedTable<'p, P>
    where
        's: 'p,
    {
        let frame = self.memory.frames().known(table);
        frame.as_table().lock::<P>(lock_class(level));
        debug_assert!(
            matches!(frame.kind(), Kind::Table | Kind::Gathered | Kind::Limbo),
            "a table was freed while a walker could find it"
        );
        LockedTable { entries: self.entries(table), frame, level, execution: core::marker::PhantomData }
    }

    /// Takes the locks of two tables at `level`, perhaps of two spaces, in the order of their frames.
    #[inline]
    fn lock_pair<'p>(
        &self,
        pin: &'p Pin<'_, P>,
        (one, other): (Pfn, Pfn),
        level: Level,
    ) -> (LockedTable<'p, P>, LockedTable<'p, P>)
    where
        's: 'p,
    {
        debug_assert_ne!(one, other, "a pair is two tables");
        if one < other {
            (self.lock(pin, one, level), self.lock(pin, other, level))
        } else {
            let other = self.lock(pin, other, level);
            (self.lock(pin, one, level), other)
        }
    }

    /// The bottom table that covers `addr`, made with everything above it where missing; `None` where a large
    /// leaf is in its place. On failure the tables that were made stay: they are empty and are freed with the
    /// mapping.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn find_or_make(&self, pin: &Pin<'_, P>, addr: VirtAddr) -> Result<Option<Pfn>, AllocError> {
        match self.lookup(addr) {
            Found::Table(table) => Ok(Some(table)),
            Found::Huge(_) => Ok(None),
            Found::Nothing => self.make(pin, addr, Level::PTE),
        }
    }

    /// The table at `lowest` that covers `addr`, likewise.
    #[cold]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn make(&self, pin: &Pin<'_, P>, addr: VirtAddr, lowest: Level) -> Result<Option<Pfn>, AllocError> {
        let mut table = self.space.root();
        let mut level = P::Paging::root_level();
        let mut attempt = 0;
        while level > lowest
            && let Some(below) = level.down()
        {
            let index = P::Paging::index(addr, level);
            let raw = self.entries(table)[index].load(Ordering::Acquire);
            (table, level) = match P::Paging::decode(raw, level) {
                Entry::Table(pfn) => (pfn, below),
                Entry::Leaf(_) => return Ok(None),
                _ => match self.link(pin, table, level, addr)? {
                    Linked::Table(pfn) => (pfn, below),
                    Linked::Leaf => return Ok(None),
                    Linked::Gone => {
                        P::relax(attempt);
                        attempt = attempt.saturating_add(1);
                        (self.space.root(), P::Paging::root_level())
                    }
                },
            };
        }
        Ok(Some(table))
    }

    /// Puts a new table below `parent` for `addr`, or finds that another thread just did, or put a large leaf
    /// there.
    #[cfg_attr(debug_assertions, track_caller)]
    fn link(
        &self,
        pin: &Pin<'_, P>,
        parent: Pfn,
        level: Level,
        addr: VirtAddr,
    ) -> Result<Linked, AllocError> {
        let frames = self.memory.frames();
        let below = Level(level.0 - 1);
        // Allocated before the lock is taken, and checked again after: no allocation under a table lock.
        let new = frames.allocate(pin, AllocRequest::table().kind(Kind::Table))?;
        self.space.init_table(frames, new, below, P::Paging::table_range(addr, below).start());
        let index = P::Paging::index(addr, level);
        let locked = self.lock(pin, parent, level);
        let found = match locked.get(index) {
            Entry::Table(winner) => Linked::Table(winner),
            Entry::Leaf(_) => Linked::Leaf,
            _ if locked.is_dead() => Linked::Gone,
            _ => {
                locked.install(index, Entry::Table(new));
                // Under the lock: a thread that finds the table empty may free it at once, and subtracts it.
                self.space.residency.table_made();
                return Ok(Linked::Table(new));
            }
        };
        drop(locked);
        self.memory.memcgs().release_unused(pin, new, Order::ZERO);
        Ok(found)
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
fn parts<F: PagingFormat>(range: VirtRange, level: Level) -> impl Iterator<Item = (usize, VirtRange)> {
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

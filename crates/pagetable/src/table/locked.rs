//! A locked table: changes of its entries and of their count.

use super::{Entries, Tables};
use core::fmt;
use core::marker::PhantomData;
use core::ops::Range;
use quire_arch::{Entry, Leaf, LeafFlags, Level, LockClass, PagingFormat, Pfn, Pin, Platform};
use quire_frame::{Frame, Kind};
use quire_sync::atomic::raw::{AtomicU64, Ordering};

/// The live count that marks a dead table: it was, or is about to be, unlinked, and gets no more entries.
const DEAD: u32 = u32::MAX;

/// A locked table.
pub struct LockedTable<'s, P: Platform> {
    /// The entries. They change under this lock, but for the bits that the MMU sets.
    pub entries: &'s Entries,
    frame: &'s Frame,
    level: Level,
    execution: PhantomData<fn() -> P>,
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

    /// Writes an entry that was none. Release: a walker that reads it sees the page or table filled. The MMU
    /// does not write to empty entries, so a store is enough.
    // Always: the kind of the entry is known where this is called, and little is left of its encoding.
    #[inline(always)]
    pub fn install(&self, index: usize, entry: Entry) {
        Self::put_raw(&self.entries[index], P::Paging::encode(entry, self.level));
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

    /// Clears flags of the leaf at `index`, but not READ. Where they are in an entry depends on whether it is
    /// present.
    pub fn unmark(&self, index: usize, marks: LeafFlags) {
        let slot = &self.entries[index];
        let mut raw = slot.load(Ordering::Relaxed);
        while let Entry::Leaf(leaf) = P::Paging::decode(raw, self.level)
            && leaf.flags.intersects(marks)
        {
            // The MMU may be setting bits concurrently: such a page counts as used.
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
    /// ([`count_installed`](Self::count_installed)). Release as in [`install`](Self::install).
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
        let raw = slot.load(Ordering::Relaxed);
        debug_assert!(P::Paging::is_present_leaf(raw, self.level), "{raw:#x} is no present leaf");
        Self::protect_entry(slot, raw)
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
        LockedTable { entries: self.entries(table), frame, level, execution: PhantomData }
    }

    /// Takes the locks of two tables at `level`, perhaps of two spaces, in the order of their frames.
    #[inline]
    pub(crate) fn lock_pair<'p>(
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
}

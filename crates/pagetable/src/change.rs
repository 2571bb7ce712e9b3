//! Changing the permissions of mapped pages.

use crate::attributes::Permissions;
use crate::gather::Gather;
use crate::huge_slot::HugeSlot;
use crate::table::{LockedTable, Tables};
use crate::walk::{WalkEntry, WalkStep, Walker};
use core::sync::atomic::Ordering;
use quire_arch::{Entry, Leaf, LeafFlags, Level, PAGE_SIZE, PagingFormat, Platform, VirtAddr, VirtRange};
use quire_frame::Kind;

quire_arch::part_of! {
    /// Changes the permissions of mapped pages.
    pub struct Protector { pub tables: Tables<'w> }
}

impl<P: Platform> Protector<'_, P> {
    /// Gives every mapped page in `range` `permissions`. Translations that allowed more are noted
    /// in `gather`.
    pub fn protect(self, range: VirtRange, permissions: Permissions, gather: &mut Gather<'_, P>) {
        Walker::new(self.tables).walk(range, &mut |place, part| {
            let pin = self.tables.pin();
            match place {
                WalkEntry::Table(table) => {
                    let locked = self.tables.lock(&pin, table, Level::PTE);
                    if locked.is_empty() {
                        return WalkStep::Next;
                    }
                    self.protect_table(&locked, part, permissions, gather);
                    WalkStep::Next
                }
                WalkEntry::Huge(slot) if part != self.tables.slot_range(slot) => WalkStep::Split,
                WalkEntry::Huge(slot) => {
                    let locked = self.tables.lock_slot(&pin, slot);
                    match self.protect_huge(&locked, slot, permissions) {
                        Some(true) => gather.add_stale(part),
                        Some(false) => {}
                        None => return WalkStep::Again,
                    }
                    WalkStep::Next
                }
            }
        });
        gather.add_paged_out(range);
    }

    /// The same for the entries of one table, a run at a time: whether a folio is exclusive to the program is
    /// read from its first descriptor once, and not at all where no write will be allowed.
    fn protect_table(
        self,
        locked: &LockedTable<'_, P>,
        part: VirtRange,
        permissions: Permissions,
        gather: &mut Gather<'_, P>,
    ) {
        let start = P::Paging::index(part.start(), Level::PTE);
        let end = start + part.pages() as usize;
        let wanted = permissions.leaf;
        let ask = wanted.contains(LeafFlags::WRITE) && !permissions.shared;
        let mut stale: Option<(usize, usize)> = None;
        let mut index = start;
        while index < end {
            let raw = locked.entries[index].load(Ordering::Relaxed);
            let Entry::Leaf(leaf) = P::Paging::decode(raw, Level::PTE) else {
                index += 1;
                continue;
            };
            let (pages, allowed) = if leaf.flags.contains(LeafFlags::SPECIAL) {
                (1, wanted - LeafFlags::WRITE)
            } else if ask {
                let folio = self.tables.memory().frames().folios().lock_head(leaf.pfn);
                let own = folio.folio().kind() == Kind::Anonymous && folio.is_exclusive();
                let end = if leaf.flags.contains(LeafFlags::READ) { end } else { index + 1 };
                let pages = self.tables.run_length(locked.entries, (index, end), (raw, leaf.pfn), &folio);
                (pages, if own { wanted } else { wanted - LeafFlags::WRITE })
            } else {
                (1, wanted)
            };
            for nth in index..index + pages {
                if Self::set_access(locked, (nth, Level::PTE), allowed) == Some(true) {
                    let (first, _) = stale.unwrap_or((nth, nth));
                    stale = Some((first, nth + 1));
                }
            }
            index += pages;
        }
        if let Some((first, last)) = stale {
            let at = |index: usize| VirtAddr(part.start().0 + (index - start) as u64 * PAGE_SIZE);
            gather.add_stale(VirtRange::new(at(first), at(last)));
        }
    }

    /// Gives the large leaf at `slot` `permissions`, and returns whether it allowed
    /// more before; `None` if there is no leaf.
    fn protect_huge(
        self,
        locked: &LockedTable<'_, P>,
        slot: HugeSlot,
        permissions: Permissions,
    ) -> Option<bool> {
        let leaf = Tables::<P>::huge_leaf(locked, slot)?;
        let mut allowed = permissions.leaf;
        if allowed.contains(LeafFlags::WRITE) && !self.is_writable_as_is(leaf, permissions.shared) {
            allowed.remove(LeafFlags::WRITE);
        }
        Self::set_access(locked, (slot.index, Level::PMD), allowed)
    }

    /// Gives one leaf exactly the permissions `allowed`, and returns whether it allowed more before; `None`
    /// if there is no leaf.
    #[inline]
    fn set_access(
        locked: &LockedTable<'_, P>,
        (index, level): (usize, Level),
        allowed: LeafFlags,
    ) -> Option<bool> {
        let access = LeafFlags::READ | LeafFlags::WRITE | LeafFlags::EXECUTE;
        let slot = &locked.entries[index];
        loop {
            let raw = slot.load(Ordering::Relaxed);
            let Entry::Leaf(leaf) = P::Paging::decode(raw, level) else { return None };
            // What a guard hides gets the permissions of its mapping when the guard goes.
            let allowed = if leaf.flags.contains(LeafFlags::GUARD) { LeafFlags::empty() } else { allowed };
            let new = Leaf { pfn: leaf.pfn, flags: (leaf.flags - access) | allowed };
            let encoded = P::Paging::encode(Entry::Leaf(new), level);
            if encoded == raw {
                return Some(false);
            }
            // Compare-exchange: the MMU may be setting accessed and dirty in this very moment.
            if slot.compare_exchange(raw, encoded, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                let was_usable = leaf.flags.contains(LeafFlags::READ);
                return Some(was_usable && !new.flags.contains(leaf.flags & access));
            }
        }
    }

    /// Whether a leaf may be made writable without a fault: not the zero page, and of private memory only a
    /// page that is exclusive to the program. The table is locked.
    fn is_writable_as_is(self, leaf: Leaf, shared: bool) -> bool {
        if leaf.flags.contains(LeafFlags::SPECIAL) {
            return false;
        }
        let frames = self.tables.memory().frames();
        shared || {
            let folio = frames.folio(leaf.pfn);
            folio.kind() == Kind::Anonymous && frames.folios().lock_head(leaf.pfn).is_exclusive()
        }
    }
}

//! Pages that programs lock: they are on a list of their own, where reclaim does not come by.
//!
//! The lists are what this is about. That a locked page stays in memory does not depend on it: reclaim looks at the mappings of
//! a folio before it takes it, and finds the lock there.

use super::{LockedTable, Place, Step, Tables};
use crate::vma::{VmFlags, VmaFacts};
use quire_arch::{Entry, LeafFlags, Level, PagingFormat, Pfn, Pin, Platform, VirtRange};
use quire_frame::{FrameFlags, Kind, LockedFolio};
use quire_group::LruList;
use quire_sync::atomic::raw::Ordering;

impl<P: Platform> Tables<'_, P> {
    /// Puts the private folios that lie in `range` on the list of the locked ones, or back on that of those which may go. As in
    /// Linux, what lies in it only in part is not locked, but unlocked: its mapping may have been split since.
    pub(crate) fn set_locked(&self, range: VirtRange, locks: bool) {
        if !self.spaces.memory_groups().lists_anonymous() {
            return;
        }
        self.walk(range, &mut |place, part| {
            let pin = self.pin();
            match place {
                Place::Huge(slot) if part != self.slot_range(slot) => {}
                Place::Huge(slot) => {
                    let locked = self.lock_slot(&pin, slot);
                    if let Some(leaf) = Self::huge_leaf(&locked, slot)
                        && !leaf.flags.contains(LeafFlags::SPECIAL)
                    {
                        self.set_folio_locked(&pin, &self.spaces.frames().lock_folio(leaf.pfn), locks);
                    }
                }
                Place::Table(table) => {
                    let locked = self.lock(&pin, table, Level::PTE);
                    self.set_locked_in(&pin, &locked, part, locks);
                }
            }
            Step::Next
        });
    }

    fn set_locked_in(&self, pin: &Pin<'_, P>, locked: &LockedTable<'_, P>, part: VirtRange, locks: bool) {
        let mut index = P::Paging::index(part.start(), Level::PTE);
        let end = index + part.pages() as usize;
        while index < end && !locked.is_empty() {
            let raw = locked.entries[index].load(Ordering::Relaxed);
            let Entry::Leaf(leaf) = P::Paging::decode(raw, Level::PTE) else {
                index += 1;
                continue;
            };
            if leaf.flags.contains(LeafFlags::SPECIAL) {
                index += 1;
                continue;
            }
            let folio = self.spaces.frames().lock_folio(leaf.pfn);
            let end = if leaf.flags.contains(LeafFlags::READ) { end } else { index + 1 };
            let pages = self.run_length(locked.entries, (index, end), (raw, leaf.pfn), &folio);
            if !locks || pages as u64 == folio.folio().order().pages() {
                self.set_folio_locked(pin, &folio, locks);
            }
            index += pages;
        }
    }

    fn set_folio_locked(&self, pin: &Pin<'_, P>, folio: &LockedFolio<'_, P>, locks: bool) {
        let frame = folio.folio().frame();
        if folio.folio().kind() != Kind::Anonymous {
            return;
        }
        let groups = self.spaces.memory_groups();
        let list = if locks {
            frame.set_flags(FrameFlags::MLOCKED);
            LruList::Unevictable
        } else {
            frame.clear_flags(FrameFlags::MLOCKED);
            LruList::InactiveAnon
        };
        // What reclaim has in its hands at this moment it puts where it belongs, by the flag.
        if groups.list_of(folio.folio().head()).is_some_and(|now| (now == LruList::Unevictable) != locks) {
            groups.move_to(pin, folio.folio().head(), list, true);
        }
    }

    /// Puts a folio that was just mapped on the list of its group, if anything can be reclaimed on this machine.
    #[inline]
    pub(crate) fn list_new(&self, pin: &Pin<'_, P>, head: Pfn, facts: &VmaFacts) {
        if self.spaces.memory_groups().lists_anonymous() {
            self.list_mapped(pin, head, facts);
        }
    }

    fn list_mapped(&self, pin: &Pin<'_, P>, head: Pfn, facts: &VmaFacts) {
        let list = if facts.flags.contains(VmFlags::LOCKED) {
            self.spaces.frames().known(head).set_flags(FrameFlags::MLOCKED);
            LruList::Unevictable
        } else {
            LruList::InactiveAnon
        };
        self.spaces.memory_groups().list_folio(pin, head, list);
    }
}

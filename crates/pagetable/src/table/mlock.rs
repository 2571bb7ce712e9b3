//! Mlocked pages: they are on the unevictable list, which reclaim does not scan.
//!
//! This only maintains the lists. That a locked page stays in memory does not depend on it: reclaim checks
//! the mappings of a folio before it takes it, and finds the lock there. A folio is marked once, however many
//! mappings lock it. Removing it from one of them clears the mark, as in Linux. If another still locks it
//! reclaim sets the mark again when it scans the folio; a stale mark would never be found.

use super::{LockedTable, Tables, WalkEntry, WalkStep};
use quire_arch::{Entry, LeafFlags, Level, PagingFormat, Pin, Platform, VirtRange};
use quire_frame::{FrameFlags, HeadGuard, Kind, VmEvent};
use quire_memcg::LruList;
use quire_sync::atomic::raw::Ordering;

const NONE: FrameFlags = FrameFlags::empty();

impl<P: Platform> Tables<'_, P> {
    /// Puts the private folios that lie in `range` on the unevictable list, or back on an evictable one. As
    /// in Linux, what lies in it only in part is not locked, but unlocked: its mapping may have been split
    /// since.
    pub fn set_mlocked(&self, range: VirtRange, locks: bool) {
        if !self.memory.memcgs().folios().lists_anonymous() {
            return;
        }
        self.walk(range, &mut |place, part| {
            let pin = self.pin();
            match place {
                WalkEntry::Huge(slot) if locks && part != self.slot_range(slot) => {}
                WalkEntry::Huge(slot) => {
                    let locked = self.lock_slot(&pin, slot);
                    if let Some(leaf) = Self::huge_leaf(&locked, slot)
                        && !leaf.flags.contains(LeafFlags::SPECIAL)
                    {
                        self.set_folio_mlocked(&pin, &self.memory.frames().lock_head(leaf.pfn), locks);
                    }
                }
                WalkEntry::Table(table) => {
                    let locked = self.lock(&pin, table, Level::PTE);
                    self.set_mlocked_in(&pin, &locked, part, locks);
                }
            }
            WalkStep::Next
        });
    }

    fn set_mlocked_in(&self, pin: &Pin<'_, P>, locked: &LockedTable<'_, P>, part: VirtRange, locks: bool) {
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
            let folio = self.memory.frames().lock_head(leaf.pfn);
            let end = if leaf.flags.contains(LeafFlags::READ) { end } else { index + 1 };
            let pages = self.run_length(locked.entries, (index, end), (raw, leaf.pfn), &folio);
            if !locks || pages as u64 == folio.folio().order().pages() {
                self.set_folio_mlocked(pin, &folio, locks);
            }
            index += pages;
        }
    }

    /// A locked mapping no longer maps a page of `folio`; others may. The page was taken out of the mapping
    /// before: a thread that marks the folio for a locked mapping that it saw looks at the mappings once more
    /// (`quire_paging::referenced`).
    pub fn munlock_folio(&self, pin: &Pin<'_, P>, folio: &HeadGuard<'_, P>) {
        if self.memory.memcgs().folios().lists_anonymous() {
            self.set_folio_mlocked(pin, folio, false);
        }
    }

    fn set_folio_mlocked(&self, pin: &Pin<'_, P>, folio: &HeadGuard<'_, P>, locks: bool) {
        let (frame, head) = (folio.folio().frame(), folio.folio().head());
        if folio.folio().kind() != Kind::Anonymous {
            return;
        }
        let (memcgs, events) = (self.memory.memcgs(), self.memory.frames().events());
        let (list, marked, moved) = if locks {
            (LruList::Unevictable, VmEvent::UnevictablePgsMlocked, VmEvent::UnevictablePgsCulled)
        } else {
            // The file list, if it was freed lazily.
            (LruList::InactiveAnon, VmEvent::UnevictablePgsMunlocked, VmEvent::UnevictablePgsRescued)
        };
        let pages = folio.folio().order().pages();
        let (set, clear) = if locks { (FrameFlags::MLOCKED, NONE) } else { (NONE, FrameFlags::MLOCKED) };
        if frame.change_flags(set, clear).is_some_and(|was| was.contains(FrameFlags::MLOCKED) != locks) {
            events.add(pin, marked, pages);
        }
        // What reclaim has isolated at this moment it puts back on the right list, by the flag.
        let elsewhere =
            memcgs.folios().list_of(head).is_some_and(|now| (now == LruList::Unevictable) != locks);
        if elsewhere && memcgs.folios().move_to(pin, head, list, true) {
            events.add(pin, moved, pages);
        }
    }
}

//! Lazily freed pages (MADV_FREE).

use super::{cut_own, split_own};
use core::sync::atomic::Ordering;
use quire_arch::{Entry, LeafFlags, Level, PagingFormat, Pfn, Pin, Platform, VirtRange};
use quire_frame::{FrameFlags, HeadGuard, Kind, VmEvent};
use quire_memcg::{LruList, MemcgStat};
use quire_pagetable::{LockedTable, Tables, Unmapper, WalkEntry, WalkStep, Walker, pages_from};
use quire_thp::Thp;

/// The result for the entries that were processed.
enum Freed {
    /// So many are done.
    Entries(usize),
    /// So many map a part of a large folio, to which there is a reference.
    Part(usize, Pfn),
}

/// The marking of pages that some tables map.
#[derive(Debug)]
pub struct LazyFree<'s, P: Platform> {
    /// The tables.
    pub tables: Tables<'s, P>,
    /// Large folios, to split them.
    pub thp: Thp<'s, P>,
}

impl<P: Platform> LazyFree<'_, P> {
    /// Marks the pages of `range` as lazily freed (MADV_FREE). A later write makes a page needed again, so
    /// the accessed and dirty bits are cleared. A large folio that lies in the range only in part is split;
    /// shared folios are skipped. Old translations are noted in the gather, since they would not set the
    /// dirty bit on a write.
    pub fn free_lazily(&self, range: VirtRange, unmapper: &mut Unmapper<'_, P>) {
        Walker::new(&self.tables).walk(range, &mut |place, part| {
            match place {
                WalkEntry::Table(table) => self.free_in_table(table, part, unmapper),
                WalkEntry::Huge(slot) if part != self.tables.slot_range(slot) => {
                    return cut_own(&self.tables, slot);
                }
                WalkEntry::Huge(slot) => {
                    let pin = self.tables.pin();
                    let locked = self.tables.lock_slot(&pin, slot);
                    let Some(leaf) = Tables::<P>::huge_leaf(&locked, slot) else { return WalkStep::Again };
                    if !leaf.flags.contains(LeafFlags::SPECIAL) {
                        let _ = self.free_run(&pin, &locked, (slot.index, slot.index + 1), Level::PMD);
                        unmapper.gather().add_stale(part);
                    }
                }
            }
            WalkStep::Next
        });
        unmapper.gather().add_paged_out(range);
    }

    fn free_in_table(&self, table: Pfn, part: VirtRange, unmapper: &mut Unmapper<'_, P>) {
        let first = P::Paging::index(part.start(), Level::PTE);
        let end = first + part.pages() as usize;
        let (mut index, mut split_at) = (first, None);
        while index < end {
            let whole = {
                let pin = self.tables.pin();
                let locked = self.tables.lock(&pin, table, Level::PTE);
                self.free_until(&pin, &locked, (&mut index, end), (part, first), split_at, unmapper)
            };
            let Some(head) = whole else { return };
            split_own(self.thp, &self.tables, head);
            split_at = Some(index);
        }
    }

    /// Continues from `index` to `end`, or to a folio that has to be split, which it returns with a
    /// reference.
    fn free_until(
        &self,
        pin: &Pin<'_, P>,
        locked: &LockedTable<'_, P>,
        (index, end): (&mut usize, usize),
        (part, first): (VirtRange, usize),
        split_at: Option<usize>,
        unmapper: &mut Unmapper<'_, P>,
    ) -> Option<Pfn> {
        while *index < end {
            let at = pages_from(part.start(), *index - first).end();
            *index += match locked.get(*index) {
                Entry::Leaf(leaf) if !leaf.flags.contains(LeafFlags::SPECIAL) => {
                    match self.free_run(pin, locked, (*index, end), Level::PTE) {
                        Freed::Entries(entries) => {
                            unmapper.gather().add_stale(pages_from(at, entries));
                            entries
                        }
                        // It could not be split.
                        Freed::Part(entries, head) if split_at == Some(*index) => {
                            self.tables.memory().memcgs().folios().release_folio(head);
                            entries
                        }
                        Freed::Part(_, head) => return Some(head),
                    }
                }
                Entry::Swap(entry) => unmapper.zap_swapped(locked, (*index, end), entry),
                _ => 1,
            };
        }
        None
    }

    /// The same for the run that starts with a leaf at `index`.
    fn free_run(
        &self,
        pin: &Pin<'_, P>,
        locked: &LockedTable<'_, P>,
        (index, end): (usize, usize),
        level: Level,
    ) -> Freed {
        let raw = locked.entries[index].load(Ordering::Relaxed);
        let Entry::Leaf(leaf) = P::Paging::decode(raw, level) else { return Freed::Entries(1) };
        let folio = self.tables.memory().frames().folios().lock_head(leaf.pfn);
        let (entries, pages) = if level == Level::PTE {
            let pages = self.tables.run_of_any(locked.entries, (index, end), (raw, leaf), &folio);
            (pages, pages as u64)
        } else {
            (1, u64::from(Tables::<P>::huge_pages()))
        };
        let (head, frame) = (folio.folio().head(), folio.folio().frame());
        if folio.folio().kind() != Kind::Anonymous {
            return Freed::Entries(entries);
        }
        if pages < folio.folio().order().pages() {
            return if frame.get(1) { Freed::Part(entries, head) } else { Freed::Entries(entries) };
        }
        // A PMD leaf is processed as a whole. Another process that maps a smaller folio has entries of its
        // own with dirty bits for its writes.
        let alone = u64::from(folio.maps()) == pages;
        if level == Level::PMD && !alone || !self.forget_writes(&folio, alone) {
            return Freed::Entries(entries);
        }
        for at in index..index + entries {
            locked.unmark(at, LeafFlags::ACCESSED | LeafFlags::DIRTY);
        }
        let flags = frame.word().flags();
        // What was freed lazily before stays where it is, as in Linux.
        if !flags.intersects(FrameFlags::SWAP_CACHE | FrameFlags::MLOCKED | FrameFlags::LAZY_FREE) {
            frame.set_flags(FrameFlags::LAZY_FREE);
            self.list_lazy(pin, head);
        }
        Freed::Entries(entries)
    }

    /// Takes a folio out of the swap cache and clears its dirty flag, if no other entry maps it or names its
    /// slots. False if that was needed and not possible.
    fn forget_writes(&self, folio: &HeadGuard<'_, P>, alone: bool) -> bool {
        let (head, frame) = (folio.folio().head(), folio.folio().frame());
        let marks = FrameFlags::SWAP_CACHE | FrameFlags::DIRTY;
        if !frame.word().flags().intersects(marks) {
            return true;
        }
        if !alone {
            return false;
        }
        if frame.word().flags().contains(FrameFlags::SWAP_CACHE)
            && !self.tables.memory().swap().cache().leave_if_unnamed(head)
        {
            return false;
        }
        // Reclaim, which may be bringing it into the swap cache, relies on the mark as long as it has the
        // folio lock.
        let Some(_guard) = self.tables.memory().frames().folios().try_lock_folio(head) else { return false };
        if frame.word().flags().contains(FrameFlags::SWAP_CACHE) {
            return false;
        }
        frame.clear_flags(FrameFlags::DIRTY);
        true
    }

    /// Puts a folio where reclaim scans first. Freeing it needs no device, so even a machine without one
    /// lists it.
    fn list_lazy(&self, pin: &Pin<'_, P>, head: Pfn) {
        self.tables.memory().swap().io().count_pages(head, VmEvent::Pglazyfree, MemcgStat::Pglazyfree);
        let memcgs = self.tables.memory().memcgs();
        // Where all folios are listed, one that is on no list was isolated by reclaim, which puts it back on
        // the right one.
        if !memcgs.folios().move_to(pin, head, LruList::InactiveFile, true)
            && !memcgs.folios().lists_anonymous()
        {
            memcgs.folios().list_folio(pin, head, LruList::InactiveFile);
        }
    }
}

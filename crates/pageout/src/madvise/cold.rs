//! Deactivating or reclaiming pages at a program's request (MADV_COLD, MADV_PAGEOUT).

use super::{cut_own, split_own, split_own_shared};
use arrayvec::ArrayVec;
use core::fmt;
use quire_arch::{Entry, LeafFlags, Level, PagingFormat, Pfn, Pin, Platform, VirtRange};
use quire_file::ShmemPages;
use quire_frame::{FrameFlags, HeadGuard, Kind, VmEvent};
use quire_memcg::MemcgStat;
use quire_pagetable::{HugeSlot, LockedTable, Tables, WalkEntry, WalkStep, Walker};
use quire_sync::atomic::raw::Ordering;
use quire_thp::Thp;
use quire_vma::{Rmap, Vma};

/// What happens to the pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ageing {
    /// The active ones are deactivated: they are reclaimed sooner when memory runs short.
    Cold,
    /// They are reclaimed now.
    PageOut,
}

/// Folios that are paged out together.
const BATCH: usize = 32;

/// What has to be done after the lock of a table was released.
enum Stop {
    /// The batch is full, and this is where to go on.
    Full(usize),
    /// The folio, with a reference, lies in the range only in part, or there is no swap: it is split and
    /// processed again.
    Split(usize, Pfn),
}

/// Folios that are off their lists, and what tells other threads so.
struct Aged<G> {
    folios: ArrayVec<Pfn, BATCH>,
    under_way: Option<G>,
}

/// The ageing of pages that some tables map.
pub struct Cold<'s, P: Platform, B, F, E> {
    /// The tables.
    pub tables: Tables<'s, P>,
    /// Large folios, to split them.
    pub thp: Thp<'s, P>,
    /// Shared memory, to split its large folios.
    pub shmem: ShmemPages<'s, P, Vma>,
    /// Who maps it.
    pub rmap: Rmap<'s, P>,
    /// Whether the pages are reclaimed at once.
    pub way: Ageing,
    /// Tells other threads, as long as what it returns lives, that folios are off their lists, and about to
    /// be paged out. Called with locks held.
    pub begin: B,
    /// Pages out folios, each with a reference that it takes over.
    pub page_out: F,
    /// Whether it ends where it is: the program was killed, and its memory is wanted back.
    pub gives_up: E,
}

impl<P: Platform, G, B: Fn() -> G, F: Fn(&mut dyn Iterator<Item = Pfn>), E: Fn() -> bool>
    Cold<'_, P, B, F, E>
{
    /// Deactivates the folios in `range`. Shared folios are skipped, as in Linux, and so are folios of files
    /// that are written back.
    pub fn age(&self, range: VirtRange) {
        let mut aged = Aged { folios: ArrayVec::new(), under_way: None };
        Walker::new(&self.tables).walk(range, &mut |place, part| {
            if aged.folios.is_full() {
                self.send(&mut aged);
            }
            if (self.gives_up)() {
                return WalkStep::Stop;
            }
            match place {
                WalkEntry::Huge(slot) if part != self.tables.slot_range(slot) => {
                    return self.cut_huge(slot, &mut aged);
                }
                WalkEntry::Huge(slot) => self.age_huge(slot, &mut aged),
                WalkEntry::Table(table) => self.age_table(table, part, &mut aged),
            }
            WalkStep::Next
        });
        self.send(&mut aged);
    }

    /// Pages out what was collected. No lock of a table is held.
    fn send(&self, aged: &mut Aged<G>) {
        if !aged.folios.is_empty() {
            (self.page_out)(&mut aged.folios.drain(..));
        }
        aged.under_way = None;
    }

    /// Splits a folio, with a reference that it takes over, as [`split_own`]. That may wait for the folio
    /// lock, whose holder may be waiting for what was collected.
    fn send_and_split(&self, aged: &mut Aged<G>, head: Pfn) {
        self.send(aged);
        if self.tables.memory().frames().known(head).kind() == Kind::Shmem {
            split_own_shared((self.shmem, self.rmap), &self.tables, head);
        } else {
            split_own(self.thp, &self.tables, head);
        }
    }

    /// Only a part of a PMD leaf is in the range: as [`cut_own`]. One of shared memory is split as a folio.
    fn cut_huge(&self, slot: HugeSlot, aged: &mut Aged<G>) -> WalkStep {
        let shared = {
            let pin = self.tables.pin();
            let locked = self.tables.lock_slot(&pin, slot);
            Tables::<P>::huge_leaf(&locked, slot).and_then(|leaf| {
                let folio = self.tables.memory().frames().folios().lock_head(leaf.pfn);
                let alone = folio.folio().kind() == Kind::Shmem
                    && !leaf.flags.contains(LeafFlags::SPECIAL)
                    && folio.maps() == Tables::<P>::huge_pages();
                (alone && folio.folio().frame().get(1)).then_some(folio.folio().head())
            })
        };
        match shared {
            Some(head) => {
                self.send_and_split(aged, head);
                WalkStep::Next
            }
            None => cut_own(&self.tables, slot),
        }
    }

    fn age_huge(&self, slot: HugeSlot, aged: &mut Aged<G>) {
        let mut split = None;
        {
            let pin = self.tables.pin();
            let locked = self.tables.lock_slot(&pin, slot);
            let Some(leaf) = Tables::<P>::huge_leaf(&locked, slot) else { return };
            if leaf.flags.contains(LeafFlags::SPECIAL) {
                return;
            }
            let folio = self.tables.memory().frames().folios().lock_head(leaf.pfn);
            if !folio.folio().kind().is_swap_backed() || folio.maps() != Tables::<P>::huge_pages() {
                return;
            }
            locked.unmark(slot.index, LeafFlags::ACCESSED);
            if !self.lacks_swap_space(&folio) {
                self.make_old(&pin, &folio, aged);
            } else if folio.folio().frame().get(1) {
                split = Some(folio.folio().head());
            }
        }
        if let Some(head) = split {
            self.send_and_split(aged, head);
        }
    }

    fn age_table(&self, table: Pfn, part: VirtRange, aged: &mut Aged<G>) {
        let first = P::Paging::index(part.start(), Level::PTE);
        let end = first + part.pages() as usize;
        let mut from = first;
        let mut split_at = None;
        loop {
            let stop = {
                let pin = self.tables.pin();
                let locked = self.tables.lock(&pin, table, Level::PTE);
                self.age_until(&pin, &locked, (from, end), split_at, aged)
            };
            match stop {
                None => return,
                Some(Stop::Full(index)) => {
                    self.send(aged);
                    if (self.gives_up)() {
                        return;
                    }
                    from = index;
                }
                Some(Stop::Split(index, head)) => {
                    self.send_and_split(aged, head);
                    (from, split_at) = (index, Some(index));
                }
            }
        }
    }

    fn age_until(
        &self,
        pin: &Pin<'_, P>,
        locked: &LockedTable<'_, P>,
        (from, end): (usize, usize),
        split_at: Option<usize>,
        aged: &mut Aged<G>,
    ) -> Option<Stop> {
        let mut index = from;
        while index < end && !locked.is_empty() {
            if aged.folios.is_full() {
                return Some(Stop::Full(index));
            }
            let raw = locked.entries[index].load(Ordering::Relaxed);
            let Entry::Leaf(leaf) = P::Paging::decode(raw, Level::PTE) else {
                index += 1;
                continue;
            };
            if leaf.flags.contains(LeafFlags::SPECIAL) {
                index += 1;
                continue;
            }
            let folio = self.tables.memory().frames().folios().lock_head(leaf.pfn);
            let pages = self.tables.run_of_any(locked.entries, (index, end), (raw, leaf), &folio);
            let all = folio.folio().order().pages();
            if !folio.folio().kind().is_swap_backed() || u64::from(folio.maps()) > all {
                index += pages;
                continue;
            }
            if (pages as u64) < all {
                if split_at != Some(index) && folio.folio().frame().get(1) {
                    return Some(Stop::Split(index, folio.folio().head()));
                }
                index += pages;
                continue;
            }
            if split_at != Some(index) && self.lacks_swap_space(&folio) && folio.folio().frame().get(1) {
                return Some(Stop::Split(index, folio.folio().head()));
            }
            (index..index + pages).for_each(|at| locked.unmark(at, LeafFlags::ACCESSED));
            self.make_old(pin, &folio, aged);
            index += pages;
        }
        None
    }

    /// Whether a large folio should be paged out but there is no swap space for it. As in Linux it is then
    /// split, like one without enough contiguous slots.
    fn lacks_swap_space(&self, folio: &HeadGuard<'_, P>) -> bool {
        self.way == Ageing::PageOut
            && folio.folio().is_large()
            && !folio.folio().kind().is_of_file()
            && !self.tables.memory().memcgs().folios().lists_anonymous()
            && !folio.folio().frame().word().flags().contains(FrameFlags::LAZY_FREE)
    }

    fn make_old(&self, pin: &Pin<'_, P>, folio: &HeadGuard<'_, P>, aged: &mut Aged<G>) {
        let frame = folio.folio().frame();
        let head = folio.folio().head();
        let memcgs = self.tables.memory().memcgs();
        let before = frame.clear_flags(FrameFlags::REFERENCED);
        if before.is_some_and(|flags| flags.contains(FrameFlags::ACTIVE)) {
            frame.set_flags(FrameFlags::WORKINGSET);
        }
        match self.way {
            // One that is inactive keeps its place: it is not to become the last to be reclaimed.
            Ageing::Cold if memcgs.folios().deactivate(pin, head) => {
                let swap = self.tables.memory().swap();
                swap.io().count_pages(head, VmEvent::Pgdeactivate, MemcgStat::Pgdeactivate);
            }
            // As in Linux, which puts it back at once.
            Ageing::PageOut if before.is_some_and(|flags| flags.contains(FrameFlags::UNEVICTABLE)) => {}
            Ageing::PageOut => {
                // Before: a thread that no longer finds the folio on its list finds this.
                aged.under_way.get_or_insert_with(&self.begin);
                // One with as many references as can be stays on its list.
                if frame.get(1) {
                    // Where nothing is listed, shared memory is unmapped all the same.
                    let is_unlisted =
                        folio.folio().kind() == Kind::Shmem && !memcgs.folios().lists_anonymous();
                    if is_unlisted || memcgs.folios().unlist_folio(pin, head) {
                        aged.folios.push(head);
                    } else {
                        // Another thread has isolated it already. The mapping's reference is left.
                        frame.put(1);
                    }
                }
            }
            Ageing::Cold => {}
        }
    }
}

impl<P: Platform, B, F, E> fmt::Debug for Cold<'_, P, B, F, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cold").field("way", &self.way).finish_non_exhaustive()
    }
}

//! Making pages old, at a program's request (MADV_COLD, MADV_PAGEOUT).

use super::{HugeSlot, LockedTable, Place, Step, Tables};
use arrayvec::ArrayVec;
use quire_arch::{Entry, LeafFlags, Level, Order, PagingFormat, Pfn, Pin, Platform, VirtRange};
use quire_frame::{FrameFlags, Kind, LockedFolio};
use quire_sync::atomic::raw::Ordering;

/// What becomes of the pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ageing {
    /// They are the next to be reclaimed when memory runs short.
    Cold,
    /// They are reclaimed now.
    PageOut,
}

/// Folios that are paged out together.
const BATCH: usize = 32;

/// What is to be done after the lock of a table was released.
enum Stop {
    /// The batch is full, and this is where to go on.
    Full(usize),
    /// The folio, of which there is a reference, lies in the range only in part, or there is no swap: it is
    /// split, and looked at again.
    Split(usize, Pfn),
}

type Aged = ArrayVec<Pfn, BATCH>;

impl<P: Platform> Tables<'_, P> {
    /// Makes the folios that lie in `range` old. Those that others map too are left alone, as in Linux, and
    /// those of files.
    pub(crate) fn age(&self, range: VirtRange, way: Ageing) {
        let mut aged = Aged::new();
        self.walk(range, &mut |place, part| {
            if aged.is_full() {
                self.send(&mut aged);
            }
            match place {
                Place::Huge(slot) if part != self.slot_range(slot) => return self.cut_own(slot),
                Place::Huge(slot) => self.age_huge(slot, way, &mut aged),
                Place::Table(table) => self.age_table(table, part, way, &mut aged),
            }
            Step::Next
        });
        self.send(&mut aged);
    }

    /// Pages out what was collected. No lock of a table is held.
    fn send(&self, aged: &mut Aged) {
        if !aged.is_empty() {
            self.spaces.reclaim().page_out(self.spaces, &mut aged.drain(..));
        }
    }

    fn age_huge(&self, slot: HugeSlot, way: Ageing, aged: &mut Aged) {
        let mut split = None;
        {
            let pin = self.pin();
            let locked = self.lock_slot(&pin, slot);
            let Some(leaf) = Self::huge_leaf(&locked, slot) else { return };
            if leaf.flags.contains(LeafFlags::SPECIAL) {
                return;
            }
            let folio = self.spaces.frames().lock_folio(leaf.pfn);
            if folio.folio().kind() != Kind::Anonymous || folio.maps() != Self::huge_pages() {
                return;
            }
            locked.unmark(slot.index, LeafFlags::ACCESSED);
            if !self.lacks_swap_space(&folio, way) {
                self.make_old(&pin, &folio, way, aged);
            } else if folio.folio().frame().get(1) {
                split = Some(folio.folio().head());
            }
        }
        if let Some(head) = split {
            self.split_own(head);
        }
    }

    fn age_table(&self, table: Pfn, part: VirtRange, way: Ageing, aged: &mut Aged) {
        let first = P::Paging::index(part.start(), Level::PTE);
        let end = first + part.pages() as usize;
        let mut from = first;
        let mut split_at = None;
        loop {
            let stop = {
                let pin = self.pin();
                let locked = self.lock(&pin, table, Level::PTE);
                self.age_until(&pin, &locked, (from, end), split_at, way, aged)
            };
            match stop {
                None => return,
                Some(Stop::Full(index)) => {
                    self.send(aged);
                    from = index;
                }
                Some(Stop::Split(index, head)) => {
                    self.split_own(head);
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
        way: Ageing,
        aged: &mut Aged,
    ) -> Option<Stop> {
        let mut index = from;
        while index < end && !locked.is_empty() {
            if aged.is_full() {
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
            let folio = self.spaces.frames().lock_folio(leaf.pfn);
            let run_end = if leaf.flags.contains(LeafFlags::READ) { end } else { index + 1 };
            let pages = self.run_length(locked.entries, (index, run_end), (raw, leaf.pfn), &folio);
            let all = folio.folio().order().pages();
            if folio.folio().kind() != Kind::Anonymous || u64::from(folio.maps()) > all {
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
            if split_at != Some(index) && self.lacks_swap_space(&folio, way) && folio.folio().frame().get(1) {
                return Some(Stop::Split(index, folio.folio().head()));
            }
            (index..index + pages).for_each(|at| locked.unmark(at, LeafFlags::ACCESSED));
            self.make_old(pin, &folio, way, aged);
            index += pages;
        }
        None
    }

    /// Whether a large folio is to be paged out and cannot be, since there is no swap space for it. As in
    /// Linux it is split then, as one is for which there are no slots in a row.
    fn lacks_swap_space(&self, folio: &LockedFolio<'_, P>, way: Ageing) -> bool {
        way == Ageing::PageOut
            && folio.folio().is_large()
            && !self.spaces.memcgs().lists_anonymous()
            && !folio.folio().frame().word().flags().contains(FrameFlags::LAZY_FREE)
    }

    /// Splits a folio that no other process maps, and drops the reference to it. One that others map, or that
    /// cannot be split, is skipped.
    pub(super) fn split_own(&self, head: Pfn) {
        let own = self.spaces.frames().known(head).word().flags().contains(FrameFlags::ANONYMOUS_EXCLUSIVE);
        if own || !self.is_mapped_elsewhere(head) {
            let _ = self.spaces.split_held(head, Order::ZERO, false);
        }
        self.spaces.memcgs().release_folio(head);
    }

    fn make_old(&self, pin: &Pin<'_, P>, folio: &LockedFolio<'_, P>, way: Ageing, aged: &mut Aged) {
        let frame = folio.folio().frame();
        let head = folio.folio().head();
        let groups = self.spaces.memcgs();
        let before = frame.clear_flags(FrameFlags::REFERENCED);
        if before.is_some_and(|flags| flags.contains(FrameFlags::ACTIVE)) {
            frame.set_flags(FrameFlags::WORKINGSET);
        }
        match way {
            Ageing::Cold => {
                groups.deactivate(pin, head);
            }
            // A folio that is on no list is isolated by another thread already.
            Ageing::PageOut if groups.unlist_folio(pin, head) => {
                if frame.get(1) {
                    aged.push(head);
                }
            }
            Ageing::PageOut => {}
        }
    }
}

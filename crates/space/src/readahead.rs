//! Readahead: pages that a program will probably want next are read while it waits for the one that it wants now.
//!
//! Only devices that answer later are asked ahead; any other has a page as fast as it can be looked for. Where finding a place
//! takes the device long, the window is an aligned block of its slots; else it is the pages around in the mapping, ahead of a
//! program that goes through them in order. How many is said by what became of the pages that were read ahead before (as in
//! Linux's `swapin_nr_pages`).
//!
//! A page that is read ahead goes into the swap cache by the same insertion as any other, and is mapped by nobody. It stays under
//! its folio lock until the device has answered; whoever reaps the answer unlocks it, since nobody waits for it
//! ([`Swap::read_unattended`](quire_swap::Swap::read_unattended)). What a program says that it will need (MADV_WILLNEED) is read in
//! the same way, from any device.

use crate::huge::OrderSet;
use crate::space::Space;
use crate::spaces::Spaces;
use crate::table::{Found, Tables};
use crate::vma::Vma;
use arrayvec::ArrayVec;
use quire_arch::{
    Entry, Level, Order, PAGE_SHIFT, PAGE_SIZE, PagingFormat, Pfn, Platform, SwapEntry, VirtAddr, VirtRange,
};
use quire_frame::{FolioCounter, FrameFlags, VmEvent};
use quire_group::{GroupId, LruList};
use quire_swap::{Inserted, Seen, Shadow, SlotId};
use quire_sync::atomic::raw::{AtomicU64, Ordering};

/// Pages in the largest window (Linux's `vm.page-cluster`, 3).
const MOST: u64 = 8;

/// What is remembered of the readahead of one mapping: the page of the last fault, the window then, and the pages read ahead that
/// were used since. All is a guess, so nothing orders it.
#[derive(Debug, Default)]
pub(crate) struct Readahead(AtomicU64);

/// The parts of the word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct State {
    /// Number of the page.
    page: u64,
    window: u64,
    hits: u64,
}

impl State {
    const PART: u32 = 6;
    const MASK: u64 = (1 << Self::PART) - 1;

    const fn unpack(word: u64) -> Self {
        Self {
            page: word >> (2 * Self::PART),
            window: word >> Self::PART & Self::MASK,
            hits: word & Self::MASK,
        }
    }

    const fn pack(self) -> u64 {
        let hits = if self.hits < Self::MASK { self.hits } else { Self::MASK };
        self.page << (2 * Self::PART) | self.window << Self::PART | hits
    }

    /// The window for a fault at `page`.
    fn next_window(self, page: u64) -> u64 {
        let wanted = match self.hits {
            // One page beside the last is a beginning.
            0 if self.page.abs_diff(page) != 1 => 1,
            hits => (hits + 2).next_power_of_two().min(MOST),
        };
        // It does not shrink at once.
        wanted.max(self.window / 2)
    }
}

impl Readahead {
    /// The pages to read for a fault at `page`, that among them.
    fn window(&self, page: u64) -> (u64, u64) {
        let before = State::unpack(self.0.load(Ordering::Relaxed));
        let window = before.next_window(page);
        self.0.store(State { page, window, hits: 0 }.pack(), Ordering::Relaxed);
        let first = if page == before.page + 1 {
            page
        } else if page + 1 == before.page {
            (page + 1).saturating_sub(window)
        } else {
            page.saturating_sub(window / 2)
        };
        (first, window)
    }

    /// The page number `page`, which was read ahead, is used.
    fn hit(&self, page: u64) {
        let state = State::unpack(self.0.load(Ordering::Relaxed));
        self.0.store(State { page, hits: state.hits + 1, ..state }.pack(), Ordering::Relaxed);
    }
}

/// Slots to read ahead.
type Slots = ArrayVec<SlotId, { MOST as usize }>;

impl<P: Platform> Space<'_, P> {
    /// Begins to read what the program will probably want after the page at `addr`, for which `entry` stands. Nothing is held.
    #[cold]
    pub(crate) fn read_ahead(&self, addr: VirtAddr, entry: SwapEntry) {
        let slot = SlotId::of(entry);
        let swap = self.spaces.swap();
        if swap.is_synchronous(slot) || swap.is_cached(slot) {
            return;
        }
        let found = self.with_vma(addr, |tables, vma| {
            let (first, pages) = vma.readahead.window(addr.0 >> PAGE_SHIFT);
            if swap.seeks(slot) { None } else { Some(tables.swapped_around(vma, (first, pages), addr)) }
        });
        let ahead = match found {
            None => return,
            Some(Some(ahead)) => ahead,
            // Slots near each other, whoever names them.
            Some(None) => {
                let first = slot.number() & !(MOST - 1);
                (first..first + MOST).map(|number| SlotId::new(slot.device(), number)).collect()
            }
        };
        for other in ahead {
            if other != slot && self.spaces.begin_ahead(other, OrderSet::EMPTY, Ahead::Guessed).is_none() {
                return;
            }
        }
    }

    /// A page that was read ahead is wanted.
    pub(crate) fn note_read_ahead(&self, addr: VirtAddr, head: Pfn) {
        let frame = self.spaces.frames().known(head);
        let before = frame.clear_flags(FrameFlags::READAHEAD);
        if before.is_some_and(|flags| flags.contains(FrameFlags::READAHEAD)) {
            self.spaces.frames().events().add(&self.spaces.platform().pin(), VmEvent::SwapRaHit, 1);
            self.with_vma(addr, |_, vma| vma.readahead.hit(addr.0 >> PAGE_SHIFT));
        }
    }
}

impl<P: Platform> Tables<'_, P> {
    /// The slots that the entries of a window around `addr` name, in its mapping and in its table.
    fn swapped_around(&self, vma: &Vma, (first, pages): (u64, u64), addr: VirtAddr) -> Slots {
        let mut ahead = Slots::new();
        let start = first << PAGE_SHIFT;
        let window = VirtRange::new(VirtAddr(start), VirtAddr(start.saturating_add(pages * PAGE_SIZE)));
        let window = window.intersect(vma.range()).intersect(P::Paging::table_range(addr, Level::PTE));
        if window.is_empty() {
            return ahead;
        }
        let Found::Table(table) = self.lookup(addr) else { return ahead };
        let pin = self.pin();
        let locked = self.lock(&pin, table, Level::PTE);
        for (index, _) in Self::pages(window) {
            if let Entry::Swap(entry) = locked.get(index) {
                let _ = ahead.try_push(SlotId::of(entry));
            }
        }
        ahead
    }
}

/// Why pages are read that nobody waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ahead {
    /// They may be wanted: there is no more than memory to spare for them, and it is counted how many were.
    Guessed,
    /// A program said that it will need them: others make room.
    Wanted,
}

impl<P: Platform> Spaces<P> {
    /// Begins to read the folio of `slot`, of the largest of `orders` that can be had, or of order 0; the slot is a multiple of the
    /// largest. Answers how many pages need no more thought, or nothing if memory is short.
    pub(crate) fn begin_ahead(&self, slot: SlotId, orders: OrderSet, ahead: Ahead) -> Option<u64> {
        let (mut order, seen) = match self.swap().look(slot, orders.most()) {
            Seen::Cached(page) => {
                let folio = self.frames().folio(page);
                let pages = folio.pages_from(page);
                self.let_go(folio.head());
                return Some(pages);
            }
            Seen::Out { order, group } => (orders.up_to(order).most(), GroupId::from_bits(group)),
            Seen::Gone => return Some(1),
        };
        loop {
            let drains = ahead == Ahead::Wanted && order == Order::ZERO;
            let (head, charged) = match self.try_swap_folio(order, (slot, seen), drains) {
                Ok(had) => had,
                Err(_) if order > Order::ZERO => {
                    let pin = self.platform().pin();
                    self.frames().events().count_folio(&pin, order, FolioCounter::SwpinFallback, 1);
                    order = orders.below(order).most();
                    continue;
                }
                Err((cause, need)) if ahead == Ahead::Wanted && self.free_some(cause, need) => continue,
                Err(_) => return None,
            };
            let frame = self.frames().known(head);
            let Some(guard) = self.frames().try_lock_folio_long(head) else {
                self.let_go(head);
                return Some(order.pages());
            };
            // Before anybody can find it: whoever wants it waits for the answer, and takes it, instead of for the lock.
            frame.set_flags(FrameFlags::READING);
            let inserted = self.swap().insert(slot, head);
            if let Inserted::Won { shadow, group: now, .. } = inserted {
                self.settle_charge(order, charged, GroupId::from_bits(now));
                self.note_ahead(head, shadow, ahead);
                self.swap().read_unattended(guard, head);
                return Some(order.pages());
            }
            frame.clear_flags(FrameFlags::READING);
            drop(guard);
            self.let_go(head);
            match inserted {
                Inserted::Conflict | Inserted::NoMemory if order > Order::ZERO => {
                    order = orders.below(order).most();
                }
                Inserted::Found(page) => {
                    self.let_go(self.frames().folio(page).head());
                    return Some(1);
                }
                _ => return Some(1),
            }
        }
    }

    /// A folio is about to be read that nobody waits for.
    fn note_ahead(&self, head: Pfn, shadow: Option<Shadow>, ahead: Ahead) {
        let pin = self.platform().pin();
        match ahead {
            Ahead::Guessed => {
                self.frames().known(head).set_flags(FrameFlags::READAHEAD);
                self.frames().events().add(&pin, VmEvent::SwapRa, 1);
                self.memory_groups().list_folio(&pin, head, LruList::InactiveAnon);
            }
            Ahead::Wanted => self.note_wanted(&pin, head, shadow),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_window_grows_with_hits_and_shrinks_by_halves() {
        let readahead = Readahead::default();
        assert_eq!(readahead.window(1000), (1000, 1), "nothing is known");
        assert_eq!(readahead.window(1001), (1001, 2), "the next page: a beginning");
        readahead.hit(1002);
        assert_eq!(readahead.window(1003), (1003, 4));
        (1004..1007).for_each(|page| readahead.hit(page));
        assert_eq!(readahead.window(1007), (1007, 8));
        assert_eq!(readahead.window(5000), (4998, 4), "elsewhere, and nothing was used");
        assert_eq!(readahead.window(9000), (8999, 2));
        assert_eq!(readahead.window(3000), (3000, 1));
        assert_eq!(readahead.window(2999), (2998, 2), "backwards");
    }
}

//! Readahead: pages that a program will probably want next are read while it waits for the one that it wants
//! now.
//!
//! Only asynchronous devices are read ahead; a synchronous one has a page as fast as it can be looked for. On
//! a rotational device the window is an aligned block of its slots; else it is the pages around in the VMA,
//! ahead of a program that goes through them in order. How many depends on how many of the pages that were
//! read ahead before were used (as in Linux's `swapin_nr_pages`).
//!
//! A page that is read ahead goes into the swap cache by the same insertion as any other, and is not mapped.
//! It stays under its folio lock until the device has completed the read. The thread that reaps the
//! completion unlocks it, since no thread waits for it
//! ([`Swap::read_unattended`](quire_swap::Swap::read_unattended)). What a program says that it will need
//! (MADV_WILLNEED) is read in the same way, from any device.

use crate::huge::OrderSet;
use crate::space::Space;
use crate::spaces::Spaces;
use crate::table::{Found, Tables};
use crate::vma::{READAHEAD_MOST as MOST, Vma};
use arrayvec::ArrayVec;
use quire_arch::{
    Entry, Level, Order, PAGE_SHIFT, PAGE_SIZE, PagingFormat, Pfn, Platform, SwapEntry, VirtAddr, VirtRange,
};
use quire_frame::{FolioCounter, FrameFlags, VmEvent};
use quire_memcg::{LruList, MemcgId};
use quire_swap::{Inserted, Seen, Shadow, SlotId};

/// Slots to read ahead.
type Slots = ArrayVec<SlotId, { MOST as usize }>;

impl<P: Platform> Space<'_, P> {
    /// Begins to read what the program will probably want after the page at `addr`, for which `entry` stands.
    /// Nothing is held.
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
            // Neighbouring slots, whichever spaces name them.
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

/// Why pages are read that no thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ahead {
    /// They may be wanted: they take spare memory only, and it is counted how many were.
    Guessed,
    /// A program said that it will need them: other pages are reclaimed for them.
    Wanted,
}

impl<P: Platform> Spaces<P> {
    /// Begins to read the folio of `slot`, of the largest of `orders` that can be had, or of order 0; the
    /// slot is a multiple of the largest. Returns how many pages are dealt with by that, or nothing if memory
    /// is short.
    pub(crate) fn begin_ahead(&self, slot: SlotId, orders: OrderSet, ahead: Ahead) -> Option<u64> {
        let (mut order, seen) = match self.swap().look(slot, orders.most()) {
            Seen::Cached(page) => {
                let folio = self.frames().folio(page);
                let pages = folio.pages_from(page);
                self.memcgs().release_folio(folio.head());
                return Some(pages);
            }
            Seen::Out { order, group } => (orders.up_to(order).most(), MemcgId::from_bits(group)),
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
                self.memcgs().release_folio(head);
                return Some(order.pages());
            };
            // Before any thread can find it: a thread that wants it waits for the completion, and reaps it,
            // instead of for the lock.
            frame.set_flags(FrameFlags::READING);
            let inserted = self.swap().insert(slot, head);
            if let Inserted::Won { shadow, group: now, .. } = inserted {
                self.settle_charge(order, charged, MemcgId::from_bits(now));
                self.note_ahead(head, shadow, ahead);
                self.swap().read_unattended(guard, head);
                return Some(order.pages());
            }
            frame.clear_flags(FrameFlags::READING);
            drop(guard);
            self.memcgs().release_folio(head);
            match inserted {
                Inserted::Conflict | Inserted::NoMemory if order > Order::ZERO => {
                    order = orders.below(order).most();
                }
                Inserted::Found(page) => {
                    self.memcgs().release_folio(self.frames().folio(page).head());
                    return Some(1);
                }
                _ => return Some(1),
            }
        }
    }

    /// A folio is about to be read that no thread waits for.
    fn note_ahead(&self, head: Pfn, shadow: Option<Shadow>, ahead: Ahead) {
        let pin = self.platform().pin();
        match ahead {
            Ahead::Guessed => {
                self.frames().known(head).set_flags(FrameFlags::READAHEAD);
                self.frames().events().add(&pin, VmEvent::SwapRa, 1);
                self.memcgs().list_folio(&pin, head, LruList::InactiveAnon);
            }
            Ahead::Wanted => self.note_wanted(&pin, head, shadow),
        }
    }
}

//! Reading folios ahead: no thread waits for them.

use super::SwapIn;
use crate::error::Need;
use quire_arch::{Order, OrderSet, Pfn, Platform};
use quire_frame::{AllocError, FolioCounter, FrameFlags, VmEvent};
use quire_memcg::{LruList, MemcgId};
use quire_swap::{Inserted, Seen, Shadow, SlotId};

/// Why pages are read ahead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ahead {
    /// Readahead: they use spare memory only, and their hits are counted.
    Guessed,
    /// MADV_WILLNEED: other pages are reclaimed for them.
    Wanted,
}

impl<P: Platform> SwapIn<'_, '_, P> {
    /// Starts reading the folio of `slot`, of the largest of `orders` that can be allocated, or of order 0;
    /// the slot is a multiple of the largest. Returns how many pages this covers, or what is short.
    pub fn begin_ahead(
        self,
        slot: SlotId,
        orders: OrderSet,
        ahead: Ahead,
    ) -> Result<u64, (AllocError, Need)> {
        let (mut order, seen) = match self.memory.swap().cache().look(slot, orders.most()) {
            Seen::Cached(page) => {
                let folio = self.memory.frames().folio(page);
                let pages = folio.pages_from(page);
                self.memory.memcgs().folios().release_folio(folio.head());
                return Ok(pages);
            }
            Seen::Out { order, memcg } => (orders.up_to(order).most(), MemcgId::from_bits(memcg)),
            Seen::Gone => return Ok(1),
        };
        loop {
            let drains = ahead == Ahead::Wanted && order == Order::ZERO;
            let (head, charged) = match self.try_swap_folio(order, (slot, seen), drains) {
                Ok(had) => had,
                Err(_) if order > Order::ZERO => {
                    let pin = self.memory.platform().pin();
                    self.memory.frames().events().count_folio(&pin, order, FolioCounter::SwpinFallback, 1);
                    order = orders.below(order).most();
                    continue;
                }
                Err(short) => return Err(short),
            };
            let frame = self.memory.frames().known(head);
            let Some(guard) = self.memory.frames().folios().try_lock_folio(head) else {
                self.memory.memcgs().folios().release_folio(head);
                return Ok(order.pages());
            };
            // Before any thread can find it: a thread that wants it waits for the completion, and reaps it,
            // instead of for the lock.
            frame.set_flags(FrameFlags::READING);
            let inserted = self.memory.swap().cache().insert(slot, head);
            if let Inserted::Won { shadow, memcg: now, .. } = inserted {
                self.settle_charge(order, charged, MemcgId::from_bits(now));
                self.note_ahead(head, shadow, ahead);
                self.memory.swap().io().read_unattended(guard, head);
                return Ok(order.pages());
            }
            frame.clear_flags(FrameFlags::READING);
            drop(guard);
            self.memory.memcgs().folios().release_folio(head);
            match inserted {
                Inserted::Conflict | Inserted::NoMemory if order > Order::ZERO => {
                    order = orders.below(order).most();
                }
                Inserted::Found(page) => {
                    self.memory.memcgs().folios().release_folio(self.memory.frames().folio(page).head());
                    return Ok(1);
                }
                _ => return Ok(1),
            }
        }
    }

    /// A folio is about to be read that no thread waits for.
    fn note_ahead(self, head: Pfn, shadow: Option<Shadow>, ahead: Ahead) {
        let pin = self.memory.platform().pin();
        match ahead {
            Ahead::Guessed => {
                self.memory.frames().known(head).set_flags(FrameFlags::READAHEAD);
                self.memory.frames().events().add(&pin, VmEvent::SwapRa, 1);
                self.memory.memcgs().folios().list_folio(&pin, head, LruList::InactiveAnon);
            }
            Ahead::Wanted => self.note_wanted(&pin, head, shadow),
        }
    }
}

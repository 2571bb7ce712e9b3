//! Free slots of a cluster, for folios that enter the swap cache.

use super::Held;
use crate::cluster::{CLUSTER_ORDER, CLUSTER_SLOTS, Unit};
use crate::lists::ListId;
use crate::slot::SlotId;
use crate::word::SlotWord;
use quire_arch::{Order, Pfn, Platform};
use quire_frame::FrameFlags;
use quire_sync::atomic::Ordering;

/// A folio that is to enter the cache.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) head: Pfn,
    pub(crate) order: Order,
}

impl<P: Platform> Held<'_, P> {
    /// Whether a CPU allocates folios of `order` from the cluster.
    pub(crate) fn is_taken_for(&self, order: Order) -> bool {
        let taken = ListId::of(self.guard.cluster().list()) == ListId::Taken;
        taken && self.guard.order == order && (self.guard.table.is_some() || order == CLUSTER_ORDER)
    }

    /// An empty cluster may serve any order.
    pub(crate) fn prepare(&mut self, order: Order) {
        if self.guard.used == 0 {
            self.guard.order = order;
            self.guard.cursor = 0;
            self.guard.torn = false;
        }
    }

    /// No thread allocates from the cluster any more.
    pub(crate) fn release(&mut self) {
        let wanted = self.wanted_list();
        self.move_to(wanted, true);
    }

    /// The CPU that used the cluster found no free slots in it.
    pub(crate) fn put_away(&mut self) {
        let wanted = match self.wanted_list() {
            ListId::Nonfull(_) => ListId::Frag,
            // What was just taken off the list has nothing to discard.
            ListId::Discard => ListId::Free,
            other => other,
        };
        self.move_to(wanted, true);
    }

    /// Puts a folio into free slots of the cluster.
    pub(crate) fn place(&mut self, wanted: Wanted) -> Option<SlotId> {
        let pages = wanted.order.pages() as u32;
        let first = if wanted.order == self.guard.order { self.find_block() } else { self.find_piece() }?;
        debug_assert!(wanted.order == self.guard.order || wanted.order == Order::ZERO);
        let slot = self.slot(first);
        let frame = self.devices.frames().known(wanted.head);
        let got = frame.get(1);
        debug_assert!(got, "the caller of add_folio holds a reference");
        frame.as_folio().set_slot(slot.raw());
        frame.set_flags(FrameFlags::SWAP_CACHE | FrameFlags::DIRTY);
        // Until it is written the device has nothing of it.
        let word = SlotWord::folio(self.frame_number(wanted.head)).with_zero(true);
        if pages > 1 && self.devices.technique().whole_words() {
            self.guard.store(Unit { first, pages, word: SlotWord::FREE }, word.whole());
        } else {
            for nth in 0..pages {
                self.guard
                    .store(Unit { first: first + nth, pages: 1, word: SlotWord::FREE }, word.of_slot(nth));
            }
        }
        self.device.used.fetch_add(u64::from(pages), Ordering::Relaxed);
        Some(slot)
    }

    /// The first free block of the cluster's order, from where the last search ended.
    fn find_block(&mut self) -> Option<u32> {
        let pages = self.guard.block_pages();
        let blocks = self.limit() / pages;
        if u32::from(self.guard.used) + pages > self.limit() {
            return None;
        }
        if self.guard.used == 0 {
            self.guard.cursor = (1 % blocks) as u16;
            return Some(0);
        }
        let start = u32::from(self.guard.cursor);
        let is_free = |block: &u32| self.guard.is_free_block(block * pages);
        // Mostly the next one is.
        let next = Some(start).filter(|start| *start < blocks && is_free(start));
        let found = next.or_else(|| (start..blocks).chain(0..start.min(blocks)).find(is_free))?;
        self.guard.cursor = ((found + 1) % blocks) as u16;
        Some(found * pages)
    }

    /// A free slot, whatever block it breaks.
    fn find_piece(&mut self) -> Option<u32> {
        debug_assert!(self.guard.table.is_some() && self.limit() <= CLUSTER_SLOTS);
        let mut at = 0;
        while let Some(unit) = self.guard.next_unit(at, self.limit()) {
            if unit.word.is_free() {
                return Some(at);
            }
            at = unit.first + unit.pages;
        }
        None
    }
}

//! The charges of slots to memcgs.

use crate::Swap;
use quire_arch::{Order, Pfn, Pin, Platform};
use quire_frame::{FolioCounter, FrameChain};
use quire_memcg::MemcgId;

impl<P: Platform> Swap<P> {
    /// Charges `pages` slots to `group`; false if that is at its limit.
    #[inline]
    pub(crate) fn charge_slots(&self, group: u16, pages: u64) -> bool {
        self.memcgs().charge_swap(MemcgId::from_bits(group), pages).is_ok()
    }

    /// Takes a charge back.
    #[inline]
    pub(crate) fn uncharge_slots(&self, group: u16, pages: u64) {
        self.memcgs().uncharge_swap(MemcgId::from_bits(group), pages);
    }

    /// Drops a reference to a folio, and gives it back if that was the last one.
    pub(crate) fn put_folio(&self, pin: &Pin<'_, P>, head: Pfn, order: Order) {
        let mut chain = FrameChain::new();
        if self.memcgs().put_folio(&mut chain, head, order) && order > Order::ZERO {
            self.frames().events().count_folio(pin, order, FolioCounter::NrAnon, -1);
        }
        self.frames().free_chain(pin, chain);
    }
}

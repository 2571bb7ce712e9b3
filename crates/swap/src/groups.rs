//! What is asked of the room of memory groups.

use crate::Swap;
use quire_arch::{Order, Pfn, Pin, Platform};
use quire_frame::FrameChain;

impl<P: Platform> Swap<P> {
    /// Charges `pages` slots to `group`; false if that is at its limit.
    #[inline]
    pub(crate) fn charge_slots(&self, group: u16, pages: u64) -> bool {
        let _ = (group, pages);
        true
    }

    /// Takes a charge back.
    #[inline]
    pub(crate) fn uncharge_slots(&self, group: u16, pages: u64) {
        let _ = (group, pages);
    }

    /// Drops a reference to a folio, and gives it back if that was the last one.
    pub(crate) fn put_folio(&self, pin: &Pin<'_, P>, head: Pfn, order: Order) {
        let mut chain = FrameChain::new();
        let put = self.frames().put_folio(&mut chain, head, order);
        debug_assert!(put.is_ok(), "a folio that left the cache could not be given back: {put:?}");
        self.frames().free_chain(pin, chain);
    }
}

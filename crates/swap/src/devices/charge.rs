//! The charges of slots to memcgs.

use super::SwapDevices;
use quire_arch::Platform;
use quire_memcg::MemcgId;

impl<P: Platform> SwapDevices<P> {
    /// Charges `pages` slots to `memcg`; false if that is at its limit.
    #[inline]
    pub(crate) fn charge_slots(&self, memcg: u16, pages: u64) -> bool {
        self.memcgs().charges().charge_swap(MemcgId::from_bits(memcg), pages).is_ok()
    }

    /// Uncharges slots.
    #[inline]
    pub(crate) fn uncharge_slots(&self, memcg: u16, pages: u64) {
        self.memcgs().charges().uncharge_swap(MemcgId::from_bits(memcg), pages);
    }
}

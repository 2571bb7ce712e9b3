//! The places of large leaves.

use super::{LockedTable, Tables};
use crate::huge_slot::HugeSlot;
use quire_arch::{
    Entry, Leaf, Level, Order, PAGE_SIZE, PagingFormat, Pfn, Pin, Platform, VirtAddr, VirtRange,
};
use quire_sync::atomic::raw::Ordering;

impl<'s, P: Platform> Tables<'s, P> {
    /// The order of a folio that an entry of a PMD table maps, or `None` where the format has no such leaves.
    #[inline]
    pub fn huge_order() -> Option<Order> {
        if P::Paging::leaf_allowed(Level::PMD) { P::Paging::leaf_order(Level::PMD) } else { None }
    }

    /// Base pages that an entry of a PMD table maps.
    #[inline]
    pub fn huge_pages() -> u32 {
        (P::Paging::entry_bytes(Level::PMD) / PAGE_SIZE) as u32
    }

    /// The addresses of the PMD entry that covers `addr`.
    #[inline]
    pub fn huge_range(addr: VirtAddr) -> VirtRange {
        P::Paging::table_range(addr, Level::PTE)
    }

    /// Takes the lock of the table of `slot`.
    #[inline]
    pub fn lock_slot<'p>(&self, pin: &'p Pin<'_, P>, slot: HugeSlot) -> LockedTable<'p, P>
    where
        's: 'p,
    {
        self.lock(pin, slot.table, Level::PMD)
    }

    /// The leaf at `slot`, with its table locked, unless it is gone.
    #[inline]
    pub fn huge_leaf(locked: &LockedTable<'_, P>, slot: HugeSlot) -> Option<Leaf> {
        match locked.get(slot.index) {
            Entry::Leaf(leaf) => Some(leaf),
            _ => None,
        }
    }

    /// The addresses of `slot`.
    pub fn slot_range(&self, slot: HugeSlot) -> VirtRange {
        let table = self.memory.frames().known(slot.table).as_table().start();
        Self::huge_range(VirtAddr(table.0 + slot.index as u64 * P::Paging::entry_bytes(Level::PMD)))
    }

    /// Whether there is a leaf at `slot` that maps the folio of `order` at `head`. Without the lock of the
    /// table; it stays so while the folio's counts are locked.
    pub fn slot_maps(&self, slot: HugeSlot, head: Pfn, order: Order) -> bool {
        let raw = self.entries(slot.table)[slot.index].load(Ordering::Relaxed);
        match P::Paging::decode(raw, Level::PMD) {
            Entry::Leaf(Leaf { pfn, .. }) => pfn.0.wrapping_sub(head.0) < order.pages(),
            _ => false,
        }
    }
}

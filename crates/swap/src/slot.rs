//! Slot identifiers.

use crate::cluster::CLUSTER_SLOTS;
use core::fmt;
use quire_arch::Order;
use quire_arch::paging::SwapEntry;

/// Bits of a slot's number on its device.
const NUMBER_BITS: u32 = 44;

/// The most swap devices that a machine may have at once (Linux: `MAX_SWAPFILES`).
pub const MAX_DEVICES: usize = 32;

/// A swap device, below [`MAX_DEVICES`]. Numbers are used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceId(u8);

impl DeviceId {
    /// Device `index`, or `None` where there can be none.
    #[doc(hidden)]
    #[inline]
    pub const fn new(index: usize) -> Option<Self> {
        if index < MAX_DEVICES { Some(Self(index as u8)) } else { None }
    }

    /// The number as an index.
    #[doc(hidden)]
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A slot of a device: a place for one page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(u64);

impl SlotId {
    /// Slot `number` of `device`.
    #[inline]
    pub const fn new(device: DeviceId, number: u64) -> Self {
        debug_assert!(number >> NUMBER_BITS == 0);
        Self((device.0 as u64) << NUMBER_BITS | number)
    }

    /// The slot that a page-table entry names.
    #[inline]
    pub const fn of(entry: SwapEntry) -> Self {
        Self((entry.device as u64) << NUMBER_BITS | entry.slot)
    }

    /// The entry that names the slot.
    #[inline]
    pub const fn entry(self, exclusive: bool) -> SwapEntry {
        SwapEntry { device: (self.0 >> NUMBER_BITS) as u8, slot: self.number(), exclusive }
    }

    /// The first slot of the naturally aligned block of `order` around this one.
    #[inline]
    pub const fn block_start(self, order: Order) -> Self {
        Self(self.0 & !(order.pages() - 1))
    }

    /// Slots from this one to the end of its cluster.
    #[inline]
    pub const fn left_in_cluster(self) -> u64 {
        CLUSTER_SLOTS as u64 - self.0 % CLUSTER_SLOTS as u64
    }

    /// The slot `pages` further on.
    #[inline]
    pub const fn plus(self, pages: u64) -> Self {
        Self(self.0 + pages)
    }

    /// Its device's index, which may be past all devices if the slot came from an entry.
    #[inline]
    pub(crate) const fn device_index(self) -> usize {
        (self.0 >> NUMBER_BITS) as usize
    }

    /// Its device.
    #[inline]
    pub const fn device(self) -> DeviceId {
        DeviceId((self.0 >> NUMBER_BITS) as u8)
    }

    /// Its number on the device.
    #[inline]
    pub const fn number(self) -> u64 {
        self.0 & ((1 << NUMBER_BITS) - 1)
    }

    /// The slot as one word, as a folio in the cache keeps it.
    #[inline]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// The inverse of [`raw`](Self::raw).
    #[inline]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }
}

impl fmt::Debug for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {}:{:#x}", self.device_index(), self.number())
    }
}

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_and_its_entry_are_the_same() {
        let device = DeviceId::new(MAX_DEVICES - 1).unwrap();
        let slot = SlotId::new(device, (1 << NUMBER_BITS) - 2);
        for exclusive in [false, true] {
            let entry = slot.entry(exclusive);
            assert_eq!((entry.device, entry.slot, entry.exclusive), (31, (1 << 44) - 2, exclusive));
            assert_eq!(SlotId::of(entry), slot);
        }
        assert_eq!(SlotId::from_raw(slot.raw()).plus(1).number(), slot.number() + 1);
        assert_eq!(slot.plus(1).device(), device);
        assert_eq!(DeviceId::new(MAX_DEVICES), None);
    }
}

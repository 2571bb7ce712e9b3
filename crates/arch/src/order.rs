//! Block orders: a block of order `n` is `2^n` naturally aligned base pages.

use crate::addr::PAGE_SHIFT;
use core::fmt;

/// The order of a block of frames, 0 to [`Order::MAX`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Order(u8);

impl Order {
    /// One base page.
    pub const ZERO: Self = Self(0);
    /// The largest order that the buddy allocator keeps: 4 MiB blocks of 4 KiB pages, as in Linux on x86-64.
    pub const MAX: Self = Self(10);
    /// Number of orders, 0 to [`Order::MAX`] inclusive.
    pub const COUNT: usize = Self::MAX.0 as usize + 1;
    /// The order of a page that a level-1 (PMD) entry maps with 512-entry tables: 2 MiB.
    pub const PMD: Self = Self(9);
    /// Every order, smallest first.
    pub const ALL: [Self; Self::COUNT] = {
        let mut all = [Self(0); Self::COUNT];
        let mut order = 0;
        while order < Self::COUNT {
            all[order] = Self(order as u8);
            order += 1;
        }
        all
    };

    /// The order `order`, or `None` above [`Order::MAX`].
    #[inline]
    pub const fn new(order: u8) -> Option<Self> {
        if order <= Self::MAX.0 { Some(Self(order)) } else { None }
    }

    /// The order as a small number.
    #[inline]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The order as an index into per-order arrays.
    #[doc(hidden)]
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Base pages in a block of this order.
    #[inline]
    pub const fn pages(self) -> u64 {
        1 << self.0
    }

    /// Bytes in a block of this order.
    #[inline]
    pub const fn bytes(self) -> u64 {
        1 << (self.0 as u32 + PAGE_SHIFT)
    }

    /// The smallest order whose blocks have `bytes`, or `None` if none has so many.
    #[doc(hidden)]
    #[inline]
    pub fn for_bytes(bytes: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|order| order.bytes() >= bytes)
    }

    /// The next larger order, or `None` at the largest.
    #[doc(hidden)]
    #[inline]
    pub const fn larger(self) -> Option<Self> {
        Self::new(self.0 + 1)
    }

    /// The next smaller order, or `None` at order 0.
    #[doc(hidden)]
    #[inline]
    pub const fn smaller(self) -> Option<Self> {
        match self.0.checked_sub(1) {
            Some(order) => Some(Self(order)),
            None => None,
        }
    }
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Order({})", self.0)
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_end_at_the_largest() {
        assert_eq!(Order::MAX.larger(), None);
        assert_eq!(Order::ZERO.smaller(), None);
        assert_eq!(Order::new(11), None);
        assert_eq!(Order::ALL.len(), 11);
        assert_eq!(Order::PMD.bytes(), 2 << 20);
    }

    #[test]
    fn the_smallest_order_that_is_large_enough() {
        for order in Order::ALL {
            assert_eq!(Order::for_bytes(order.bytes()), Some(order));
            assert_eq!(Order::for_bytes(order.bytes() + 1), order.larger());
        }
        assert_eq!(Order::for_bytes(0), Some(Order::ZERO));
    }
}

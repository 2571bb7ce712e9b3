//! Sets of orders.

use crate::addr::{VirtAddr, VirtRange};
use crate::order::Order;
use core::fmt;

/// A set of orders.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct OrderSet(u16);

const _: () = assert!(Order::COUNT <= u16::BITS as usize);

impl OrderSet {
    /// No order.
    pub const EMPTY: Self = Self(0);
    /// The orders that large folios of anonymous memory can have, as in Linux: 2 to the PMD's. With two pages
    /// a folio would save too little for what it costs.
    pub const ANONYMOUS: Self = Self((2 << Order::PMD.get()) - (1 << 2));
    /// The orders that large folios of shared memory can have: 1 to the PMD's.
    pub const SHMEM: Self = Self((2 << Order::PMD.get()) - (1 << 1));
    /// Every order.
    pub const ALL: Self = Self((1 << Order::COUNT) - 1);
    /// The order of a PMD entry.
    pub const PMD: Self = Self::of(Order::PMD);

    /// One order.
    #[inline]
    pub const fn of(order: Order) -> Self {
        Self(1 << order.get())
    }

    /// A bit for each order, order 0 lowest.
    #[doc(hidden)]
    #[inline]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// The orders whose bits are set. Bits past the largest order are ignored.
    #[doc(hidden)]
    #[inline]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & ((2 << Order::MAX.get()) - 1))
    }

    /// Whether there is none.
    #[doc(hidden)]
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether `order` is one of them.
    #[doc(hidden)]
    #[inline]
    pub const fn contains(self, order: Order) -> bool {
        self.0 & (1 << order.get()) != 0
    }

    /// The orders of both.
    #[doc(hidden)]
    #[inline]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The orders that both have.
    #[doc(hidden)]
    #[inline]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Without those of `other`.
    #[doc(hidden)]
    #[inline]
    pub const fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Those that are not larger than `order`.
    #[doc(hidden)]
    #[inline]
    pub const fn up_to(self, order: Order) -> Self {
        Self(self.0 & ((2 << order.get()) - 1))
    }

    /// Those that are smaller than `order`.
    #[doc(hidden)]
    #[inline]
    pub const fn below(self, order: Order) -> Self {
        Self(self.0 & ((1 << order.get()) - 1))
    }

    /// The largest.
    #[inline]
    pub const fn largest(self) -> Option<Order> {
        match self.0.checked_ilog2() {
            Some(order) => Order::new(order as u8),
            None => None,
        }
    }

    /// The largest, or order 0, which a folio can have always.
    #[doc(hidden)]
    #[inline]
    pub fn most(self) -> Order {
        self.largest().unwrap_or(Order::ZERO)
    }

    /// The orders, largest first: the order in which a fault tries them.
    #[doc(hidden)]
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = Order> {
        let mut rest = self;
        core::iter::from_fn(move || {
            let order = rest.largest()?;
            rest = rest.difference(Self::of(order));
            Some(order)
        })
    }

    /// Those whose naturally aligned block around `addr` lies within `range`.
    #[doc(hidden)]
    #[inline]
    pub fn around(self, addr: VirtAddr, range: VirtRange) -> Self {
        self.down_to_first(|order| {
            let start = VirtAddr(addr.0 & !(order.bytes() - 1));
            VirtRange::from_len(start, order.bytes()).is_some_and(|block| range.covers(block))
        })
    }

    /// Those of which `range` holds a naturally aligned block.
    #[doc(hidden)]
    #[inline]
    pub fn fitting(self, range: VirtRange) -> Self {
        // No other aligned block ends later.
        self.down_to_first(|order| {
            let end = range.end().0 & !(order.bytes() - 1);
            end.checked_sub(order.bytes()).is_some_and(|start| start >= range.start().0)
        })
    }

    /// Those of whose blocks so many `pages` are a multiple.
    #[doc(hidden)]
    #[inline]
    pub fn dividing(self, pages: u64) -> Self {
        self.down_to_first(|order| pages & (order.pages() - 1) == 0)
    }

    /// The largest order that `fits`, and all below: an aligned block holds the aligned blocks of smaller
    /// orders.
    #[inline]
    fn down_to_first(self, mut fits: impl FnMut(Order) -> bool) -> Self {
        let mut rest = self;
        while let Some(order) = rest.largest() {
            if fits(order) {
                break;
            }
            rest = rest.difference(Self::of(order));
        }
        rest
    }
}

impl FromIterator<Order> for OrderSet {
    fn from_iter<I: IntoIterator<Item = Order>>(orders: I) -> Self {
        orders.into_iter().fold(Self::EMPTY, |set, order| set.union(Self::of(order)))
    }
}

impl fmt::Debug for OrderSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(Order::get)).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::PAGE_SIZE;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn anonymous_memory_comes_in_orders_2_to_9() {
        let orders: Vec<u8> = OrderSet::ANONYMOUS.iter().map(Order::get).collect();
        assert_eq!(orders, [9, 8, 7, 6, 5, 4, 3, 2]);
        assert_eq!(OrderSet::EMPTY.largest(), None);
        assert_eq!(OrderSet::from_bits(u16::MAX).largest(), Some(Order::MAX));
    }

    #[test]
    fn at_the_top_of_the_addresses_nothing_wraps() {
        let all = OrderSet::from_bits(u16::MAX);
        let below_top = |pages: u64| VirtAddr(0u64.wrapping_sub(pages * PAGE_SIZE));
        let range = VirtRange::new(below_top(8), below_top(1));
        assert_eq!(all.around(below_top(3), range).bits(), 0b11);
        assert_eq!(all.fitting(range).bits(), 0b111);
        assert_eq!(all.fitting(VirtRange::new(VirtAddr(0), VirtAddr(PAGE_SIZE))).bits(), 1);
        assert_eq!(all.fitting(VirtRange::new(VirtAddr(0), VirtAddr(0))), OrderSet::EMPTY);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Against a search through all blocks.
        #[test]
        fn what_fits_is_what_a_search_finds(
            bits in any::<u16>(),
            start in 0u64..1500,
            pages in 1u64..2500,
            page in 0u64..2500,
        ) {
            let set = OrderSet::from_bits(bits);
            let end = start + pages;
            let range = VirtRange::new(VirtAddr(start * PAGE_SIZE), VirtAddr(end * PAGE_SIZE));
            let at = start + page % pages;
            let inside = |first: u64, order: Order| first >= start && first + order.pages() <= end;
            let around: OrderSet = set.iter().filter(|order| inside(at & !(order.pages() - 1), *order)).collect();
            prop_assert_eq!(set.around(VirtAddr(at * PAGE_SIZE + 7), range), around);
            let dividing: OrderSet = set.iter().filter(|order| at % order.pages() == 0).collect();
            prop_assert_eq!(set.dividing(at), dividing);
            let has_block = |order: &Order| {
                (0..end).step_by(order.pages() as usize).any(|first| inside(first, *order))
            };
            let fitting: OrderSet = set.iter().filter(has_block).collect();
            prop_assert_eq!(set.fitting(range), fitting);
        }
    }
}

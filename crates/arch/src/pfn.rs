//! Page-frame numbers and ranges of them.

use crate::addr::{PAGE_SHIFT, PhysAddr};
use crate::order::Order;
use core::fmt;

/// The number of a physical page frame: its physical address divided by the page size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Pfn(pub u64);

impl Pfn {
    /// The physical address of the frame's first byte.
    #[inline]
    pub const fn to_phys(self) -> PhysAddr {
        PhysAddr(self.0 << PAGE_SHIFT)
    }

    /// The frame `frames` further on.
    #[inline]
    pub const fn offset(self, frames: u64) -> Self {
        Self(self.0 + frames)
    }

    /// Whether a block of `order` may start here.
    #[doc(hidden)]
    #[inline]
    pub const fn is_aligned(self, order: Order) -> bool {
        self.0 & (order.pages() - 1) == 0
    }

    /// The first frame of the naturally aligned block of `order` that holds this frame.
    #[doc(hidden)]
    #[inline]
    pub const fn block_start(self, order: Order) -> Self {
        Self(self.0 & !(order.pages() - 1))
    }

    /// The first frame of the other half of the block of `order + 1` that a block of `order` here belongs to.
    #[doc(hidden)]
    #[inline]
    pub const fn buddy(self, order: Order) -> Self {
        Self(self.0 ^ order.pages())
    }
}

impl fmt::Debug for Pfn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pfn({:#x})", self.0)
    }
}

/// A half-open range of frames, `start <= end`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PfnRange {
    start: Pfn,
    end: Pfn,
}

impl PfnRange {
    /// The range from `start` up to `end`; a range that would run backwards is empty at `start`.
    #[inline]
    pub const fn new(start: Pfn, end: Pfn) -> Self {
        if end.0 < start.0 { Self { start, end: start } } else { Self { start, end } }
    }

    /// First frame.
    #[inline]
    pub const fn start(self) -> Pfn {
        self.start
    }

    /// First frame past the range.
    #[inline]
    pub const fn end(self) -> Pfn {
        self.end
    }

    /// Number of frames.
    #[inline]
    pub const fn len(self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Whether the range holds no frame.
    #[doc(hidden)]
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.start.0 == self.end.0
    }

    /// Whether `pfn` lies in the range.
    #[doc(hidden)]
    #[inline]
    pub const fn contains(self, pfn: Pfn) -> bool {
        self.start.0 <= pfn.0 && pfn.0 < self.end.0
    }
}

impl fmt::Debug for PfnRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pfn {:#x}-{:#x}", self.start.0, self.end.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buddies_are_each_others_buddy_and_share_a_parent_block() {
        for order in Order::ALL.into_iter().filter(|&order| order < Order::MAX) {
            let pfn = Pfn(0x1234_5400).block_start(order);
            let buddy = pfn.buddy(order);
            let parent = order.larger().expect("below the largest");
            assert_eq!(buddy.buddy(order), pfn);
            assert_eq!(pfn.block_start(parent), buddy.block_start(parent));
            assert!(buddy.is_aligned(order));
        }
    }
}

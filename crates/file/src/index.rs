//! Numbers of pages in a file, and ranges of them.

use core::fmt;
use core::ops::Range;
use quire_arch::{Order, PAGE_SHIFT};

/// The number of a page in its file: the offset of its first byte divided by the page size (Linux's
/// `pgoff_t`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct PageIndex(u64);

impl PageIndex {
    /// Bits of an index: offsets have 63 bits.
    pub(crate) const BITS: u32 = 51;
    /// The first page.
    pub const ZERO: Self = Self(0);
    /// The last page that a file can have.
    pub const MAX: Self = Self((1 << Self::BITS) - 1);

    /// Page `index`, or `None` past [`MAX`](Self::MAX).
    #[inline]
    pub const fn new(index: u64) -> Option<Self> {
        if index <= Self::MAX.0 { Some(Self(index)) } else { None }
    }

    /// Page `index`, which the caller knows to be a file's.
    #[inline]
    pub(crate) const fn known(index: u64) -> Self {
        debug_assert!(index <= Self::MAX.0);
        Self(index)
    }

    /// The index as a plain number.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether a folio of `order` may start here.
    #[inline]
    pub const fn is_aligned(self, order: Order) -> bool {
        self.0 & (order.pages() - 1) == 0
    }

    /// The first page of the aligned block of `order` that holds this page.
    #[inline]
    pub const fn block_start(self, order: Order) -> Self {
        Self(self.0 & !(order.pages() - 1))
    }
}

impl fmt::Debug for PageIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageIndex({:#x})", self.0)
    }
}

/// A half-open range of pages of a file, `start <= end`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct IndexRange {
    start: u64,
    end: u64,
}

impl IndexRange {
    /// Every page that a file can have.
    pub const ALL: Self = Self { start: 0, end: PageIndex::MAX.0 + 1 };

    /// The pages from `start` up to `end`, as far as a file can have them. A range that would run backwards
    /// is empty at `start`.
    #[inline]
    pub const fn new(start: u64, end: u64) -> Self {
        let end = if end > Self::ALL.end { Self::ALL.end } else { end };
        if end < start { Self { start, end: start } } else { Self { start, end } }
    }

    /// The pages of a block of `order` that starts at `start`.
    #[inline]
    pub const fn block(start: PageIndex, order: Order) -> Self {
        Self::new(start.0, start.0 + order.pages())
    }

    /// First page.
    #[inline]
    pub const fn start(self) -> u64 {
        self.start
    }

    /// First page past the range.
    #[inline]
    pub const fn end(self) -> u64 {
        self.end
    }

    /// Number of pages.
    #[inline]
    pub const fn pages(self) -> u64 {
        self.end - self.start
    }

    /// Whether there is no page in it.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.start >= self.end
    }

    /// Whether all pages of `other` are in it.
    #[inline]
    pub(crate) const fn covers(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// The smallest range with the pages of both.
    #[inline]
    pub(crate) fn with(self, other: Self) -> Self {
        match (self.is_empty(), other.is_empty()) {
            (true, _) => other,
            (_, true) => self,
            _ => Self::new(self.start.min(other.start), self.end.max(other.end)),
        }
    }

    /// Its first byte, and the first one behind it.
    #[inline]
    pub(crate) const fn bytes(self) -> Range<u64> {
        self.start << PAGE_SHIFT..self.end << PAGE_SHIFT
    }

    /// The pages that are in both.
    #[inline]
    pub(crate) const fn intersect(self, other: Self) -> Self {
        let start = if self.start > other.start { self.start } else { other.start };
        Self::new(start, if self.end < other.end { self.end } else { other.end })
    }

    /// Whether `index` is in it.
    #[inline]
    pub const fn contains(self, index: PageIndex) -> bool {
        self.start <= index.0 && index.0 < self.end
    }
}

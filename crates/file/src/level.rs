//! The digits of an index.
//!
//! A word of a node of level 0 stands for a page, one of level 1 for 256 KiB, one of level 2 for 2 MiB: so a
//! folio of 2 MiB is one word. Above, a digit has six bits.

#[cfg(not(loom))]
use crate::index::PageIndex;
use quire_arch::Order;

/// Where the digit of a level begins, and where that of the last one ends.
#[cfg(not(loom))]
const SHIFTS: [u32; Level::COUNT + 1] = [0, 6, 9, 15, 21, 27, 33, 39, 45, PageIndex::BITS];
/// Loom tries each word: nodes have four and two of them.
#[cfg(loom)]
const SHIFTS: [u32; Level::COUNT + 1] = [0, 2, 3, 5, 7, 9, 11, 13, 15, 17];

/// A level of nodes, the lowest is 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Level(u8);

impl Level {
    /// Levels of a store with the largest indices.
    pub(crate) const COUNT: usize = 9;
    /// The level whose nodes have few words; those of all others have many.
    pub(crate) const NARROW: Self = Self(1);
    /// Words of its nodes.
    pub(crate) const FEW: usize = 1 << (SHIFTS[2] - SHIFTS[1]);
    /// Words of the nodes of the other levels.
    pub(crate) const MANY: usize = 1 << SHIFTS[1];

    /// The level at which a folio of `order` has few words: one, or as many as it takes.
    #[inline]
    pub(crate) const fn of(order: Order) -> Self {
        let order = order.get() as u32;
        Self((order >= SHIFTS[1]) as u8 + (order >= SHIFTS[2]) as u8)
    }

    /// The lowest level with a node that holds the first page and `index`.
    #[inline]
    pub(crate) fn covering(index: u64) -> Self {
        let mut level = 0;
        while level + 1 < Self::COUNT && index >> SHIFTS[level + 1] != 0 {
            level += 1;
        }
        Self(level as u8)
    }

    /// Whether a node of this level that begins at the first page holds `index`.
    #[inline]
    pub(crate) const fn holds(self, index: u64) -> bool {
        index >> SHIFTS[self.0 as usize + 1] == 0
    }

    /// The level above; `None` at the last.
    #[inline]
    pub(crate) const fn above(self) -> Option<Self> {
        if (self.0 as usize) + 1 < Self::COUNT { Some(Self(self.0 + 1)) } else { None }
    }

    /// The level below; `None` at level 0.
    #[inline]
    pub(crate) const fn below(self) -> Option<Self> {
        if self.0 > 0 { Some(Self(self.0 - 1)) } else { None }
    }

    /// Words of a node.
    #[inline]
    pub(crate) const fn words(self) -> usize {
        if self.0 == Self::NARROW.0 { Self::FEW } else { Self::MANY }
    }

    /// Pages that a word stands for, as a shift.
    #[inline]
    pub(crate) const fn shift(self) -> u32 {
        SHIFTS[self.0 as usize]
    }

    /// Pages that a word stands for.
    #[inline]
    pub(crate) const fn word_pages(self) -> u64 {
        1 << self.shift()
    }

    /// Pages that a node stands for.
    #[inline]
    pub(crate) const fn node_pages(self) -> u64 {
        1 << SHIFTS[self.0 as usize + 1]
    }

    /// The word for `index`.
    #[inline]
    pub(crate) const fn slot(self, index: u64) -> usize {
        (index >> self.shift()) as usize & (self.words() - 1)
    }

    /// Words that an entry of `order` has at this level, which is that of the order.
    #[inline]
    pub(crate) const fn words_of(self, order: Order) -> usize {
        1 << (order.get() as u32 - self.shift())
    }

    /// Whether an entry of `order` has its words at this level.
    #[inline]
    pub(crate) const fn is_of(self, order: Order) -> bool {
        self.0 == Self::of(order).0
    }
}

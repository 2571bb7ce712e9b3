//! What a store holds.

use crate::index::{IndexRange, PageIndex};
use quire_arch::{Order, Pfn};
use quire_swap::SlotId;

/// What a shadow or a swap slot says, in [`BITS`](Self::BITS) bits. The store does not look at it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub struct Payload(u64);

impl Payload {
    /// Bits of a payload.
    pub const BITS: u32 = 58;
    /// The largest payload.
    pub const MAX: Self = Self((1 << Self::BITS) - 1);

    /// Of a slot: what was there could not be read from a device that was removed, and is lost.
    pub(crate) const LOST: Self = Self::MAX;

    /// `value`, or `None` if it has more bits.
    #[inline]
    pub const fn new(value: u64) -> Option<Self> {
        if value <= Self::MAX.0 { Some(Self(value)) } else { None }
    }

    /// The low bits of `value`.
    #[inline]
    pub(crate) const fn low_bits(value: u64) -> Self {
        Self(value & Self::MAX.0)
    }

    /// The payload as a plain number.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// What a file has at some of its pages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Entry {
    /// A folio, by its first frame.
    Folio(Pfn),
    /// The shadow of a folio that was evicted.
    Shadow(Payload),
    /// Swap slots, by the first of them.
    Slot(Payload),
}

impl Entry {
    /// The entry of what begins `pages` further on in this one. A shadow is the same for all of its pages.
    #[inline]
    pub(crate) const fn part(self, pages: u64) -> Self {
        match self {
            Self::Folio(pfn) => Self::Folio(pfn.offset(pages)),
            Self::Shadow(payload) => Self::Shadow(payload),
            Self::Slot(payload) => Self::Slot(Payload::low_bits(payload.0 + pages)),
        }
    }

    /// Whether each part of an entry of `pages` pages fits into a word.
    #[inline]
    pub(crate) const fn fits(self, pages: u64) -> bool {
        let first = match self {
            Self::Folio(pfn) => pfn.0,
            Self::Slot(payload) => payload.0,
            Self::Shadow(_) => return true,
        };
        first <= Payload::MAX.0 - (pages - 1)
    }

    /// The first frame of the folio, if it is one.
    #[inline]
    pub(crate) const fn folio(self) -> Option<Pfn> {
        if let Self::Folio(pfn) = self { Some(pfn) } else { None }
    }

    /// The first of the slots on a swap device that it names, if it names some.
    pub(crate) const fn swap_slot(self) -> Option<SlotId> {
        match self {
            Self::Slot(payload) if payload.0 != Payload::LOST.0 => Some(SlotId::from_raw(payload.0)),
            _ => None,
        }
    }

    /// Whether it is a shadow.
    #[inline]
    pub const fn is_shadow(self) -> bool {
        matches!(self, Self::Shadow(_))
    }
}

/// An entry and the pages that it stands for: `2^order` from `start`, which is a multiple of that.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stored {
    /// Its first page.
    pub start: PageIndex,
    /// Its order.
    pub order: Order,
    /// The entry.
    pub entry: Entry,
}

impl Stored {
    /// The pages that it stands for.
    #[inline]
    pub const fn range(&self) -> IndexRange {
        IndexRange::block(self.start, self.order)
    }
}

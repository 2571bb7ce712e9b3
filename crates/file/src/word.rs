//! An entry, or a link to a node, in 64 bits.
//!
//! | bits | holds |
//! |---|---|
//! | 0..2 | what it is: a link, a folio, a shadow, a slot |
//! | 2..6 | the entry's order |
//! | 6..64 | payload: first frame, shadow, first slot |
//!
//! A link is a node's address, which is a multiple of 8. Each word of an entry is the same, so any of them
//! says all; where the entry begins follows from the order.

use crate::entry::{Entry, Payload, Stored};
use crate::index::PageIndex;
use core::ptr::{self, NonNull};
use quire_arch::{Order, Pfn};

const KIND_MASK: u64 = 3;
const LINK: u64 = 0;
const FOLIO: u64 = 1;
const SHADOW: u64 = 2;
const SLOT: u64 = 3;
const ORDER_SHIFT: u32 = 2;
const ORDER_MASK: u64 = 15;
const PAYLOAD_SHIFT: u32 = u64::BITS - Payload::BITS;

const _: () = assert!(Order::MAX.get() as u64 <= ORDER_MASK);

/// What a link leads to: a node, by its first byte. Nodes are aligned so that a link is no other word.
#[derive(Debug)]
#[repr(align(8))]
pub(crate) struct Linked;

/// A word of a node, or the root.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Word(u64);

impl core::fmt::Debug for Word {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Debug::fmt(&self.holds(), f)
    }
}

/// What a word is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Holds {
    /// Nothing.
    Nothing,
    /// The node is not a part of the store any more: a reader begins again at the root.
    Gone,
    /// A node of the level below.
    Node(NonNull<Linked>),
    /// An entry, or one of its words.
    Entry(Order, Entry),
}

impl Word {
    pub(crate) const NONE: Self = Self(0);
    /// In each word of a node that has left the store while it had words.
    pub(crate) const GONE: Self = Self(1 << ORDER_SHIFT);

    #[inline]
    pub(crate) const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    #[inline]
    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    /// A link.
    #[inline]
    pub(crate) fn link(node: NonNull<Linked>) -> Self {
        Self(node.as_ptr().expose_provenance() as u64)
    }

    /// A word of an entry.
    #[inline]
    pub(crate) const fn entry(order: Order, entry: Entry) -> Self {
        let (kind, payload) = match entry {
            Entry::Folio(pfn) => (FOLIO, pfn.0),
            Entry::Shadow(payload) => (SHADOW, payload.get()),
            Entry::Slot(payload) => (SLOT, payload.get()),
        };
        debug_assert!(payload <= Payload::MAX.get());
        Self(kind | (order.get() as u64) << ORDER_SHIFT | payload << PAYLOAD_SHIFT)
    }

    /// The node that it links to.
    #[inline]
    pub(crate) fn node(self) -> Option<NonNull<Linked>> {
        // A node's address is a multiple of 8, so a link has none of these bits; `NONE` is null.
        let is_other = self.0 & (KIND_MASK | Self::GONE.0) != LINK;
        if is_other { None } else { NonNull::new(ptr::with_exposed_provenance_mut(self.0 as usize)) }
    }

    /// What it is.
    #[inline]
    pub(crate) fn holds(self) -> Holds {
        let payload = self.0 >> PAYLOAD_SHIFT;
        let entry = match self.0 & KIND_MASK {
            LINK if self == Self::GONE => return Holds::Gone,
            LINK => return self.node().map_or(Holds::Nothing, Holds::Node),
            FOLIO => Entry::Folio(Pfn(payload)),
            SHADOW => Entry::Shadow(Payload::low_bits(payload)),
            _ => Entry::Slot(Payload::low_bits(payload)),
        };
        // The field holds what `entry` put there, which was an order.
        let order = Order::new((self.0 >> ORDER_SHIFT & ORDER_MASK) as u8).unwrap_or(Order::MAX);
        Holds::Entry(order, entry)
    }

    /// The entry that it is a word of, if it was read for page `index`.
    #[inline]
    pub(crate) fn stored(self, index: u64) -> Option<Stored> {
        match self.holds() {
            Holds::Entry(order, entry) => {
                Some(Stored { start: PageIndex::known(index).block_start(order), order, entry })
            }
            _ => None,
        }
    }

    /// Whether it is a word of a folio.
    #[inline]
    pub(crate) const fn is_folio(self) -> bool {
        self.0 & KIND_MASK == FOLIO
    }

    /// Whether it is a word of a shadow.
    #[inline]
    pub(crate) const fn is_shadow(self) -> bool {
        self.0 & KIND_MASK == SHADOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_what_was_put_in() {
        let entries =
            [Entry::Folio(Pfn(0)), Entry::Folio(Pfn(u64::from(u32::MAX) + 9)), Entry::Shadow(Payload::MAX)];
        for order in Order::ALL {
            for entry in
                entries.into_iter().chain([Entry::Slot(Payload::MAX), Entry::Slot(Payload::default())])
            {
                let word = Word::entry(order, entry);
                assert_eq!(word.holds(), Holds::Entry(order, entry));
                assert_eq!(Word::from_raw(word.raw()), word);
                assert_eq!(word.is_shadow(), entry.is_shadow());
                assert_eq!(word.is_folio(), matches!(entry, Entry::Folio(_)));
            }
        }
        assert_eq!(Word::NONE.holds(), Holds::Nothing);
        assert_eq!(Word::GONE.holds(), Holds::Gone);
    }

    #[test]
    fn any_word_of_an_entry_says_where_it_begins() {
        let order = Order::new(4).unwrap();
        let word = Word::entry(order, Entry::Folio(Pfn(64)));
        for index in 0x120..0x130 {
            assert_eq!(word.stored(index).unwrap().start.get(), 0x120);
        }
    }
}

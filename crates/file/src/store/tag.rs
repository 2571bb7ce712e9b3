//! Tags: marks of entries that can be searched for.

use crate::node::HeldNode;

/// A mark of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Tag {
    /// The folio has been written and is to be written back.
    Dirty,
    /// The folio is being written back.
    Writeback,
    /// The folio is to be written by a sync that has begun: what becomes dirty later is not.
    ToWrite,
}

impl Tag {
    /// Every tag.
    pub const ALL: [Self; 3] = [Self::Dirty, Self::Writeback, Self::ToWrite];

    #[inline]
    pub(super) const fn index(self) -> usize {
        self as usize
    }
}

/// Which entries a search stops at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filter {
    /// All.
    All,
    /// Those with a tag.
    Tagged(Tag),
}

/// The bits of `count` words from `slot` on.
#[inline]
pub(super) const fn words_mask(slot: usize, count: usize) -> u64 {
    (u64::MAX >> (u64::BITS as usize - count)) << slot
}

/// Sets or clears a tag of words, and what the nodes above say of it.
pub(super) fn mark(node: HeldNode<'_>, tag: usize, mask: u64, on: bool) {
    let (mut node, mut mask) = (node, mask);
    loop {
        let before = node.counts().tags[tag];
        let after = if on { before | mask } else { before & !mask };
        if after == before {
            return;
        }
        node.count(|counts| counts.tags[tag] = after);
        // The bit above says whether there is any.
        if (after == 0) == (before == 0) {
            return;
        }
        let slot = node.counts().slot;
        let Some(parent) = node.parent() else { return };
        (node, mask) = (parent, 1 << slot);
    }
}

//! Singly linked lists of blocks, through the `next` link of their descriptors.

use crate::map::{Frame, FrameIndex, MemoryMap};
use quire_arch::Order;

/// Blocks to be freed together, e.g. after a TLB flush. Any number, of any order. The chain needs no memory
/// of its own: blocks are linked through their descriptors.
///
/// A block enters with [`Frames::gather`](crate::Frames::gather), which checks it and takes it from its user.
/// All leave with [`Frames::free_chain`](crate::Frames::free_chain) or
/// [`FrameLimbo::retire_chain`](crate::FrameLimbo::retire_chain). Dropping a non-empty chain leaks its
/// blocks; the auditor finds them.
#[must_use = "the blocks of a chain are lost unless it is given to `free_chain` or `retire_chain`"]
#[derive(Debug)]
pub struct FrameChain {
    first: FrameIndex,
    last: FrameIndex,
    blocks: u32,
    pages: u64,
}

impl Default for FrameChain {
    fn default() -> Self {
        Self::new()
    }
}

impl FrameChain {
    /// An empty chain.
    pub const fn new() -> Self {
        Self { first: FrameIndex::NONE, last: FrameIndex::NONE, blocks: 0, pages: 0 }
    }

    /// Blocks in the chain.
    #[inline]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Base pages in the chain.
    #[inline]
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Whether the chain is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.first == FrameIndex::NONE
    }

    /// Adds a block of `pages` at the end.
    #[inline]
    pub(crate) fn push(&mut self, map: &MemoryMap, (index, frame): (FrameIndex, &Frame), pages: u64) {
        frame.set_next(FrameIndex::NONE);
        match self.last.some() {
            Some(last) => map.at(last).set_next(index),
            None => self.first = index,
        }
        self.last = index;
        self.blocks += 1;
        self.pages += pages;
    }

    /// Puts a block that was taken off the front back there.
    pub(crate) fn push_front(&mut self, map: &MemoryMap, index: FrameIndex) {
        let frame = map.at(index);
        frame.set_next(self.first);
        self.first = index;
        if self.last == FrameIndex::NONE {
            self.last = index;
        }
        self.blocks += 1;
        self.pages += frame.word().order().pages();
    }

    /// Takes the first block: its first frame and its order.
    #[inline]
    pub(crate) fn pop<'m>(&mut self, map: &'m MemoryMap) -> Option<(FrameIndex, &'m Frame, Order)> {
        let first = self.first.some()?;
        let frame = map.at(first);
        self.first = frame.next();
        if self.first == FrameIndex::NONE {
            self.last = FrameIndex::NONE;
        }
        let order = frame.word().order();
        self.blocks -= 1;
        self.pages -= order.pages();
        Some((first, frame, order))
    }

    /// Takes the first block if it is a single page.
    #[inline]
    pub(crate) fn pop_single(&mut self, map: &MemoryMap) -> Option<FrameIndex> {
        let first = self.first.some()?;
        let frame = map.at(first);
        if frame.word().order() > Order::ZERO {
            return None;
        }
        self.first = frame.next();
        if self.first == FrameIndex::NONE {
            self.last = FrameIndex::NONE;
        }
        self.blocks -= 1;
        self.pages -= 1;
        Some(first)
    }

    /// Takes up to `blocks` blocks off the front; all of them in constant time.
    #[inline]
    pub(crate) fn split(&mut self, map: &MemoryMap, blocks: u32) -> Self {
        if self.blocks <= blocks { core::mem::take(self) } else { self.cut(map, blocks) }
    }

    /// Takes `blocks` of more blocks off the front. They are only read, and cut off behind the last one.
    #[inline(never)]
    fn cut(&mut self, map: &MemoryMap, blocks: u32) -> Self {
        let (mut last, mut pages) = (FrameIndex::NONE, 0);
        for index in walk(map, self.first, u64::from(blocks)).take(blocks as usize) {
            pages += map.at(index).word().order().pages();
            last = index;
        }
        let Some(cut) = last.some() else { return Self::new() };
        let portion = Self { first: self.first, last, blocks, pages };
        self.first = map.at(cut).next();
        map.at(cut).set_next(FrameIndex::NONE);
        self.blocks -= blocks;
        self.pages -= pages;
        portion
    }

    /// Moves all of `other` to the end, in constant time.
    pub(crate) fn append(&mut self, map: &MemoryMap, other: &mut Self) {
        let other = core::mem::take(other);
        let Some(first) = other.first.some() else { return };
        match self.last.some() {
            Some(last) => map.at(last).set_next(first),
            None => self.first = first,
        }
        self.last = other.last;
        self.blocks += other.blocks;
        self.pages += other.pages;
    }

    /// The blocks.
    pub(crate) fn iter<'m>(&self, map: &'m MemoryMap) -> impl Iterator<Item = FrameIndex> + use<'m> {
        walk(map, self.first, u64::from(self.blocks))
    }
}

/// The frames linked from `first` on: at most one more than the expected `count`, so that a walk of a broken
/// list ends and still shows that it is broken.
pub(crate) fn walk(
    map: &MemoryMap,
    first: FrameIndex,
    count: u64,
) -> impl Iterator<Item = FrameIndex> + use<'_> {
    let mut next = first;
    (0..=count).map_while(move |_| {
        let index = next.some()?;
        next = map.at(index).next();
        Some(index)
    })
}

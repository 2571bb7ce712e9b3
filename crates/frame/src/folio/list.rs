//! Lists of allocated folios, for the slab, memcg and reclaim crates.
//!
//! A folio is on one list at most, linked through the descriptor of its first frame. Whatever says on which
//! list it is, [`FrameFlags::LRU`](crate::FrameFlags::LRU) included, belongs to the crate that owns the
//! lists; this is only the linking.

use crate::frame_list::FrameList;
use crate::map::{FrameIndex, MemoryMap};
use quire_arch::Pfn;

/// A list of folios. The owner's lock around it also guards the links of the folios on it.
///
/// Folios enter at the front; the oldest is at the back. Parts of a folio that is split enter in front of it.
#[derive(Debug)]
pub struct FolioList {
    list: FrameList,
    /// The next folio of the walk.
    hand: FrameIndex,
}

impl Default for FolioList {
    fn default() -> Self {
        Self::new()
    }
}

impl FolioList {
    /// An empty list.
    pub const fn new() -> Self {
        Self { list: FrameList::EMPTY, hand: FrameIndex::NONE }
    }

    /// Whether the list is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Folios on the list.
    #[inline]
    pub fn folios(&self) -> u32 {
        self.list.count() as u32
    }

    /// The folio at the front.
    #[inline]
    pub fn first(&self, map: &MemoryMap) -> Option<Pfn> {
        self.list.first().map(|index| map.pfn(index))
    }

    /// The oldest folio.
    #[inline]
    pub fn last(&self, map: &MemoryMap) -> Option<Pfn> {
        self.list.last().map(|index| map.pfn(index))
    }

    /// Adds the folio at `head`, which is on no list, at the front.
    #[inline]
    pub fn push_front(&mut self, map: &MemoryMap, head: Pfn) {
        self.list.push(map, map.known_block(head));
    }

    /// Adds the folio at `head`, which is on no list, at the back.
    #[inline]
    pub fn push_back(&mut self, map: &MemoryMap, head: Pfn) {
        self.list.push_back(map, map.known_block(head));
    }

    /// Adds the folio at `head`, which is on no list, right in front of the one at `beside`, which is on this
    /// list.
    pub fn insert_before(&mut self, map: &MemoryMap, beside: Pfn, head: Pfn) {
        self.list.insert_before(map, map.index(beside), map.known_block(head));
    }

    /// Removes the folio at `head` from this list, which it is on.
    #[inline]
    pub fn remove(&mut self, map: &MemoryMap, head: Pfn) {
        let (index, frame) = map.known_block(head);
        if self.hand == index {
            self.hand = frame.prev();
        }
        self.list.remove(map, frame);
    }

    /// Removes the oldest folio.
    #[inline]
    pub fn pop_back(&mut self, map: &MemoryMap) -> Option<Pfn> {
        let last = self.last(map)?;
        self.remove(map, last);
        Some(last)
    }

    /// Starts a walk at the oldest folio.
    #[inline]
    pub fn begin_walk(&mut self) {
        self.hand = self.list.last().unwrap_or(FrameIndex::NONE);
    }

    /// The next folio of the walk, which goes towards the front; `None` at the end. Folios may be added and
    /// removed meanwhile: each folio that stays on the list is visited once.
    #[inline]
    pub fn walk_on(&mut self, map: &MemoryMap) -> Option<Pfn> {
        let index = self.hand.some()?;
        self.hand = map.at(index).prev();
        Some(map.pfn(index))
    }

    /// Whether the walk has reached the front, or none was started.
    #[inline]
    pub fn is_walk_over(&self) -> bool {
        self.hand == FrameIndex::NONE
    }

    /// The folios from the front to the back. On a damaged list the walk ends after one more than the list's
    /// count.
    pub fn iter<'m>(&self, map: &'m MemoryMap) -> impl Iterator<Item = Pfn> + use<'m> {
        self.list.iter(map).map(|index| map.pfn(index))
    }
}

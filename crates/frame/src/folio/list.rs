//! Lists of folios that are given out: by which the crates of slabs, of memcgs and of reclaim sort theirs.
//!
//! A folio is on one list at most, linked through the descriptor of its first frame. Whatever says on which
//! list it is, [`FrameFlags::LRU`](crate::FrameFlags::LRU) included, belongs to the crate that owns the
//! lists; this is only the linking.

use crate::frame_list::FrameList;
use crate::map::{FrameIndex, MemoryMap};
use quire_arch::Pfn;

/// A list of folios. A thread that owns it has a lock around it, which guards the links of what is on it too.
///
/// The front is where folios enter, the back where the oldest is.
#[derive(Debug)]
pub struct FolioList {
    list: FrameList,
    /// What a walk comes to next.
    hand: FrameIndex,
}

impl Default for FolioList {
    fn default() -> Self {
        Self::new()
    }
}

impl FolioList {
    /// A list of nothing.
    pub const fn new() -> Self {
        Self { list: FrameList::EMPTY, hand: FrameIndex::NONE }
    }

    /// Whether nothing is on the list.
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

    /// Puts the folio at `head`, which is on no list, to the front.
    #[inline]
    pub fn push_front(&mut self, map: &MemoryMap, head: Pfn) {
        let index = map.index(head);
        self.list.push(map, (index, map.at(index)));
    }

    /// Puts the folio at `head`, which is on no list, to the back.
    #[inline]
    pub fn push_back(&mut self, map: &MemoryMap, head: Pfn) {
        let index = map.index(head);
        self.list.push_back(map, (index, map.at(index)));
    }

    /// Takes the folio at `head`, which is on this list, off it.
    #[inline]
    pub fn remove(&mut self, map: &MemoryMap, head: Pfn) {
        let index = map.index(head);
        if self.hand == index {
            self.hand = map.at(index).prev();
        }
        self.list.remove(map, index);
    }

    /// Takes the oldest folio off.
    #[inline]
    pub fn pop_back(&mut self, map: &MemoryMap) -> Option<Pfn> {
        let last = self.last(map)?;
        self.remove(map, last);
        Some(last)
    }

    /// Begins a walk at the oldest folio.
    #[inline]
    pub fn begin_walk(&mut self) {
        self.hand = self.list.last().unwrap_or(FrameIndex::NONE);
    }

    /// The next folio of the walk, which goes to the front; none once it has come there. Whatever else is put
    /// on the list or taken off meanwhile, each folio is met once that was on it all the time.
    #[inline]
    pub fn walk_on(&mut self, map: &MemoryMap) -> Option<Pfn> {
        let index = self.hand.some()?;
        self.hand = map.at(index).prev();
        Some(map.pfn(index))
    }

    /// Whether the walk has come to the front, or none was begun.
    #[inline]
    pub fn is_walk_over(&self) -> bool {
        self.hand == FrameIndex::NONE
    }

    /// The folios from the front to the back. On a damaged list it ends after one more than are said to be on
    /// it.
    pub fn iter<'m>(&self, map: &'m MemoryMap) -> impl Iterator<Item = Pfn> + use<'m> {
        self.list.iter(map).map(|index| map.pfn(index))
    }
}

//! Doubly linked lists of frames, through their descriptors.

use crate::chain::walk;
use crate::map::{FrameIndex, MemoryMap};

/// A list that a frame can be taken out of anywhere. Each frame is on one list at most; the lock around the list
/// guards the links too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameList {
    first: FrameIndex,
    count: u64,
}

impl FrameList {
    pub(crate) const EMPTY: Self = Self { first: FrameIndex::NONE, count: 0 };

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first == FrameIndex::NONE
    }

    #[inline]
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    #[inline]
    pub(crate) fn first(&self) -> Option<FrameIndex> {
        self.first.some()
    }

    #[inline]
    pub(crate) fn push(&mut self, map: &MemoryMap, index: FrameIndex) {
        let frame = map.at(index);
        frame.set_prev(FrameIndex::NONE);
        frame.set_next(self.first);
        if let Some(first) = self.first.some() {
            map.at(first).set_prev(index);
        }
        self.first = index;
        self.count += 1;
    }

    #[inline]
    pub(crate) fn remove(&mut self, map: &MemoryMap, index: FrameIndex) {
        let frame = map.at(index);
        let (prev, next) = (frame.prev(), frame.next());
        match prev.some() {
            Some(prev) => map.at(prev).set_next(next),
            None => self.first = next,
        }
        if let Some(next) = next.some() {
            map.at(next).set_prev(prev);
        }
        self.count -= 1;
    }

    /// The frames of the list.
    pub(crate) fn iter<'m>(&self, map: &'m MemoryMap) -> impl Iterator<Item = FrameIndex> + use<'m> {
        walk(map, self.first, self.count)
    }
}

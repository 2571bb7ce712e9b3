//! Doubly linked lists of frames, through their descriptors.

use crate::chain::walk;
use crate::map::{Frame, FrameIndex, MemoryMap};

/// A list that a frame can be removed from at any position. Each frame is on one list at most; the lock
/// around the list guards the links too.
///
/// The front is the most recently used end: what is popped there is still in the CPU's cache. The frames
/// least likely to be used soon are at the back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameList {
    first: FrameIndex,
    last: FrameIndex,
    count: u32,
}

impl FrameList {
    pub(crate) const EMPTY: Self = Self { first: FrameIndex::NONE, last: FrameIndex::NONE, count: 0 };

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first == FrameIndex::NONE
    }

    #[inline]
    pub(crate) fn count(&self) -> u64 {
        u64::from(self.count)
    }

    #[inline]
    pub(crate) fn first(&self) -> Option<FrameIndex> {
        self.first.some()
    }

    #[inline]
    pub(crate) fn last(&self) -> Option<FrameIndex> {
        self.last.some()
    }

    /// Adds a frame at the front.
    #[inline]
    pub(crate) fn push(&mut self, map: &MemoryMap, (index, frame): (FrameIndex, &Frame)) {
        frame.set_prev(FrameIndex::NONE);
        frame.set_next(self.first);
        match self.first.some() {
            Some(first) => map.at(first).set_prev(index),
            None => self.last = index,
        }
        self.first = index;
        self.count += 1;
    }

    /// Adds a frame at the back.
    #[inline]
    pub(crate) fn push_back(&mut self, map: &MemoryMap, (index, frame): (FrameIndex, &Frame)) {
        frame.set_prev(self.last);
        frame.set_next(FrameIndex::NONE);
        match self.last.some() {
            Some(last) => map.at(last).set_next(index),
            None => self.first = index,
        }
        self.last = index;
        self.count += 1;
    }

    /// Adds a frame right in front of `beside`, which is on this list.
    pub(crate) fn insert_before(
        &mut self,
        map: &MemoryMap,
        beside: FrameIndex,
        (index, frame): (FrameIndex, &Frame),
    ) {
        let behind = map.at(beside);
        let prev = behind.prev();
        frame.set_prev(prev);
        frame.set_next(beside);
        behind.set_prev(index);
        match prev.some() {
            Some(prev) => map.at(prev).set_next(index),
            None => self.first = index,
        }
        self.count += 1;
    }

    /// Removes `frame`, which is on this list.
    #[inline]
    pub(crate) fn remove(&mut self, map: &MemoryMap, frame: &Frame) {
        let (prev, next) = (frame.prev(), frame.next());
        match prev.some() {
            Some(prev) => map.at(prev).set_next(next),
            None => self.first = next,
        }
        match next.some() {
            Some(next) => map.at(next).set_prev(prev),
            None => self.last = prev,
        }
        self.count -= 1;
    }

    /// Takes the frame at the front.
    #[inline]
    pub(crate) fn pop<'m>(&mut self, map: &'m MemoryMap) -> Option<(FrameIndex, &'m Frame)> {
        let first = self.first.some()?;
        let frame = map.at(first);
        self.first = frame.next();
        match self.first.some() {
            Some(next) => map.at(next).set_prev(FrameIndex::NONE),
            None => self.last = FrameIndex::NONE,
        }
        self.count -= 1;
        Some((first, frame))
    }

    /// Takes up to `most` frames off the back, the last first, and calls `visit` with each. The remaining
    /// frames are relinked once.
    pub(crate) fn take_back(&mut self, map: &MemoryMap, most: u64, mut visit: impl FnMut(FrameIndex)) {
        let mut left = most;
        while left > 0
            && let Some(last) = self.last.some()
        {
            self.last = map.at(last).prev();
            self.count -= 1;
            left -= 1;
            visit(last);
        }
        match self.last.some() {
            Some(last) => map.at(last).set_next(FrameIndex::NONE),
            None => self.first = FrameIndex::NONE,
        }
    }

    /// The frames of the list.
    pub(crate) fn iter<'m>(&self, map: &'m MemoryMap) -> impl Iterator<Item = FrameIndex> + use<'m> {
        walk(map, self.first, self.count())
    }
}

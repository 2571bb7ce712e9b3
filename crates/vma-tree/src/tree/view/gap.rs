//! Searching for a gap that a mapping fits in.
//!
//! A search goes down only into children whose largest gap is long enough. Such a child may disappoint only
//! when the bounds of the search cut it, which at most two children of a level do, so a search is
//! logarithmic.

use super::View;
use crate::tree::held::HeldNode;
use quire_arch::{VirtAddr, VirtRange};

/// The search.
#[derive(Clone, Copy)]
struct Search {
    len: u64,
    within: VirtRange,
}

impl Search {
    /// The free addresses from `from` to `to` as far as they are within bounds, if that is long enough.
    #[inline]
    fn piece(self, from: u64, to: u64) -> Option<VirtRange> {
        let piece = VirtRange::new(VirtAddr(from), VirtAddr(to)).intersect(self.within);
        (piece.len() >= self.len).then_some(piece)
    }

    /// The highest fitting piece between the entries below `node`.
    fn highest<V>(self, node: HeldNode<'_, V>) -> Option<VirtRange> {
        let (from, to) = (self.within.start().0, self.within.end().0);
        let count = node.count();
        for slot in (0..node.starts_below(to)).rev() {
            if slot + 1 < count
                && let Some(piece) = self.piece(node.end(slot), node.start(slot + 1))
            {
                return Some(piece);
            }
            if node.gap(slot) >= self.len
                && node.end(slot) > from
                && let Some(child) = node.child(slot)
                && let Some(piece) = self.highest(child)
            {
                return Some(piece);
            }
            if node.start(slot) <= from {
                return None;
            }
        }
        None
    }

    /// The lowest fitting piece between the entries below `node`.
    fn lowest<V>(self, node: HeldNode<'_, V>) -> Option<VirtRange> {
        let (from, to) = (self.within.start().0, self.within.end().0);
        for slot in node.ends_up_to(from)..node.count() {
            if slot > 0
                && let Some(piece) = self.piece(node.end(slot - 1), node.start(slot))
            {
                return Some(piece);
            }
            if node.gap(slot) >= self.len
                && node.start(slot) < to
                && let Some(child) = node.child(slot)
                && let Some(piece) = self.lowest(child)
            {
                return Some(piece);
            }
            if node.end(slot) >= to {
                return None;
            }
        }
        None
    }
}

impl<V> View<'_, V> {
    /// The highest stretch of at least `len` free addresses within `within`: the whole of it, as far as it
    /// lies within, so that the caller can align in it and search again below it. A `len` of 0 counts as 1.
    ///
    /// What lies below the first entry and above the last one is free as far as `within` reaches.
    pub fn highest_gap(&self, len: u64, within: VirtRange) -> Option<VirtRange> {
        let search = Search { len: len.max(1), within };
        let Some((root, bounds)) = self.root_and_bounds() else { return search.piece(0, u64::MAX) };
        search
            .piece(bounds.end().0, u64::MAX)
            .or_else(|| search.highest(root))
            .or_else(|| search.piece(0, bounds.start().0))
    }

    /// The lowest stretch of at least `len` free addresses within `within`; otherwise as
    /// [`highest_gap`](Self::highest_gap).
    pub fn lowest_gap(&self, len: u64, within: VirtRange) -> Option<VirtRange> {
        let search = Search { len: len.max(1), within };
        let Some((root, bounds)) = self.root_and_bounds() else { return search.piece(0, u64::MAX) };
        search
            .piece(0, bounds.start().0)
            .or_else(|| search.lowest(root))
            .or_else(|| search.piece(bounds.end().0, u64::MAX))
    }

    /// The root, and the addresses from the first entry to the last; `None` without entries.
    #[inline]
    fn root_and_bounds(&self) -> Option<(HeldNode<'_, V>, VirtRange)> {
        let root = self.root()?;
        let last = root.count().checked_sub(1)?;
        Some((root, VirtRange::new(root.range(0).start(), root.range(last).end())))
    }
}

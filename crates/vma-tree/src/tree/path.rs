//! The way from the root to a slot of a leaf.

use super::held::HeldNode;
use super::node::{MAX_HEIGHT, Node};
use core::mem::MaybeUninit;

/// The nodes and slots from the root down to one slot of a leaf, by level.
pub(super) struct Path<'t, V> {
    /// Those of the first `height` levels are there: trees are much lower than they might be.
    nodes: [MaybeUninit<HeldNode<'t, V>>; MAX_HEIGHT],
    slots: [u8; MAX_HEIGHT],
    height: usize,
}

impl<'t, V> Path<'t, V> {
    /// No way yet. A path is larger than what an insertion into a small tree writes, so it is made where it
    /// stays, and filled in there.
    #[inline(always)]
    pub(super) const fn new() -> Self {
        Self { nodes: [const { MaybeUninit::uninit() }; MAX_HEIGHT], slots: [0; MAX_HEIGHT], height: 0 }
    }

    /// Goes down from `root`, in each node to the slot that `choose` names: above the leaves one that is in
    /// use.
    #[inline(always)]
    fn descend(&mut self, root: HeldNode<'t, V>, choose: impl Fn(&Node<V>) -> usize) {
        let height = root.level() + 1;
        let mut node = root;
        for level in (1..height).rev() {
            let slot = choose(&node);
            self.nodes[level].write(node);
            self.slots[level] = slot as u8;
            node = node.linked_child(slot);
        }
        self.nodes[0].write(node);
        self.slots[0] = choose(&node) as u8;
        self.height = height;
    }

    /// Goes to the first entry that ends after `addr`, or to the unused slot after the last entry.
    #[inline(always)]
    pub(super) fn go_to_end_after(&mut self, root: HeldNode<'t, V>, addr: u64) {
        // No node above the leaves is empty.
        let choose = |node: &Node<V>| {
            let slot = node.ends_up_to(addr);
            if node.level() > 0 { slot.min(node.count() - 1) } else { slot.min(node.count()) }
        };
        self.descend(root, choose);
    }

    /// Goes to the last entry that starts before `addr`, and returns whether there is one.
    #[inline(always)]
    pub(super) fn go_to_start_before(&mut self, root: HeldNode<'t, V>, addr: u64) -> bool {
        if root.start(0) >= addr {
            return false;
        }
        // In the root a slot starts before `addr` (checked); the last such slot's child starts where the slot
        // does, so in every node below the first slot does too.
        self.descend(root, |node| node.starts_below(addr).saturating_sub(1));
        true
    }

    /// Number of levels.
    #[inline]
    pub(super) const fn height(&self) -> usize {
        self.height
    }

    /// The node at `level`, one of the path's.
    #[inline]
    pub(super) fn node(&self, level: usize) -> HeldNode<'t, V> {
        assert!(level < self.height, "a path has no node there");
        // SAFETY: `descend` has written the nodes of all levels below `height`.
        unsafe { self.nodes[level].assume_init() }
    }

    /// The slot at `level`.
    #[inline]
    pub(super) const fn slot(&self, level: usize) -> usize {
        self.slots[level] as usize
    }

    /// Whether the path ends at an entry that starts at `start`.
    #[inline]
    pub(super) fn starts_at(&self, start: u64) -> bool {
        self.slot(0) < self.node(0).count() && self.node(0).start(self.slot(0)) == start
    }

    /// Where the entry before this one ends.
    #[inline]
    pub(super) fn previous_end(&self) -> Option<u64> {
        let level = (0..self.height).find(|&level| self.slot(level) > 0)?;
        Some(self.node(level).end(self.slot(level) - 1))
    }

    /// Where the entry after this one starts.
    #[inline]
    pub(super) fn next_start(&self) -> Option<u64> {
        let level = (0..self.height).find(|&level| self.slot(level) + 1 < self.node(level).count())?;
        Some(self.node(level).start(self.slot(level) + 1))
    }

    /// Goes to the next entry and returns whether there is one; without one the path stays.
    #[inline]
    pub(super) fn forward(&mut self) -> bool {
        let up = |level: &usize| self.slot(*level) + 1 < self.node(*level).count();
        let Some(level) = (0..self.height).find(up) else { return false };
        self.slots[level] += 1;
        self.down_from(level, |_| 0);
        true
    }

    /// Goes to the entry before and returns whether there is one; without one the path stays.
    #[inline]
    pub(super) fn backward(&mut self) -> bool {
        let Some(level) = (0..self.height).find(|&level| self.slot(level) > 0) else { return false };
        self.slots[level] -= 1;
        self.down_from(level, |node| node.count() - 1);
        true
    }

    /// Rebuilds the part of the path below `level`.
    #[inline]
    fn down_from(&mut self, level: usize, choose: impl Fn(&Node<V>) -> usize) {
        for below in (0..level).rev() {
            let node = self.node(below + 1).linked_child(self.slot(below + 1));
            self.nodes[below].write(node);
            self.slots[below] = choose(&node) as u8;
        }
    }

    /// Brings the cached extents above the node at `level` up to date after it changed.
    #[inline]
    pub(super) fn refresh_above(&self, level: usize) {
        for below in level..self.height - 1 {
            let extent = self.node(below).extent();
            let (parent, slot) = (self.node(below + 1), self.slot(below + 1));
            if parent.extent_of(slot) == extent {
                // What is cached further up depends on nothing else that changed.
                return;
            }
            parent.set_extent(slot, extent);
        }
    }
}

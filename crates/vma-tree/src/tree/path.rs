//! The way from the root to a slot of a leaf.

use super::held::HeldNode;
use super::node::{MAX_HEIGHT, Node};

/// The nodes and slots from the root down to one slot of a leaf, by level.
#[derive(Debug)]
pub(super) struct Path<'t, V> {
    nodes: [HeldNode<'t, V>; MAX_HEIGHT],
    slots: [u8; MAX_HEIGHT],
    height: usize,
}

impl<'t, V> Path<'t, V> {
    /// Goes down from `root`, in each node to the slot that `choose` names: above the leaves one that is in
    /// use. Always inline: a path is larger than what an insertion into a small tree writes, so it is built
    /// where it is used.
    #[inline(always)]
    fn descend(root: HeldNode<'t, V>, choose: impl Fn(&Node<V>) -> usize) -> Self {
        let height = root.level() + 1;
        let mut path = Self { nodes: [root; MAX_HEIGHT], slots: [0; MAX_HEIGHT], height };
        let mut node = root;
        for level in (1..height).rev() {
            let slot = choose(&node);
            path.nodes[level] = node;
            path.slots[level] = slot as u8;
            node = node.linked_child(slot);
        }
        path.nodes[0] = node;
        path.slots[0] = choose(&node) as u8;
        path
    }

    /// The way to the first entry that ends after `addr`, or to the unused slot after the last entry.
    #[inline(always)]
    pub(super) fn to_end_after(root: HeldNode<'t, V>, addr: u64) -> Self {
        // No node above the leaves is empty.
        let choose = |node: &Node<V>| {
            let slot = node.ends_up_to(addr);
            if node.level() > 0 { slot.min(node.count() - 1) } else { slot.min(node.count()) }
        };
        Self::descend(root, choose)
    }

    /// The way to the last entry that starts before `addr`, or `None` when there is none.
    #[inline(always)]
    pub(super) fn to_start_before(root: HeldNode<'t, V>, addr: u64) -> Option<Self> {
        if root.start(0) >= addr {
            return None;
        }
        // In the root a slot starts before `addr` (checked); the last such slot's child starts where the slot
        // does, so in every node below the first slot does too.
        Some(Self::descend(root, |node| node.starts_below(addr).saturating_sub(1)))
    }

    /// Number of levels.
    #[inline]
    pub(super) const fn height(&self) -> usize {
        self.height
    }

    /// The node at `level`.
    #[inline]
    pub(super) const fn node(&self, level: usize) -> HeldNode<'t, V> {
        self.nodes[level]
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
            self.nodes[below] = node;
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

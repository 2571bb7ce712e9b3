//! Spare nodes, so that an operation of several steps gets all its memory before the first step.
//!
//! Only nodes that no reader has ever seen are spare: a node that was ever linked is returned to the store
//! when it dies, since a reader may still be in it.

use super::Writer;
use crate::tree::node::{MERGE_LIMIT, Node, SLOTS};
use crate::tree::store::{NodeStore, OutOfNodes};
use quire_sync::atomic::Ordering;

impl<V, S: NodeStore<V>> Writer<'_, V, S> {
    /// Makes sure that the next `inserts` insertions of this writer do not run out of nodes, wherever they go
    /// and whatever is removed in between. On failure the tree holds what it held before.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn reserve(&mut self, inserts: usize) -> Result<(), OutOfNodes> {
        self.stock(self.needed(inserts))
    }

    /// The most nodes that `inserts` insertions can take.
    ///
    /// An insertion into a tree of height `h` splits at most a node of each level and adds a root: `h + 1`
    /// nodes. While the root is not split, only the levels below it can be. A node that was just split or
    /// merged has room for at least `SLOTS - MERGE_LIMIT` slots, so among so few insertions and one more only
    /// one splits the root. For any number, levels that come on top fill so slowly that `h + 1` for each
    /// insertion covers them.
    fn needed(&self, inserts: usize) -> usize {
        let Some(root) = self.root_node() else {
            return if inserts <= SLOTS { inserts.min(1) } else { inserts };
        };
        let height = root.level() + 1;
        if root.count().saturating_add(inserts) <= SLOTS {
            inserts.saturating_mul(height - 1)
        } else if inserts <= SLOTS - MERGE_LIMIT + 1 {
            inserts * (height - 1) + 2
        } else {
            inserts.saturating_mul(height + 1)
        }
    }

    /// Fills the spare list up to `wanted` nodes, or leaves it as it is.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(in crate::tree) fn stock(&self, wanted: usize) -> Result<(), OutOfNodes> {
        let before = self.tree().spare_nodes();
        for _ in before..wanted {
            let node = self.store.allocate().inspect_err(|_| self.trim(before))?;
            // SAFETY: the store gave memory for a node, ours alone (contract of `NodeStore`).
            unsafe { node.write(Node::empty()) };
            // All links are addresses: from here on the node is reached through those.
            let link = node.as_ptr().expose_provenance();
            // SAFETY: just made.
            unsafe { Node::<V>::at(link) }.set_next_spare(self.tree().spare.load(Ordering::Relaxed));
            self.tree().spare.store(link, Ordering::Relaxed);
            self.tree().spares.store(self.tree().spare_nodes() + 1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Takes a spare node out of the list, as an empty node of `level`.
    ///
    /// # Safety
    ///
    /// The list is not empty.
    #[inline]
    pub(in crate::tree) unsafe fn take_spare<'n>(&self, level: usize) -> &'n Node<V> {
        let link = self.tree().spare.load(Ordering::Relaxed);
        debug_assert!(link != 0, "the caller stocked too few nodes");
        // SAFETY: the list holds a node (caller), which is live and not linked.
        let node = unsafe { Node::<V>::at(link) };
        self.tree().spare.store(node.next_spare(), Ordering::Relaxed);
        self.tree().spares.store(self.tree().spare_nodes() - 1, Ordering::Relaxed);
        node.set_next_spare(0);
        node.set_level(level);
        node
    }

    /// Gives spare nodes back until `keep` are left.
    pub(in crate::tree) fn trim(&self, keep: usize) {
        for _ in keep..self.tree().spare_nodes() {
            // SAFETY: the list holds more than `keep` nodes. A spare node was never linked, and is now out of
            // the list.
            unsafe { self.retire(self.take_spare(0).address()) };
        }
    }

    /// Keeps what two insertions can need, so that a tree in use does not go to the store each time.
    #[inline]
    pub(in crate::tree) fn trim_to_handful(&self) {
        if self.tree().spare_nodes() > 2 {
            self.trim(2 * self.height());
        }
    }
}

//! Removing an entry, and keeping nodes filled.

use super::Writer;
use crate::tree::Entry;
use crate::tree::held::HeldNode;
use crate::tree::node::{MERGE_LIMIT, MIN_FILL};
use crate::tree::path::Path;
use crate::tree::store::NodeStore;
use quire_arch::VirtAddr;

impl<V, S: NodeStore<V>> Writer<'_, V, S> {
    /// Removes the entry that starts at `start` and returns it, or `None` when no entry starts there.
    /// Allocates nothing.
    ///
    /// Readers without the lock may still find the value for as long as their sections of the epoch last.
    pub fn remove(&mut self, start: VirtAddr) -> Option<Entry<V>> {
        let mut path = Path::new();
        path.go_to_end_after(self.root_node()?, start.0);
        if !path.starts_at(start.0) {
            return None;
        }
        let entry = Entry::of(&path.node(0), path.slot(0))?;
        path.node(0).remove(path.slot(0));
        self.set_len(self.len() - 1);
        self.repair(&path);
        Some(entry)
    }

    /// After a slot was taken out of the leaf of `path`: merges or evens out nodes that have too few slots
    /// left, and brings what is cached above up to date.
    #[inline]
    fn repair(&self, path: &Path<'_, V>) {
        for level in 0..path.height() - 1 {
            let (node, parent, slot) = (path.node(level), path.node(level + 1), path.slot(level + 1));
            if node.count() >= MIN_FILL {
                path.refresh_above(level);
                return;
            }
            // The node and a neighbour; every parent has at least two children.
            let low = slot.saturating_sub(1);
            // SAFETY: from here on only levels above the children are used.
            if !unsafe { self.merge_or_balance(parent, low) } {
                path.refresh_above(level + 1);
                return;
            }
        }
        self.shrink_root(path);
    }

    /// Makes one node of the children `low` and `low + 1` of `parent`, or evens them out when they do not fit
    /// into one. Tells whether they were merged.
    ///
    /// # Safety
    ///
    /// The caller does not use the children after this.
    unsafe fn merge_or_balance(&self, parent: HeldNode<'_, V>, low: usize) -> bool {
        let (left, right) = (parent.linked_child(low), parent.linked_child(low + 1));
        let merge = left.count() + right.count() <= MERGE_LIMIT;
        if merge {
            right.move_tail(0, &left);
            parent.remove(low + 1);
        } else {
            left.balance(&right);
            parent.set_extent(low + 1, right.extent());
        }
        parent.set_extent(low, left.extent());
        if merge {
            // SAFETY: the one link to it, in its parent, is overwritten, and it is not used any more.
            unsafe { self.retire(right.address()) };
        }
        merge
    }

    /// Makes the root's child the root when there is only one. A leaf stays the root even when it is empty:
    /// so a reservation holds when everything is removed before the insertions come.
    fn shrink_root(&self, path: &Path<'_, V>) {
        let root = path.node(path.height() - 1);
        if root.level() == 0 || root.count() > 1 {
            return;
        }
        self.tree().set_root(root.link(0));
        // SAFETY: the root was linked from nowhere but the tree, which now links its child.
        unsafe { self.retire(root.address()) };
    }
}

//! Adding an entry.

use super::Writer;
use crate::tree::node::{Extent, MIN_FILL, Node, NodeSlot, SLOTS, is_mappable};
use crate::tree::path::Path;
use crate::tree::store::{NodeStore, OutOfNodes};
use core::ptr::NonNull;
use quire_arch::VirtRange;

/// Why an entry was not added. The tree is as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InsertError {
    /// The range is empty or not page-aligned.
    #[error("the range is empty or not page-aligned")]
    BadRange,
    /// An entry shares an address with the range.
    #[error("an entry is in the way")]
    Overlap,
    /// The store had no memory for a node.
    #[error("{0}")]
    OutOfNodes(OutOfNodes),
}

impl From<OutOfNodes> for InsertError {
    fn from(cause: OutOfNodes) -> Self {
        Self::OutOfNodes(cause)
    }
}

impl<V, S: NodeStore<V>> Writer<'_, V, S> {
    /// Adds an entry. After a [`reserve`](Self::reserve) it cannot run out of nodes; without one it allocates
    /// what it needs before it changes anything.
    pub fn insert(&mut self, range: VirtRange, value: NonNull<V>) -> Result<(), InsertError> {
        if !is_mappable(range) {
            return Err(InsertError::BadRange);
        }
        let slot = NodeSlot { extent: Extent::of(range), link: value.as_ptr().expose_provenance() };
        match self.root_node() {
            None => {
                self.stock(1)?;
                // SAFETY: one was stocked.
                let leaf = unsafe { self.take_spare(0) };
                leaf.push(slot);
                self.tree().set_root(leaf.address());
            }
            Some(root) => {
                let mut path = Path::new();
                path.go_to_end_after(root, slot.extent.start);
                let (leaf, index) = (path.node(0), path.slot(0));
                if index < leaf.count() && leaf.start(index) < slot.extent.end {
                    return Err(InsertError::Overlap);
                }
                if leaf.is_full() {
                    self.stock(nodes_to_split(&path))?;
                }
                // SAFETY: the path is the slot's, and what it takes was stocked.
                unsafe { self.insert_at(&path, slot) };
            }
        }
        self.set_len(self.len() + 1);
        Ok(())
    }

    /// Puts `slot` where `path` ends, and splits full nodes from the leaf up.
    ///
    /// # Safety
    ///
    /// There are as many spare nodes as [`nodes_to_split`] says.
    #[inline]
    unsafe fn insert_at(&self, path: &Path<'_, V>, slot: NodeSlot) {
        let (mut level, mut index, mut slot) = (0, path.slot(0), slot);
        while path.node(level).is_full() {
            let node = path.node(level);
            // SAFETY: one for each full node on the path (caller).
            let right = unsafe { self.take_spare(level) };
            split(&node, right, index, slot);
            level += 1;
            if level == path.height() {
                // The new root is published whole, after its children.
                // SAFETY: one more when all are full (caller).
                let root = unsafe { self.take_spare(level) };
                root.push(node.as_slot());
                root.push(right.as_slot());
                self.tree().set_root(root.address());
                return;
            }
            let parent_slot = path.slot(level);
            path.node(level).set_extent(parent_slot, node.extent());
            (index, slot) = (parent_slot + 1, right.as_slot());
        }
        path.node(level).insert(index, slot);
        path.refresh_above(level);
    }
}

/// How many new nodes an insertion at the end of `path` takes.
fn nodes_to_split<V>(path: &Path<'_, V>) -> usize {
    let full = (0..path.height()).take_while(|&level| path.node(level).is_full()).count();
    if full == path.height() { full + 1 } else { full }
}

/// Distributes the slots of the full `node`, with `slot` at `index` among them, over it and the empty
/// `right`.
///
/// An insertion at either end is likely one of a series there (a program that maps upwards or downwards), so
/// the other side keeps most of the slots and stays as it is.
fn split<V>(node: &Node<V>, right: &Node<V>, index: usize, slot: NodeSlot) {
    // Above the leaves the new slot is the upper half of a child that was split: slot 1 is the low end there.
    let low_end = usize::from(node.level() > 0);
    let left = if index == SLOTS {
        SLOTS + 1 - MIN_FILL
    } else if index <= low_end {
        MIN_FILL
    } else {
        SLOTS.div_ceil(2)
    };
    if index < left {
        node.move_tail(left - 1, right);
        node.insert(index, slot);
    } else {
        node.move_tail(left, right);
        right.insert(index - left, slot);
    }
}

//! The writer of the tree.

mod insert;
mod remove;
mod reserve;

pub use insert::InsertError;

use super::held::HeldNode;
use super::node::{Extent, is_mappable};
use super::path::Path;
use super::store::NodeStore;
use super::{RangeTree, View};
use core::fmt;
use core::ops::Deref;
use core::ptr::{self, NonNull};
use quire_arch::{VirtAddr, VirtRange};
use quire_sync::atomic::Ordering;

/// Exclusive access to change a tree. Made by [`RangeTree::writer`]; derefs to a [`View`] for queries.
///
/// When it is dropped, spare nodes beyond a few are returned to the store.
pub struct Writer<'t, V, S: NodeStore<V>> {
    pub(super) view: View<'t, V>,
    pub(super) store: &'t S,
}

/// Why the bounds of an entry stayed as they were.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SetRangeError {
    /// No entry starts at the given address.
    #[error("no entry starts there")]
    Missing,
    /// The new range is empty or not page-aligned.
    #[error("the range is empty or not page-aligned")]
    BadRange,
    /// The new range would reach into or past a neighbour.
    #[error("the range reaches into a neighbour")]
    Overlap,
}

impl<'t, V, S: NodeStore<V>> Writer<'t, V, S> {
    /// Moves the bounds of the entry that starts at `start`, while the order of entries stays. Allocates
    /// nothing.
    pub fn set_range(&mut self, start: VirtAddr, range: VirtRange) -> Result<(), SetRangeError> {
        let root = self.root_node().ok_or(SetRangeError::Missing)?;
        let mut path = Path::new();
        path.go_to_end_after(root, start.0);
        if !path.starts_at(start.0) {
            return Err(SetRangeError::Missing);
        }
        if !is_mappable(range) {
            return Err(SetRangeError::BadRange);
        }
        if path.previous_end().is_some_and(|end| end > range.start().0)
            || path.next_start().is_some_and(|start| start < range.end().0)
        {
            return Err(SetRangeError::Overlap);
        }
        path.node(0).set_extent(path.slot(0), Extent::of(range));
        path.refresh_above(0);
        Ok(())
    }

    /// Forgets every entry and gives back every node, spare ones included. Allocates nothing.
    pub fn clear(&mut self) {
        let root = self.root_node();
        // First, so that every node is unlinked for new readers before the first one is retired.
        self.tree().set_root(0);
        self.set_len(0);
        if let Some(root) = root {
            // SAFETY: the whole tree is unlinked.
            unsafe { self.retire_subtree(root) };
        }
        self.trim(0);
    }

    /// Gives back `node` and all nodes below it.
    ///
    /// # Safety
    ///
    /// The node was part of the tree until its root was unlinked; each is returned once, and the caller does
    /// not use them after this.
    unsafe fn retire_subtree(&self, node: HeldNode<'_, V>) {
        for child in (0..node.count()).map_while(|slot| node.child(slot)) {
            // SAFETY: a child has one parent, so it is reached once.
            unsafe { self.retire_subtree(child) };
        }
        // SAFETY: nothing live links the node (caller), and its children are done.
        unsafe { self.retire(node.address()) };
    }

    #[inline]
    pub(super) fn tree(&self) -> &'t RangeTree<V> {
        self.view.tree
    }

    /// The root, for longer than a borrow of the writer: its methods decide what they retire.
    #[inline]
    pub(super) fn root_node(&self) -> Option<HeldNode<'t, V>> {
        // SAFETY: the writer is alone, and uses no node after it has retired it.
        unsafe { self.tree().held_root() }
    }

    #[inline]
    pub(super) fn set_len(&self, len: usize) {
        self.tree().len.store(len, Ordering::Relaxed);
    }

    /// Gives the node at `link` back to the store.
    ///
    /// # Safety
    ///
    /// The node is one of this tree, no link in a live node points to it, and it is not used any more.
    #[inline]
    pub(super) unsafe fn retire(&self, link: usize) {
        // SAFETY: a node's link is its address, never null; `stock` exposed it.
        let node = unsafe { NonNull::new_unchecked(ptr::with_exposed_provenance_mut(link)) };
        // SAFETY: it came from the one store of this tree (contract of `writer`); the rest is the caller's.
        unsafe { self.store.retire(node) };
    }
}

impl<'t, V, S: NodeStore<V>> Deref for Writer<'t, V, S> {
    type Target = View<'t, V>;

    #[inline]
    fn deref(&self) -> &View<'t, V> {
        &self.view
    }
}

impl<V, S: NodeStore<V>> Drop for Writer<'_, V, S> {
    #[inline]
    fn drop(&mut self) {
        self.trim_to_handful();
    }
}

impl<V, S: NodeStore<V>> fmt::Debug for Writer<'_, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.view, f)
    }
}

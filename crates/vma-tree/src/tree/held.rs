//! A node that only its holder changes.

use super::node::Node;
use core::fmt;
use core::ops::Deref;

/// A node of a tree that only the holder changes during `'n`, under the layout lock. So are the nodes below
/// it: [`child`](Self::child) needs no further promise.
///
/// Lock-free readers have no such node. They follow links that a writer may be changing.
pub(super) struct HeldNode<'n, V> {
    node: &'n Node<V>,
}

impl<V> Clone for HeldNode<'_, V> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for HeldNode<'_, V> {}

impl<'n, V> HeldNode<'n, V> {
    /// Takes the root of a tree.
    ///
    /// # Safety
    ///
    /// `root` is the root of a tree that only the caller changes during `'n`, and neither it nor a node
    /// reached through it is used once it is retired.
    #[inline]
    pub(super) const unsafe fn new(root: &'n Node<V>) -> Self {
        Self { node: root }
    }

    /// The child in slot `index`; `None` in a leaf and in a slot that is not in use.
    #[inline]
    pub(super) fn child(self, index: usize) -> Option<Self> {
        if self.level() == 0 {
            return None;
        }
        let link = self.link_at(index)?;
        // SAFETY: above level 0 a link that is not null is to a live node. It stays so until the holder of
        // this node retires it, and then it is not used any more (contract of `new`).
        Some(Self { node: unsafe { Node::at(link) } })
    }

    /// The child in slot `index`, which is in use and above the leaves.
    #[inline]
    pub(super) fn linked_child(self, index: usize) -> Self {
        self.child(index).expect("a slot in use above the leaves links a child")
    }
}

impl<V> Deref for HeldNode<'_, V> {
    type Target = Node<V>;

    #[inline]
    fn deref(&self) -> &Node<V> {
        self.node
    }
}

impl<V> fmt::Debug for HeldNode<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.node, f)
    }
}

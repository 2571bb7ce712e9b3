//! Where nodes come from and go to.

use super::node::Node;
use core::ptr::NonNull;
use quire_frame::AllocError;

/// No memory for a node, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no memory for a node of the range tree: {0}")]
pub struct OutOfNodes(pub AllocError);

/// The source and the sink of a tree's nodes.
///
/// # Safety
///
/// Readers follow the links of the tree without a lock, so an implementation guarantees that
/// - [`allocate`](Self::allocate) returns memory that is valid and aligned for a `Node<V>` and that no other
///   code uses until it comes back; its contents do not matter;
/// - memory given to [`retire`](Self::retire) stays readable and *unchanged* until every section of the epoch
///   that was open at the call has ended. Only the last [`NODE_TAIL`](super::NODE_TAIL) bytes are free
///   for a link and a stamp. The epoch is the one whose guards are passed to
///   [`find_lockless`](super::RangeTree::find_lockless).
pub unsafe trait NodeStore<V> {
    /// Memory for one node.
    #[cfg_attr(debug_assertions, track_caller)]
    fn allocate(&self) -> Result<NonNull<Node<V>>, OutOfNodes>;

    /// Takes back a node that the tree no longer links. It never fails and never sleeps for memory.
    ///
    /// # Safety
    ///
    /// The node came from this store, is linked nowhere, and is returned once.
    unsafe fn retire(&self, node: NonNull<Node<V>>);
}

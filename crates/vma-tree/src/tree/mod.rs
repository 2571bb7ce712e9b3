//! The tree of an address space's VMAs: a B+tree over disjoint address ranges, in memory.
//!
//! A [`RangeTree`] maps disjoint, non-empty, page-aligned ranges to pointers. Its nodes have 512 bytes and up
//! to 15 slots; each slot above the leaves caches the largest gap inside its child, so that a place for a new
//! mapping is found in logarithmic time.
//!
//! # What each caller may do
//!
//! The lock of the address space's layout (Linux's mmap lock) is the tree's lock:
//!
//! - under the lock held exclusively, [`RangeTree::writer`] gives a [`Writer`], which changes the tree;
//! - under the lock held in any way, [`RangeTree::view`] gives a [`View`], whose results are exact;
//! - with no lock, inside a section of the epoch, [`RangeTree::find_lockless`] looks up one address.
//!
//! # Why lock-free lookup is safe
//!
//! The writer changes nodes in place, word by word. A reader may see some words from before a change and some
//! from after it. What it must never do is to leave the memory of nodes, to loop forever, or to panic.
//!
//! 1. *A link is always to a node of the next level down, or, in a leaf, to a value.* A node's level is set
//!    before the node is published (release by the store of any link to it, acquire by the load of the link)
//!    and does not change until the node's epoch has passed: a node that was ever published goes back to the
//!    store when it dies and is never reused by the tree directly. So whatever mixture a reader sees, it goes
//!    down one level with each step, starting from the root's level: the search ends, and knows a node from a
//!    value.
//! 2. *A link read inside a section is to memory that is not reused before the section ends.* A slot that is
//!    given up is wiped in the same operation, and a node is retired only after every link to it in live
//!    nodes is overwritten. Take a node that the reader reaches. If its link was read from a live node, the
//!    link was there during the section (the fences of the epoch hide what was overwritten before), so the
//!    node was retired after the section began, or not at all. If it was read from a node that was retired
//!    meanwhile, that node was live when the section began, and what it links was so too at the time of its
//!    retirement. In both cases the store keeps the memory, unchanged, until the section ends. The same holds
//!    for values if the caller retires a value through the same epoch after it was removed.
//! 3. *Indices stay inside the node.* A slot index is a count over the fixed number of slots, and is checked
//!    before use; unused slots hold null, which ends the search.
//!
//! What a reader finds may still be wrong: a neighbour's value, a value that was just removed, or nothing
//! where there is an entry. Therefore a caller *believes nothing but a value that it has validated*: it takes
//! the value's own lock and checks under it that the value is still in use and that its range contains the
//! address. "Nothing found" and "validation failed" both lead to the slow path, which takes the layout lock
//! and uses a [`View`].

mod held;
mod lookup;
mod node;
mod path;
mod store;
#[cfg(test)]
mod tests;
mod view;
mod writer;

pub use node::{NODE_TAIL, Node};
pub use store::{NodeStore, OutOfNodes};
pub use view::{Entries, TreeViolation, View};
pub use writer::{InsertError, SetRangeError, Writer};

use self::held::HeldNode;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use quire_arch::VirtRange;
use quire_sync::atomic::{AtomicUsize, Ordering};

/// One range and what it maps to.
pub struct Entry<V> {
    /// The addresses.
    pub range: VirtRange,
    /// What they map to.
    pub value: NonNull<V>,
}

impl<V> Clone for Entry<V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for Entry<V> {}

impl<V> PartialEq for Entry<V> {
    fn eq(&self, other: &Self) -> bool {
        self.range == other.range && self.value == other.value
    }
}

impl<V> Eq for Entry<V> {}

impl<V> fmt::Debug for Entry<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} => {:?}", self.range, self.value)
    }
}

impl<V> Entry<V> {
    /// The entry in slot `index` of the leaf `leaf`; `None` when the slot is not in use.
    #[inline]
    fn of(leaf: &Node<V>, index: usize) -> Option<Self> {
        let value = NonNull::new(ptr::with_exposed_provenance_mut(leaf.link_at(index)?))?;
        Some(Self { range: leaf.range(index), value })
    }
}

/// A map from disjoint address ranges to values that live elsewhere. See the [module](self).
///
/// The tree does not know its store, so dropping it leaks its nodes, of which an empty tree may have a few
/// too: the owner calls [`Writer::clear`] first.
pub struct RangeTree<V> {
    /// The root's address, or null for an empty tree. Stores release, loads acquire, as with links.
    root: AtomicUsize,
    /// Number of entries. Changed by the writer only; orders nothing.
    len: AtomicUsize,
    /// First of the spare nodes, each linked to the next by its first link. The writer's alone.
    spare: AtomicUsize,
    /// Number of spare nodes.
    spares: AtomicUsize,
    /// Values are handed out as raw pointers only, so the tree is `Send` and `Sync` whatever they are.
    value: PhantomData<fn() -> NonNull<V>>,
}

impl<V> Default for RangeTree<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V> RangeTree<V> {
    /// An empty tree.
    pub fn new() -> Self {
        Self {
            root: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            spare: AtomicUsize::new(0),
            spares: AtomicUsize::new(0),
            value: PhantomData,
        }
    }

    /// Number of entries; the number of some recent moment when called without the lock.
    #[inline]
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether there are no entries, as [`len`](Self::len) says.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Spare nodes that the tree keeps for coming insertions.
    pub fn spare_nodes(&self) -> usize {
        self.spares.load(Ordering::Relaxed)
    }

    /// The tree for exact queries.
    ///
    /// # Safety
    ///
    /// While the view lives no [`Writer`] changes this tree: the caller holds the layout lock, shared or
    /// alone.
    #[inline]
    pub unsafe fn view(&self) -> View<'_, V> {
        View { tree: self }
    }

    /// The tree for changes.
    ///
    /// # Safety
    ///
    /// While the writer lives no other [`Writer`] of this tree exists, and while it changes the tree no
    /// [`View`]: the caller holds the layout lock alone. `store` is the same for every writer of this tree.
    #[inline]
    pub unsafe fn writer<'t, S: NodeStore<V>>(&'t self, store: &'t S) -> Writer<'t, V, S> {
        Writer { view: View { tree: self }, store }
    }

    /// The root, or `None` in an empty tree.
    ///
    /// # Safety
    ///
    /// During `'n` either only the caller changes the tree, or the caller stays in a section of the epoch.
    #[inline]
    unsafe fn root<'n>(&self) -> Option<&'n Node<V>> {
        // Acquire: pairs with the release in `set_root`.
        let root = self.root.load(Ordering::Acquire);
        // SAFETY: a root that is not null is a live node; the caller keeps it so.
        (root != 0).then(|| unsafe { Node::at(root) })
    }

    /// The root, or `None` in an empty tree, with what is below it.
    ///
    /// # Safety
    ///
    /// During `'n` only the caller changes the tree, and it uses no node that it has retired.
    #[inline]
    unsafe fn held_root<'n>(&self) -> Option<HeldNode<'n, V>> {
        // SAFETY: only the caller changes the tree.
        let root = unsafe { self.root() }?;
        // SAFETY: it is the root, and the rest is the caller's.
        Some(unsafe { HeldNode::new(root) })
    }

    /// Release: pairs with the acquire in [`root`](Self::root).
    fn set_root(&self, link: usize) {
        self.root.store(link, Ordering::Release);
    }
}

impl<V> fmt::Debug for RangeTree<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Nodes may be read only under the lock or the epoch: a `View` shows the entries.
        f.debug_struct("RangeTree")
            .field("len", &self.len())
            .field("spare_nodes", &self.spare_nodes())
            .finish_non_exhaustive()
    }
}

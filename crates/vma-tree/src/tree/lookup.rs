//! Lock-free lookup of one address: the first step of a page fault.

use super::RangeTree;
use super::node::Node;
use core::ptr::{self, NonNull};
use quire_arch::VirtAddr;
use quire_sync::EpochGuard;

impl<V> RangeTree<V> {
    /// The value whose range contains `addr`, as far as can be told without a lock.
    ///
    /// Both results may be wrong while a writer is at work. The caller takes the value's own lock and checks
    /// that the value is in use and contains `addr`; if that fails, or nothing is found, it asks a
    /// [`View`](super::View) under the layout lock. The [module](super) says why this is safe.
    ///
    /// # Safety
    ///
    /// The guard is one of the epoch through which the tree's [`NodeStore`](super::NodeStore) retires nodes.
    #[inline]
    pub unsafe fn find_lockless(&self, addr: VirtAddr, guard: &EpochGuard<'_>) -> Option<NonNull<V>> {
        let _ = guard;
        // SAFETY: the guard is of the right epoch (caller) and is borrowed for longer than the search uses
        // any node, so every node that can be reached stays readable (point 2 in the module's head).
        let mut node: &Node<V> = unsafe { self.root() }?;
        // The levels are counted here, not read from each node: the search ends whatever it meets.
        for _ in 0..node.level() {
            let link = node.link_at(node.ends_up_to(addr.0))?;
            // SAFETY: above level 0 a link is to a node one level further down (point 1), which the guard
            // keeps readable (point 2).
            node = unsafe { Node::at(link) };
        }
        let slot = node.ends_up_to(addr.0);
        let link = node.link_at(slot)?;
        if node.start(slot) > addr.0 {
            return None;
        }
        NonNull::new(ptr::with_exposed_provenance_mut(link))
    }
}

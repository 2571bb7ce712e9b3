//! The list of nodes that have nothing but shadows.

use super::LockedStore;
use crate::node::HeldNode;
use crate::source::NodeSource;
use quire_arch::Execution;

impl<'s, E: Execution, S: NodeSource> LockedStore<'s, E, S> {
    /// Puts `node` on the list, or takes it off, as its counts say.
    pub(super) fn list_shadow_node(&mut self, node: HeldNode<'s>) {
        let counts = node.counts();
        match (counts.words > 0 && counts.words == counts.shadows, counts.listed) {
            (true, false) => {
                let next = self.guarded.shadow_nodes.replace(node.head());
                node.count(|counts| (counts.previous, counts.next, counts.listed) = (None, next, true));
                if let Some(next) = next {
                    // SAFETY: the lock is held, and a node leaves the list before it is retired.
                    unsafe { HeldNode::<'s>::new(next) }.count(|counts| counts.previous = Some(node.head()));
                }
                self.guarded.figures.shadow_nodes += 1;
            }
            (false, true) => self.unlist_shadow_node(node),
            _ => {}
        }
    }

    pub(super) fn unlist_shadow_node(&mut self, node: HeldNode<'s>) {
        let counts = node.counts();
        if !counts.listed {
            return;
        }
        match counts.previous {
            Some(previous) => {
                // SAFETY: the lock is held, and a node leaves the list before it is retired.
                let previous = unsafe { HeldNode::<'s>::new(previous) };
                previous.count(|previous| previous.next = counts.next);
            }
            None => self.guarded.shadow_nodes = counts.next,
        }
        if let Some(next) = counts.next {
            // SAFETY: the lock is held, and a node leaves the list before it is retired.
            unsafe { HeldNode::<'s>::new(next) }.count(|next| next.previous = counts.previous);
        }
        node.count(|counts| (counts.previous, counts.next, counts.listed) = (None, None, false));
        self.guarded.figures.shadow_nodes -= 1;
    }
}

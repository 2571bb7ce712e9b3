//! The store as the holder of its lock sees it.
//!
//! Lowest first: `audit`, `shadow_list`, `words`, `tags`, `walk`, `change`, `split`, `insert`.

mod audit;
mod change;
mod insert;
mod shadow_list;
mod split;
mod tags;
mod walk;
mod words;

pub use audit::StoreViolation;

use super::{FolioStore, Guarded, StoreFigures};
use crate::entry::Stored;
use crate::index::PageIndex;
use crate::node::{HeldNode, TAGS};
use crate::source::NodeSource;
use crate::word::Word;
use core::fmt;
use quire_arch::Execution;
use quire_sync::SpinGuard;
use quire_sync::atomic::Ordering;

/// A store with its lock held.
pub struct LockedStore<'s, E: Execution, S> {
    pub(super) store: &'s FolioStore<E>,
    pub(super) guarded: SpinGuard<'s, Guarded, E>,
    pub(super) source: &'s S,
}

impl<'s, E: Execution, S: NodeSource> LockedStore<'s, E, S> {
    /// What is in the store.
    pub fn figures(&self) -> StoreFigures {
        self.guarded.figures
    }

    /// What the file has at page `index`.
    pub fn get(&self, index: PageIndex) -> Option<Stored> {
        self.locate(index).map(|(_, stored)| stored)
    }

    /// The same, with the node of its words; none if it is the root.
    #[inline]
    pub(super) fn locate(&self, index: PageIndex) -> Option<(Option<HeldNode<'s>>, Stored)> {
        let page = index.get();
        let Some(mut node) = self.root_node() else {
            return self.root().stored(0).filter(|stored| page < stored.order.pages()).map(|it| (None, it));
        };
        if !node.holds(page) {
            return None;
        }
        loop {
            let slot = node.slot(page);
            match node.child(slot) {
                Some(child) => node = child,
                None => return node.word(slot).stored(page).map(|stored| (Some(node), stored)),
            }
        }
    }

    pub(super) fn root(&self) -> Word {
        // Relaxed: it changes under the lock only.
        Word::from_raw(self.store.root.load(Ordering::Relaxed))
    }

    pub(super) fn root_node(&self) -> Option<HeldNode<'s>> {
        // SAFETY: the lock is held, and the root is in the store.
        self.root().node().map(|link| unsafe { HeldNode::new(link.cast()) })
    }

    /// The node with the words of an entry that is in the store; `None` if it is the root.
    pub(super) fn node_of(&self, stored: &Stored) -> Option<HeldNode<'s>> {
        let mut node = self.root_node()?;
        while !node.level().is_of(stored.order) {
            node = node.child(node.slot(stored.start.get()))?;
        }
        Some(node)
    }

    /// Reports all that does not fit together, and calls `each` with each entry and its tags.
    pub fn audit(&self, report: &mut dyn FnMut(StoreViolation), each: &mut dyn FnMut(&Stored, [bool; TAGS])) {
        let mut found = StoreFigures::default();
        match self.root_node() {
            Some(root) => {
                if root.counts().parent.is_some() {
                    report(StoreViolation::Link(0));
                }
                let only_first = root.counts().words == 1 && root.child(0).is_some();
                let only_entry = root.word(0).stored(0).is_some_and(|first| {
                    root.level().is_of(first.order)
                        && usize::from(root.counts().words) == root.level().words_of(first.order)
                });
                if only_first || only_entry {
                    report(StoreViolation::Height);
                }
                audit::node(root, 0, &mut found, report, each);
            }
            None => {
                if let Some(stored) = self.root().stored(0) {
                    found.change(&stored, true);
                    each(&stored, self.guarded.root_tags);
                }
            }
        }
        let counted = self.guarded.figures;
        if counted != found {
            report(StoreViolation::Figures { counted, found });
        }
    }
}

impl<E: Execution, S> fmt::Debug for LockedStore<'_, E, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockedStore").field("figures", &self.guarded.figures).finish_non_exhaustive()
    }
}

//! Visiting memcgs one after the other, for as long as it takes.

use super::MemcgTree;
use crate::id::MemcgId;
use crate::memcg::Memcg;
use core::{fmt, mem};
use quire_arch::Platform;
use quire_sync::atomic::Ordering;

/// Visits the memcgs of a subtree: parents before children, removed ones that are not gone included. The one
/// that is being visited does not leave the tree, so the next one is found from there, however long a visit
/// takes. Those that are made meanwhile may be missed.
#[must_use = "nothing is visited before the first step"]
pub struct Visits<'g, P: Platform> {
    tree: &'g MemcgTree<P>,
    root: MemcgId,
    place: Place,
    round: Option<Round>,
}

/// How far it has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Before,
    At(MemcgId),
    Behind,
}

/// A round that begins anywhere in the subtree and goes on from its root.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Round {
    /// The first one. It does not leave the tree before the round is over.
    first: Option<MemcgId>,
    /// The last one was passed.
    turned: bool,
}

impl<P: Platform> MemcgTree<P> {
    /// Visits the memcgs in the subtree of `root`.
    pub fn visit(&self, root: MemcgId) -> Visits<'_, P> {
        Visits { tree: self, root, place: Place::Before, round: None }
    }

    /// Visits the memcgs in the subtree of `root` once each, from the one after that which was visited last
    /// in such rounds below `root`, by any thread. So reclaim that stops when it has enough does not always
    /// take from the same memcg.
    pub fn visit_round(&self, root: MemcgId) -> Visits<'_, P> {
        Visits { round: Some(Round::default()), ..self.visit(root) }
    }

    /// The memcg after the cursor of `root`, under the lock of the memcgs.
    fn after_cursor(&self, root: &Memcg<P>) -> MemcgId {
        let cursor = MemcgId::from_bits(root.cursor.load(Ordering::Relaxed));
        let last =
            self.table.get(cursor).filter(|last| last.life.is_there() && self.is_below(cursor, root.id));
        last.and_then(|last| self.next_locked(root, last)).unwrap_or(root.id)
    }
}

impl<P: Platform> Visits<'_, P> {
    /// The memcg after `at`, under the lock of the memcgs. Both are below the root as ever: a memcg that is
    /// visited stays where it is in the tree.
    fn after(&mut self, at: &Memcg<P>) -> Option<MemcgId> {
        let root = self.tree.table.get(self.root)?;
        let next = self.tree.next_locked(root, at);
        let Some(round) = &mut self.round else { return next };
        let next = match next {
            None if !mem::replace(&mut round.turned, true) => Some(root.id),
            next => next,
        };
        next.filter(|_| next != round.first)
    }

    /// The first one, under the lock of the memcgs.
    fn first(&mut self) -> Option<MemcgId> {
        let root = self.tree.table.get(self.root).filter(|root| root.life.is_there())?;
        let Some(round) = &mut self.round else { return Some(root.id) };
        let first = self.tree.after_cursor(root);
        round.first = Some(first);
        self.tree.table.get(first)?.change_visits(true);
        Some(first)
    }

    /// Goes on to `next`, under the lock of the memcgs.
    fn go_to(&mut self, next: Option<MemcgId>) {
        let table = &self.tree.table;
        match next.and_then(|next| table.get(next)) {
            Some(memcg) => {
                memcg.change_visits(true);
                if let Some(root) = table.get(self.root).filter(|_| self.round.is_some()) {
                    root.cursor.store(memcg.id.get(), Ordering::Relaxed);
                }
            }
            None => {
                let first = self.round.and_then(|round| round.first);
                if let Some(first) = first.and_then(|first| table.get(first)) {
                    first.change_visits(false);
                }
            }
        }
        self.place = next.map_or(Place::Behind, Place::At);
    }
}

impl<P: Platform> Iterator for Visits<'_, P> {
    type Item = MemcgId;

    fn next(&mut self) -> Option<MemcgId> {
        let tree = self.tree;
        let _pin = tree.frames().platform().pin();
        let _registry = tree.registry.lock();
        let next = match self.place {
            Place::Before => self.first(),
            Place::At(at) => {
                let at = tree.table.get(at)?;
                at.change_visits(false);
                self.after(at)
            }
            Place::Behind => return None,
        };
        self.go_to(next);
        next
    }
}

impl<P: Platform> Drop for Visits<'_, P> {
    fn drop(&mut self) {
        if let Place::At(at) = self.place
            && let Some(memcg) = self.tree.table.get(at)
        {
            let _pin = self.tree.frames().platform().pin();
            let _registry = self.tree.registry.lock();
            memcg.change_visits(false);
            self.go_to(None);
        }
    }
}

impl<P: Platform> fmt::Debug for Visits<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Visits").field("root", &self.root).field("place", &self.place).finish_non_exhaustive()
    }
}

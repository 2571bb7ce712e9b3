//! Visiting memcgs one after the other, for as long as it takes.

use crate::Memcgs;
use crate::id::MemcgId;
use core::fmt;
use quire_arch::Platform;

/// Visits the memcgs of a subtree: parents before children, removed ones that are not gone included. The one
/// that is being visited does not leave the tree, so the next one is found from there, however long a visit
/// takes. Those that are made meanwhile may be missed.
#[must_use = "nothing is visited before the first step"]
pub struct Visits<'g, P: Platform> {
    memcgs: &'g Memcgs<P>,
    root: MemcgId,
    place: Place,
}

/// How far it has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Before,
    At(MemcgId),
    Behind,
}

impl<P: Platform> Memcgs<P> {
    /// Visits the memcgs in the subtree of `root`.
    pub fn visit(&self, root: MemcgId) -> Visits<'_, P> {
        Visits { memcgs: self, root, place: Place::Before }
    }
}

impl<P: Platform> Iterator for Visits<'_, P> {
    type Item = MemcgId;

    fn next(&mut self) -> Option<MemcgId> {
        let memcgs = self.memcgs;
        let _pin = memcgs.frames().platform().pin();
        let _registry = memcgs.registry.lock();
        let next = match self.place {
            Place::Before => {
                memcgs.table.get(self.root).filter(|root| root.life.is_there()).map(|root| root.id)
            }
            Place::At(at) => {
                // Below the root as ever: a memcg that is visited stays where it is in the tree.
                let (root, at) = (memcgs.table.get(self.root)?, memcgs.table.get(at)?);
                at.change_visits(false);
                memcgs.next_locked(root, at)
            }
            Place::Behind => None,
        };
        if let Some(memcg) = next.and_then(|next| memcgs.table.get(next)) {
            memcg.change_visits(true);
        }
        self.place = next.map_or(Place::Behind, Place::At);
        next
    }
}

impl<P: Platform> Drop for Visits<'_, P> {
    fn drop(&mut self) {
        if let Place::At(at) = self.place
            && let Some(memcg) = self.memcgs.table.get(at)
        {
            let _pin = self.memcgs.frames().platform().pin();
            let _registry = self.memcgs.registry.lock();
            memcg.change_visits(false);
        }
    }
}

impl<P: Platform> fmt::Debug for Visits<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Visits").field("root", &self.root).field("place", &self.place).finish_non_exhaustive()
    }
}

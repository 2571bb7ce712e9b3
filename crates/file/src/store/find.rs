//! The look-up of a page without a lock.

use super::FolioStore;
use crate::entry::Stored;
use crate::index::PageIndex;
use crate::node::NodeRef;
use crate::word::{Holds, Word};
use core::fmt;
use quire_arch::Execution;
use quire_sync::EpochGuard;
use quire_sync::atomic::{AtomicU64, Ordering};

/// An entry that was found without a lock.
pub struct Found<'g> {
    stored: Stored,
    word: Word,
    place: &'g AtomicU64,
}

impl Found<'_> {
    /// The entry. It may be gone by now.
    #[inline]
    pub fn stored(&self) -> Stored {
        self.stored
    }

    /// Whether the entry is still there, or was when the reference was taken that the caller took to it
    /// before it asks. If not, the caller drops that reference and looks again.
    #[inline]
    pub fn is_current(&self) -> bool {
        // The reference was taken by an exchange with acquire. If the folio had left by then, that exchange
        // reads what was written by the drop of the store's reference, with release, or later; before that
        // drop the word was overwritten. So a relaxed load would see that, too; acquire keeps it behind the
        // exchange.
        self.place.load(Ordering::Acquire) == self.word.raw()
    }
}

impl fmt::Debug for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.stored, f)
    }
}

impl<E: Execution> FolioStore<E> {
    /// What the file has at page `index`, as far as can be told without the lock.
    ///
    /// An entry that is there during the whole call is found.
    ///
    /// # Safety
    ///
    /// The guard is one of the epoch through which the store's [`NodeSource`](crate::NodeSource) retires
    /// nodes, the store is borrowed for as long as it, and the memory of the nodes that the store has is
    /// valid.
    #[inline]
    pub unsafe fn find<'g>(&'g self, index: PageIndex, guard: &'g EpochGuard<'_>) -> Option<Found<'g>> {
        let _ = guard;
        let index = index.get();
        let mut attempt = 0;
        loop {
            // Acquire: pairs with the release in `LockedStore::set_root`.
            let mut word = Word::from_raw(self.root.load(Ordering::Acquire));
            let mut place = &self.root;
            let mut is_root = true;
            loop {
                match word.holds() {
                    Holds::Nothing => return None,
                    Holds::Gone => break,
                    Holds::Node(link) => {
                        // SAFETY: the link was read in a section of the right epoch (caller).
                        let node = unsafe { NodeRef::new(link) };
                        let level = node.level();
                        if is_root && !level.holds(index) {
                            return None;
                        }
                        is_root = false;
                        place = node.place(level.slot(index));
                        // Acquire: pairs with the release in `HeldNode::store`.
                        word = Word::from_raw(place.load(Ordering::Acquire));
                    }
                    Holds::Entry(..) => {
                        // An entry that is the root begins at the first page, and may end before this one.
                        let stored = word.stored(if is_root { 0 } else { index })?;
                        let holds = stored.range().contains(PageIndex::known(index));
                        return holds.then_some(Found { stored, word, place });
                    }
                }
            }
            E::relax(attempt);
            attempt = attempt.saturating_add(1);
        }
    }
}

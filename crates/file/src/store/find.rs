//! The look-up of a page without a lock.

use super::FolioStore;
use crate::entry::Stored;
use crate::index::PageIndex;
use crate::node::NodeRef;
use crate::word::Word;
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
            let root = Word::from_raw(self.root.load(Ordering::Acquire));
            let Some(link) = root.node() else {
                // An entry that is the root begins at the first page, and may end before this one.
                let stored = root.stored(0).filter(|stored| index < stored.order.pages())?;
                return Some(Found { stored, word: root, place: &self.root });
            };
            // SAFETY: the link was read in a section of the right epoch (caller).
            let mut node = unsafe { NodeRef::new(link) };
            if !node.holds(index) {
                return None;
            }
            let (place, word) = loop {
                let place = node.place(node.slot(index));
                // Acquire: pairs with the release in `HeldNode::store`.
                let word = Word::from_raw(place.load(Ordering::Acquire));
                match word.node() {
                    // SAFETY: as above.
                    Some(link) => node = unsafe { NodeRef::new(link) },
                    None => break (place, word),
                }
            };
            if let Some(stored) = word.stored(index) {
                return Some(Found { stored, word, place });
            }
            if word == Word::NONE {
                return None;
            }
            // The node is gone.
            E::relax(attempt);
            attempt = attempt.saturating_add(1);
        }
    }

    /// Those of 32 pages from `first` on that are `wanted` and have folios, as bits from the first one on:
    /// one descent for each node. A snapshot, in which what comes or moves meanwhile may be missing.
    ///
    /// # Safety
    ///
    /// As for [`find`](Self::find).
    pub(crate) unsafe fn folio_bits(&self, first: PageIndex, wanted: u32, guard: &EpochGuard<'_>) -> u32 {
        let _ = guard;
        let (mut bits, mut left) = (0, wanted);
        // Acquire, here and below: as in `find`.
        let root = Word::from_raw(self.root.load(Ordering::Acquire));
        let Some(link) = root.node() else {
            let pages = root.stored(0).filter(|_| root.is_folio()).map_or(0, |root| root.order.pages());
            return wanted & ones(pages.saturating_sub(first.get()));
        };
        // SAFETY: the link was read in a section of the right epoch (caller).
        let root = unsafe { NodeRef::new(link) };
        while left != 0 {
            let page = first.get() + u64::from(left.trailing_zeros());
            if !root.holds(page) {
                break;
            }
            let mut node = root;
            let word = loop {
                let word = Word::from_raw(node.place(node.slot(page)).load(Ordering::Acquire));
                match word.node() {
                    // SAFETY: as above.
                    Some(link) => node = unsafe { NodeRef::new(link) },
                    None => break word,
                }
            };
            let level = node.level();
            if level.shift() > 0 {
                let here = left & ones((page | (level.word_pages() - 1)) + 1 - first.get());
                bits |= if word.is_folio() { here } else { 0 };
                left &= !here;
                continue;
            }
            // Nodes with a word for each page have no links.
            let (nth, slot) = (left.trailing_zeros(), node.slot(page));
            let mut here = left & ones(u64::from(nth) + (level.words() - slot) as u64);
            left &= !here;
            while here != 0 {
                let at = here.trailing_zeros();
                here &= here - 1;
                let place = node.place(slot + (at - nth) as usize);
                let is_folio = Word::from_raw(place.load(Ordering::Acquire)).is_folio();
                bits |= u32::from(is_folio) << at;
            }
        }
        bits
    }
}

/// So many bits from the lowest on, as many as there are.
#[inline]
const fn ones(count: u64) -> u32 {
    if count >= u32::BITS as u64 { u32::MAX } else { (1 << count) - 1 }
}

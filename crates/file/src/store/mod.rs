//! The store: what a file has at each of its pages.
//!
//! A radix tree of words whose digits have 6, 3, 6, 6, ... bits, after the compact radix tree of Linux's
//! xarray. The digits are chosen so that a folio, a shadow or a run of swap slots of 2 MiB is *one* word. An
//! entry of another order has up to 32 equal words at its level. Each of them holds the order and the first
//! frame, so no word refers to another one, and none is half an entry. An entry that is the only one of its
//! file, and begins at the first page, is the root: such a file has no node.
//!
//! # Who does what
//!
//! - With the store's lock, [`FolioStore::lock`] gives a [`LockedStore`], which changes it. Memory is
//!   allocated before: an operation that needs nodes says how many, and changes nothing if they are not
//!   there. Replacing and removing need none.
//! - Without the lock, in a section of the epoch, [`FolioStore::find`] looks one page up.
//!
//! # Why the look-up without a lock is safe
//!
//! 1. *It ends, inside of nodes.* The level of a node is set before a link to it is published (release by the
//!    store of a word, acquire by its load) and stays until the epoch of the node's end has passed. A link
//!    leads one level down. A node keeps its place in the file: with the links above it, an index finds its
//!    slot from the level alone.
//! 2. *Nodes that it meets are readable.* A node is retired after the link to it was overwritten. A reader
//!    that has read the link before is in a section that was open then, which keeps the node from being used
//!    again.
//! 3. *What is there all the time is found.* A node that leaves the store while it has words has
//!    `Word::GONE` in each of them. A reader that meets it begins again at the root, which leads elsewhere by
//!    then. One that read the word before has an entry that was there when it began.
//! 4. *What was found was there after a reference was taken.* The reader takes a reference to the folio,
//!    which fails if it is free, and then asks [`Found::is_current`]: the word is the same as before, in a
//!    node that is part of the store, or was when the folio still had the reference of the store. Removal,
//!    and replacement by another entry, overwrite the words first, and the caller drops that reference after
//!    it.

mod error;
mod figures;
mod find;
mod locked;
mod tag;
#[cfg(test)]
pub(crate) mod tests;

pub use error::InsertError;
pub use figures::StoreFigures;
pub use find::Found;
pub use locked::{LockedStore, StoreViolation};
pub use tag::{Filter, Tag};

use crate::node::{Head, TAGS};
use crate::source::NodeSource;
use crate::word::Word;
use core::fmt;
use core::ptr::NonNull;
use quire_arch::{Execution, LockClass};
use quire_sync::atomic::AtomicU64;
use quire_sync::{SpinLock, SpinStatistics};

/// What the lock guards besides the words.
#[derive(Debug, Default)]
struct Guarded {
    /// The tags of an entry that is the root.
    root_tags: [bool; TAGS],
    /// The first node that has nothing but shadows.
    shadow_nodes: Option<NonNull<Head>>,
    figures: StoreFigures,
}

// SAFETY: the pointer is to a node of the store, which is used under its lock only.
unsafe impl Send for Guarded {}

/// What a file has at each of its pages. The head of the module says how.
///
/// The store does not know where its nodes come from, so dropping it leaks them: the owner removes all that
/// is in it first.
pub struct FolioStore<E> {
    root: AtomicU64,
    lock: SpinLock<Guarded, E>,
}

impl<E: Execution> Default for FolioStore<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E: Execution> FolioStore<E> {
    /// Nothing.
    pub fn new() -> Self {
        let lock = SpinLock::new(LockClass::FolioStore, Guarded::default());
        Self { root: AtomicU64::new(Word::NONE.raw()), lock }
    }

    /// The store with its lock held. The caller is pinned.
    ///
    /// # Safety
    ///
    /// Each lock of this store is passed the same source: one that takes back, through the same epoch, the
    /// memory that it handed out. The memory of the nodes that the store has is valid.
    #[inline]
    pub unsafe fn lock<'s, S: NodeSource>(&'s self, source: &'s S) -> LockedStore<'s, E, S> {
        LockedStore { store: self, guarded: self.lock.lock(), source }
    }

    /// How often the lock was taken.
    pub fn lock_statistics(&self) -> SpinStatistics {
        self.lock.statistics()
    }
}

impl<E> fmt::Debug for FolioStore<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FolioStore").field("lock", &self.lock).finish_non_exhaustive()
    }
}

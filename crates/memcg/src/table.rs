//! From a memcg's number to the memcg.

use crate::id::MemcgId;
use crate::memcg::Memcg;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU16, Ordering};
use quire_arch::Platform;

const LEAF: usize = 512;
const LEAVES: usize = MemcgId::COUNT / LEAF;
/// Chains of names: a chain is 128 memcgs long if there are as many as there can be.
pub(crate) const CHAINS: usize = 256;

/// A page of the table.
pub(crate) type Leaf<P> = [AtomicPtr<Memcg<P>>; LEAF];

const _: () = assert!(size_of::<AtomicPtr<u8>>() * LEAF <= quire_arch::PAGE_SIZE as usize);

/// The page that leads to the others. Also what else of the memcgs would be large where they are passed by
/// value.
struct Root<P: Platform> {
    leaves: [AtomicPtr<Leaf<P>>; LEAVES],
    /// The number of the first memcg of each chain of names.
    chains: [AtomicU16; CHAINS],
}

/// Two levels, so that a machine with few memcgs needs two pages. Nothing is ever removed.
pub(crate) struct MemcgTable<P: Platform> {
    /// In a page of its own: the memcgs of a machine are passed by value when it starts, on a kernel's stack.
    root: NonNull<Root<P>>,
}

// SAFETY: the page is the table's alone, and is only accessed by atomics; memcgs are shared between threads
// by design.
unsafe impl<P: Platform> Send for MemcgTable<P> {}
// SAFETY: the page is only accessed by atomics; memcgs are shared between threads by design.
unsafe impl<P: Platform> Sync for MemcgTable<P> {}

impl<P: Platform> MemcgTable<P> {
    /// An empty table.
    ///
    /// # Safety
    ///
    /// `page` is a zeroed page, which is the table's as long as it lives.
    pub(crate) unsafe fn new(page: NonNull<u8>) -> Self {
        Self { root: page.cast() }
    }

    #[inline]
    fn root(&self) -> &Root<P> {
        const { assert!(size_of::<Root<P>>() <= quire_arch::PAGE_SIZE as usize) };
        // SAFETY: `new` was given a page of zeros, which are null pointers and numbers, that stays as long as
        // the table. Only shared references are made.
        unsafe { self.root.as_ref() }
    }

    /// Where the chain of names `number` begins. Accessed under the lock of the memcgs.
    pub(crate) fn chain(&self, number: usize) -> &AtomicU16 {
        &self.root().chains[number]
    }

    #[inline]
    fn leaf(&self, id: MemcgId) -> Option<&Leaf<P>> {
        let leaf = NonNull::new(self.root().leaves[id.index() / LEAF].load(Ordering::Acquire))?;
        // SAFETY: `add_leaf` was given a page of null pointers that stays as long as the table. Only shared
        // references are made. Pairs with the store there.
        Some(unsafe { leaf.as_ref() })
    }

    /// The memcg, if there ever was one with that number.
    #[inline]
    pub(crate) fn get(&self, id: MemcgId) -> Option<&Memcg<P>> {
        let memcg = NonNull::new(self.leaf(id)?[id.index() % LEAF].load(Ordering::Acquire))?;
        // SAFETY: `put` was given a memcg that stays as long as the table. Only shared references are made.
        // Pairs with the store there.
        Some(unsafe { memcg.as_ref() })
    }

    pub(crate) fn has_leaf(&self, id: MemcgId) -> bool {
        self.leaf(id).is_some()
    }

    /// Adds the page of the table that holds `id`'s entry. Called under the lock of the memcgs, if it has
    /// none.
    ///
    /// # Safety
    ///
    /// `page` is a zeroed page, which is the table's as long as it lives.
    pub(crate) unsafe fn add_leaf(&self, id: MemcgId, page: NonNull<u8>) {
        self.root().leaves[id.index() / LEAF].store(page.cast().as_ptr(), Ordering::Release);
    }

    /// Sets `memcg` as number `id`, whose page is present. Called under the lock of the memcgs.
    ///
    /// # Safety
    ///
    /// The memcg stays where it is as long as the table lives.
    pub(crate) unsafe fn put(&self, id: MemcgId, memcg: NonNull<Memcg<P>>) {
        if let Some(leaf) = self.leaf(id) {
            leaf[id.index() % LEAF].store(memcg.as_ptr(), Ordering::Release);
        }
    }
}

impl<P: Platform> fmt::Debug for MemcgTable<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemcgTable").finish_non_exhaustive()
    }
}

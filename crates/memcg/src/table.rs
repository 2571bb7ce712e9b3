//! From a memcg's number to the memcg.

use crate::id::MemcgId;
use crate::memcg::Memcg;
use core::fmt;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering};
use quire_arch::Platform;

const LEAF: usize = 512;
const LEAVES: usize = MemcgId::COUNT / LEAF;

/// A page of the table.
pub(crate) type Leaf<P> = [AtomicPtr<Memcg<P>>; LEAF];

const _: () = assert!(size_of::<AtomicPtr<u8>>() * LEAF <= quire_arch::PAGE_SIZE as usize);

/// Two levels, so that a machine with few memcgs needs one page. Nothing is ever removed.
pub(crate) struct MemcgTable<P: Platform> {
    leaves: [AtomicPtr<Leaf<P>>; LEAVES],
}

impl<P: Platform> MemcgTable<P> {
    pub(crate) fn new() -> Self {
        Self { leaves: core::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())) }
    }

    #[inline]
    fn leaf(&self, id: MemcgId) -> Option<&Leaf<P>> {
        let leaf = NonNull::new(self.leaves[id.index() / LEAF].load(Ordering::Acquire))?;
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
        self.leaves[id.index() / LEAF].store(page.cast().as_ptr(), Ordering::Release);
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

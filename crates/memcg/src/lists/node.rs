//! The lists of one memcg and node.

use super::{Label, LruList, mark};
use core::fmt;
use quire_arch::{LockClass, Pfn, Platform};
use quire_frame::{FolioList, MemoryMap};
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::{SpinGuard, SpinLock};

pub(crate) type Lists = [FolioList; LruList::COUNT];

/// Lists, their sizes, and their clock.
pub(crate) struct NodeLists<P: Platform> {
    lists: SpinLock<Lists, P>,
    /// Pages on each, by the folios' labels. Written under the lock, read without.
    pages: [AtomicU64; LruList::COUNT],
    /// Pages that have left the inactive lists, here and in descendants: the clock by which refault distances
    /// are measured.
    age: AtomicU64,
}

impl<P: Platform> NodeLists<P> {
    pub(crate) fn new() -> Self {
        Self {
            lists: SpinLock::new(LockClass::Lru, core::array::from_fn(|_| FolioList::new())),
            pages: core::array::from_fn(|_| AtomicU64::new(0)),
            age: AtomicU64::new(0),
        }
    }

    /// For another memcg: nothing is listed.
    pub(crate) fn reset(&self) {
        self.age.store(0, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn lock(&self) -> SpinGuard<'_, Lists, P> {
        self.lists.lock()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sizes().iter().all(|&pages| pages == 0)
    }

    /// Pages on each list.
    #[inline]
    pub(crate) fn sizes(&self) -> [u64; LruList::COUNT] {
        core::array::from_fn(|list| self.pages[list].load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn age(&self) -> &AtomicU64 {
        &self.age
    }

    /// A load and a store, under the lock.
    #[inline]
    pub(crate) fn count(&self, list: LruList, change: i64) {
        let pages = &self.pages[list as usize];
        pages.store(pages.load(Ordering::Relaxed).wrapping_add_signed(change), Ordering::Relaxed);
    }

    /// Takes a folio with `label` off.
    #[inline]
    pub(crate) fn remove(&self, lists: &mut Lists, map: &MemoryMap, head: Pfn, label: Label) {
        lists[label.list() as usize].remove(map, head);
        self.count(label.list(), -(label.order().pages() as i64));
    }

    /// Puts a folio on the list that `label` says, at the front or the back.
    #[inline]
    pub(crate) fn insert(
        &self,
        lists: &mut Lists,
        map: &MemoryMap,
        head: Pfn,
        (label, front): (Label, bool),
    ) {
        label.put(map.known(head));
        let list = &mut lists[label.list() as usize];
        if front {
            list.push_front(map, head);
        } else {
            list.push_back(map, head);
        }
        self.count(label.list(), label.order().pages() as i64);
    }

    /// Puts a folio that is not listed on `list`, at the front or the back.
    pub(crate) fn list(&self, lists: &mut Lists, map: &MemoryMap, head: Pfn, (list, front): (LruList, bool)) {
        let frame = map.known(head);
        self.insert(lists, map, head, (Label::main(list, frame.word().order()), front));
        let marked = mark(frame, list);
        debug_assert!(marked, "{head:?} is listed and was not given out");
    }
}

impl<P: Platform> fmt::Debug for NodeLists<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeLists").field("pages", &self.sizes()).finish_non_exhaustive()
    }
}

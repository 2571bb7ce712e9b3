//! The mappings of a file: which VMAs may map one of its pages (Linux's `i_mmap`).

use core::fmt;
use core::ptr::{self, NonNull};
use quire_arch::{LockClass, Platform};
use quire_sync::atomic::raw::{AtomicUsize, Ordering};
use quire_sync::{RwSleepLock, RwSleepReadGuard, RwSleepWriteGuard};
use quire_vma_tree::intervals::{IntervalTree, Member};

/// The kind of tree that the mappings of a file are in.
#[derive(Debug)]
pub struct OfFile;

/// The VMAs, of type `V`, that map a file, by their page offsets.
///
/// A VMA that may have pages of the file in its tables is in it: it enters before it has its first one, and
/// leaves when no thread can give it another, before its pages leave the tables. Under the lock each VMA is
/// as it was before a change of mappings or as it is after it.
pub struct FileMappings<V> {
    lock: RwSleepLock,
    tree: IntervalTree<V, OfFile>,
    /// Members, and those of them whose writes go to the file. Written under the lock held exclusively; read
    /// also without it.
    count: AtomicUsize,
    writers: AtomicUsize,
    /// Members that were taken out so far. As `count`.
    departures: AtomicUsize,
    /// VMAs that the auditor has found by their spaces; zero outside of audits.
    found: AtomicUsize,
}

impl<V: Member<OfFile>> FileMappings<V> {
    /// Of a file that nothing maps.
    pub fn new() -> Self {
        Self {
            lock: RwSleepLock::new(LockClass::FileRmap),
            tree: IntervalTree::new(),
            count: AtomicUsize::new(0),
            writers: AtomicUsize::new(0),
            departures: AtomicUsize::new(0),
            found: AtomicUsize::new(0),
        }
    }

    /// Whether no VMA maps the file. Without the lock another thread may change it at any time.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// How many VMAs map the file. Without the lock another thread may change it at any time.
    #[inline]
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// How many VMAs have left since the file was made. Acquire: pairs with the removal; who sees it sees
    /// what [`count`](Self::count) is without the one that has left.
    #[inline]
    pub fn departures(&self) -> usize {
        self.departures.load(Ordering::Acquire)
    }

    /// How many VMAs share the file and may be, or become, writable: Linux's `i_mmap_writable`. Without the
    /// lock another thread may change it at any time.
    #[inline]
    pub fn writers(&self) -> usize {
        self.writers.load(Ordering::Relaxed)
    }

    /// Takes the lock shared. The caller is not pinned, and may hold folio locks.
    pub fn read<'m, P: Platform>(&'m self, platform: &'m P) -> FileMappingsRead<'m, V, P> {
        FileMappingsRead { mappings: self, _guard: self.lock.read(platform) }
    }

    /// The same if that is possible at once.
    pub fn try_read<'m, P: Platform>(&'m self, platform: &'m P) -> Option<FileMappingsRead<'m, V, P>> {
        self.lock.try_read(platform).map(|guard| FileMappingsRead { mappings: self, _guard: guard })
    }

    /// Takes the lock exclusively, to change what maps the file. The caller is not pinned, and has
    /// write-locked the VMAs that it will change.
    pub fn write<'m, P: Platform>(&'m self, platform: &'m P) -> FileMappingsWrite<'m, V, P> {
        FileMappingsWrite { mappings: self, _guard: self.lock.write(platform) }
    }

    /// For the auditor of a quiet machine: one more VMA was found that maps the file.
    pub fn count_found(&self) {
        self.found.fetch_add(1, Ordering::Relaxed);
    }

    /// For the auditor: how many were found since the last call.
    pub fn take_found(&self) -> usize {
        self.found.swap(0, Ordering::Relaxed)
    }
}

/// The mappings of a file, with the lock held shared: they stay as they are.
pub struct FileMappingsRead<'m, V, P: Platform> {
    mappings: &'m FileMappings<V>,
    _guard: RwSleepReadGuard<'m, P>,
}

impl<V: Member<OfFile>, P: Platform> FileMappingsRead<'_, V, P> {
    /// The mappings that hold a page from `first` to `last`, by the first page that each of them maps. Of
    /// those that begin with the same page, the ones that came first are first.
    #[inline]
    pub fn holding(&self, first: u64, last: u64) -> impl Iterator<Item = &V> {
        // SAFETY: the lock is held for as long as this value is.
        let members = unsafe { self.mappings.tree.holding(first, last) };
        // SAFETY: a member lives until it is removed (contract of `insert`), which takes the lock.
        members.map(|member| unsafe { member.as_ref() })
    }

    /// Whether the tree and the count of its members are right, for the auditor.
    pub fn is_sound(&self) -> bool {
        let FileMappings { tree, count, .. } = self.mappings;
        // SAFETY: the lock is held, and a member lives until it is removed.
        unsafe { tree.is_sound() && tree.len() as usize == count.load(Ordering::Relaxed) }
    }
}

/// The mappings of a file, with the lock held exclusively.
#[must_use = "the lock is released when the guard is dropped"]
pub struct FileMappingsWrite<'m, V, P: Platform> {
    mappings: &'m FileMappings<V>,
    _guard: RwSleepWriteGuard<'m, P>,
}

impl<V: Member<OfFile>, P: Platform> FileMappingsWrite<'_, V, P> {
    /// Whether this is the lock of `mappings`.
    #[inline]
    pub fn is_of(&self, mappings: &FileMappings<V>) -> bool {
        ptr::eq(self.mappings, mappings)
    }

    /// Adds a mapping of the pages from `first` to `last`. `writes` says whether it shares the file and may
    /// be, or become, writable.
    ///
    /// # Safety
    ///
    /// The member is in no tree of a file, and lives and stays where it is until it is removed. It is
    /// complete: other threads see it when the lock is released.
    #[inline]
    pub unsafe fn insert(&self, member: NonNull<V>, (first, last): (u64, u64), writes: bool) {
        // SAFETY: the lock is held exclusively; the caller's promise.
        unsafe { self.mappings.tree.insert(member, first, last) };
        add(&self.mappings.count, 1);
        add(&self.mappings.writers, usize::from(writes));
    }

    /// Takes a mapping out. `writes` is as it was put in.
    ///
    /// # Safety
    ///
    /// The member is one of this file.
    #[inline]
    pub unsafe fn remove(&self, member: NonNull<V>, writes: bool) {
        // SAFETY: the lock is held exclusively; the caller's promise.
        unsafe { self.mappings.tree.remove(member) };
        add(&self.mappings.count, usize::MAX);
        // Release: pairs with `FileMappings::departures`.
        self.mappings.departures.fetch_add(1, Ordering::Release);
        add(&self.mappings.writers, usize::from(writes).wrapping_neg());
    }

    /// Changes which pages a mapping maps: from now on those from `first` to `last`.
    ///
    /// # Safety
    ///
    /// As for [`remove`](Self::remove).
    #[inline]
    pub unsafe fn change(&self, member: NonNull<V>, (first, last): (u64, u64)) {
        // SAFETY: the lock is held exclusively; the caller's promise.
        unsafe { self.mappings.tree.change(member, first, last) };
    }
}

/// Changes a count that only the holder of the lock changes.
fn add(count: &AtomicUsize, more: usize) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl<V: Member<OfFile>> Default for FileMappings<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V> fmt::Debug for FileMappings<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The members may be looked at only under the lock.
        f.debug_struct("FileMappings")
            .field("count", &self.count)
            .field("writers", &self.writers)
            .finish_non_exhaustive()
    }
}

impl<V, P: Platform> fmt::Debug for FileMappingsRead<'_, V, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FileMappingsRead").field(self.mappings).finish()
    }
}

impl<V, P: Platform> fmt::Debug for FileMappingsWrite<'_, V, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FileMappingsWrite").field(self.mappings).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

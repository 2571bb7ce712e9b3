//! The `anon_vma`: VMAs whose private pages belong together.

use super::{OfAnonVma, Vma, VmaSnapshot};
use core::cell::Cell;
use core::fmt;
use core::ptr::{self, NonNull};
use quire_arch::LockClass;
use quire_frame::OwnerWord;
use quire_sync::RwSleepLock;
use quire_sync::atomic::raw::AtomicBool;
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use quire_vma_tree::intervals::IntervalTree;

/// A link from an anon_vma to another one that is live. Those of the lists change, and are followed, under
/// the root lock; those upwards never change.
///
/// What keeps the other end: an anon_vma holds its parent, and so its root, until it is freed; it is on its
/// parent's list only until it is freed; a list of emptied ones has a reference to each.
#[derive(Default)]
struct AnonVmaLink(Cell<Option<NonNull<AnonVma>>>);

impl AnonVmaLink {
    #[inline]
    fn to(anon_vma: Option<&AnonVma>) -> Self {
        Self(Cell::new(anon_vma.map(NonNull::from)))
    }

    #[inline]
    fn get(&self) -> Option<&AnonVma> {
        // SAFETY: see the type.
        self.0.get().map(|anon_vma| unsafe { anon_vma.as_ref() })
    }

    #[inline]
    fn set(&self, anon_vma: Option<&AnonVma>) {
        self.0.set(anon_vma.map(NonNull::from));
    }
}

/// VMAs whose private pages belong together.
///
/// An anon_vma is *fresh* until its first VMA enters; then it is on its parent's list. It is *emptied* when
/// its last VMA leaves, and no VMA enters it again: only the child of a VMA that is in an anon_vma can. It is
/// freed when the thread that emptied it, and those that took a VMA out before with pages that are still in
/// the tables, have released it, and it has no children any more.
pub struct AnonVma {
    /// One until it is released, one for each child and for each VMA on a `DepartedList`; in a root also one
    /// for each walker and each thread that releases. But for those two's, added under the root lock held
    /// exclusively.
    pub(crate) refs: AtomicU32,
    /// The root lock; used in the root.
    pub(crate) lock: RwSleepLock,
    /// `None` in the root itself. As the parent, it never changes.
    root: AnonVmaLink,
    parent: AnonVmaLink,
    first_child: AnonVmaLink,
    /// The children of one parent, in no order.
    previous: AnonVmaLink,
    next: AnonVmaLink,
    pub(crate) vmas: IntervalTree<Vma, OfAnonVma>,
    /// VMAs of several spaces have been in it. Set before a VMA of another space enters.
    joined: AtomicBool,
    pub(crate) stats: TreeStats,
    /// The next on an [`EmptiedList`].
    next_emptied: AnonVmaLink,
    pub(crate) scratch: Scratch,
}

/// The size of a tree, in its root. Written under the root lock. It only decides whether to make another
/// anon_vma, so it may be read without the lock.
#[derive(Default)]
pub(crate) struct TreeStats {
    /// VMAs in all anon_vmas.
    pub(crate) vmas: AtomicU64,
    /// Anon_vmas without any.
    pub(crate) empty: AtomicU64,
}

// SAFETY: what is neither atomic nor fixed is read and written only under the root lock, or by the one that
// emptied the anon_vma, or by the auditor of a quiet machine.
unsafe impl Send for AnonVma {}
// SAFETY: the root lock excludes other threads from what a writer changes; those that use it without the lock
// are alone with it: the thread that emptied the anon_vma, and the auditor.
unsafe impl Sync for AnonVma {}

impl AnonVma {
    /// A fresh anon_vma below `parent`, or the root of a new tree.
    #[inline]
    pub(crate) fn new(parent: Option<&Self>) -> Self {
        Self {
            refs: AtomicU32::new(1),
            lock: RwSleepLock::new(LockClass::Rmap),
            root: AnonVmaLink::to(parent.map(Self::root)),
            parent: AnonVmaLink::to(parent),
            first_child: AnonVmaLink::default(),
            previous: AnonVmaLink::default(),
            next: AnonVmaLink::default(),
            vmas: IntervalTree::new(),
            joined: AtomicBool::new(false),
            stats: TreeStats::default(),
            next_emptied: AnonVmaLink::default(),
            scratch: Scratch::default(),
        }
    }

    /// The word by which a frame names this anon_vma.
    ///
    /// The address is exposed, and [`of_owner`](Self::of_owner) makes it a pointer again, which may be used
    /// for as long as the anon_vma is not freed: until then what was exposed is the only object there.
    #[inline]
    pub(crate) fn owner_word(&self) -> OwnerWord {
        // SAFETY: only VMAs of this anon_vma and of those below it map pages that get the word, and it is not
        // freed before such pages are out of the tables (`Emptied`).
        unsafe { OwnerWord::of_anon_vma(ptr::from_ref(self).expose_provenance()) }
    }

    /// The anon_vma at the address that a frame names.
    #[inline]
    pub(crate) fn of_owner(address: usize) -> Option<NonNull<Self>> {
        NonNull::new(ptr::with_exposed_provenance_mut(address))
    }

    /// The root of the tree.
    #[inline]
    pub(crate) fn root(&self) -> &Self {
        self.root.get().unwrap_or(self)
    }

    #[inline]
    pub(crate) fn parent(&self) -> Option<&Self> {
        self.parent.get()
    }

    /// The first of its children. The root lock is held.
    #[inline]
    pub(crate) fn first_child(&self) -> Option<&Self> {
        self.first_child.get()
    }

    /// The next child of the same parent. The root lock is held.
    #[inline]
    pub(crate) fn next_sibling(&self) -> Option<&Self> {
        self.next.get()
    }

    /// The VMAs that hold a page offset from `first` to `last`. The root lock is held for as long as the
    /// iterator, or a VMA from it, is used.
    #[inline]
    pub(crate) fn vmas_holding(&self, first: u64, last: u64) -> impl Iterator<Item = &Vma> {
        // SAFETY: the root lock is held.
        let members = unsafe { self.vmas.holding(first, last) };
        // SAFETY: a VMA leaves its anon_vma, under the root lock, before it is freed.
        members.map(|vma| unsafe { vma.as_ref() })
    }

    /// Whether `other` is this anon_vma or one of those above it. The machine is quiet, or the root lock is
    /// held.
    #[inline]
    pub(crate) fn descends_from(&self, other: NonNull<Self>) -> bool {
        let mut at = Some(self);
        while let Some(anon_vma) = at {
            if ptr::eq(anon_vma, other.as_ptr()) {
                return true;
            }
            at = anon_vma.parent();
        }
        false
    }

    /// Puts `vma` in, which will be as `snapshot` says. The root lock is held exclusively.
    #[inline]
    pub(crate) fn enter(&self, vma: &Vma, snapshot: &VmaSnapshot) {
        // SAFETY: the root lock is held exclusively.
        if unsafe { self.vmas.is_empty() }
            && let Some(parent) = self.parent()
        {
            parent.link_child(self);
        }
        let (first, last) = snapshot.page_offsets();
        // SAFETY: the root lock is held exclusively; a VMA in a tree leaves its anon_vma before it is
        // retired.
        unsafe { self.vmas.insert(NonNull::from(vma), first, last) };
        let vmas = &self.root().stats.vmas;
        vmas.store(vmas.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Takes `vma` out, and returns whether it was the last one. The root lock is held exclusively.
    #[inline]
    pub(crate) fn leave(&self, vma: &Vma) -> bool {
        // SAFETY: the root lock is held exclusively, and the VMA names this anon_vma.
        unsafe { self.vmas.remove(NonNull::from(vma)) };
        let stats = &self.root().stats;
        stats.vmas.store(stats.vmas.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        // SAFETY: the root lock is held exclusively.
        let emptied = unsafe { self.vmas.is_empty() };
        if emptied {
            stats.empty.store(stats.empty.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        emptied
    }

    /// Notes that a VMA of another space will enter. A VMA of this anon_vma is held by the mmap lock of its
    /// space.
    #[inline]
    pub(crate) fn join(&self) {
        // Relaxed: the VMA enters under the root lock, under which it is looked at.
        self.joined.store(true, Ordering::Relaxed);
    }

    /// Whether another space than that of a VMA that leaves may empty it. The root lock is held.
    #[inline]
    pub(crate) fn is_joined(&self) -> bool {
        self.joined.load(Ordering::Relaxed)
    }

    /// Notes that `vma`, which is in this anon_vma, will be as `snapshot` says. The root lock is held
    /// exclusively.
    #[inline]
    pub(crate) fn change(&self, vma: &Vma, snapshot: &VmaSnapshot) {
        let (first, last) = snapshot.page_offsets();
        // SAFETY: the root lock is held exclusively, and the VMA names this anon_vma.
        unsafe { self.vmas.change(NonNull::from(vma), first, last) };
    }

    /// Makes `child` a child of this anon_vma. The root lock is held exclusively.
    fn link_child(&self, child: &Self) {
        self.refs.fetch_add(1, Ordering::Relaxed);
        let first = self.first_child.get();
        self.first_child.set(Some(child));
        child.next.set(first);
        if let Some(first) = first {
            first.previous.set(Some(child));
        }
    }

    /// Takes this anon_vma off its parent's list. The root lock is held exclusively.
    #[inline]
    pub(crate) fn unlink_child(&self, parent: &Self) {
        let (previous, next) = (self.previous.get(), self.next.get());
        match previous {
            Some(previous) => previous.next.set(next),
            None => parent.first_child.set(next),
        }
        if let Some(next) = next {
            next.previous.set(previous);
        }
    }

    /// One more reference for a VMA that has left while others stayed. The root lock is held exclusively.
    #[inline]
    pub(crate) fn hold_for_departed(&self) {
        self.refs.fetch_add(1, Ordering::Relaxed);
    }

    /// One more reference to a root for a walker, unless the last one is gone.
    #[inline]
    pub(crate) fn try_hold(&self) -> bool {
        let more = |refs: u32| if refs == 0 { None } else { refs.checked_add(1) };
        // Relaxed: what the reference protects is read under the root lock.
        self.refs.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Drops a reference and returns whether it was the last one.
    #[inline]
    pub(crate) fn put(&self) -> bool {
        // Release, and acquire for the last one: it comes after all that was done under the others.
        self.refs.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

impl fmt::Debug for AnonVma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Its VMAs may be looked at only under the root lock.
        f.debug_struct("AnonVma").field("refs", &self.refs).finish_non_exhaustive()
    }
}

/// Anon_vmas that lost their last VMA, with the VMAs' reference to each.
#[derive(Default)]
pub(crate) struct EmptiedList(AnonVmaLink);

impl EmptiedList {
    /// Adds one whose last VMA has [left](AnonVma::leave): the VMAs' reference is the list's now.
    #[inline]
    pub(crate) fn add(&self, anon_vma: &AnonVma) {
        anon_vma.next_emptied.set(self.0.get());
        self.0.set(Some(anon_vma));
    }

    /// Takes one off. Its reference is the caller's, to be dropped.
    #[inline]
    pub(crate) fn take(&self) -> Option<&AnonVma> {
        let first = self.0.get()?;
        self.0.set(first.next_emptied.get());
        Some(first)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.get().is_none()
    }
}

/// The auditor's scratch in an anon_vma; zero outside of audits.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Counted among the anon_vmas.
    pub(crate) seen: Cell<bool>,
    /// Compared with the recount.
    pub(crate) checked: Cell<bool>,
    /// VMAs that name the anon_vma.
    pub(crate) vmas: Cell<u64>,
    /// Anon_vmas that name it as their parent.
    pub(crate) children: Cell<u64>,
    /// In a root: VMAs of the tree.
    pub(crate) tree_vmas: Cell<u64>,
    /// In a root: anon_vmas of the tree without VMAs.
    pub(crate) tree_empty: Cell<u64>,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_owner_names_an_anon_vma_or_none() {
        let anon_vma = AnonVma::new(None);
        assert_ne!(anon_vma.owner_word(), OwnerWord::NONE);
        let pointer = NonNull::from(&anon_vma);
        assert_eq!(AnonVma::of_owner(pointer.addr().get()), Some(pointer));
    }
}

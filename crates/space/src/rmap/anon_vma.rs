//! The `anon_vma`: VMAs whose private pages belong together.

use super::audit::Scratch;
use crate::space::SpaceCore;
use crate::vma::{Vma, VmaSnapshot};
use core::cell::Cell;
use core::fmt;
use core::ptr::{self, NonNull};
use quire_arch::LockClass;
use quire_sync::RwSleepLock;
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use quire_vma_tree::intervals::{IntervalTree, Member, Place};

pub(super) type Link = Cell<Option<NonNull<AnonVma>>>;

/// VMAs whose private pages belong together.
///
/// An anon_vma is *fresh* until its first VMA enters; then it is on its parent's list. It is *emptied* when
/// its last VMA leaves, and no VMA enters it again: only the child of a VMA that is in an anon_vma can. It is
/// freed when the thread that emptied it has released it and it has no children any more.
pub(crate) struct AnonVma {
    /// One until it is released, one for each child; in a root also one for each walker. But for walkers',
    /// changed under the root lock held exclusively.
    pub(super) refs: AtomicU32,
    /// The root lock; used in the root.
    pub(super) lock: RwSleepLock,
    /// `None` in the root itself. As the parent, it never changes.
    root: Option<NonNull<Self>>,
    pub(super) parent: Option<NonNull<Self>>,
    pub(super) first_child: Link,
    /// The children of one parent, in no order.
    pub(super) previous: Link,
    pub(super) next: Link,
    pub(super) vmas: IntervalTree<Vma>,
    pub(super) stats: TreeStats,
    /// The next on a list of [`Emptied`](super::Emptied).
    pub(super) next_emptied: Link,
    pub(super) scratch: Scratch,
}

/// The size of a tree, in its root. Written under the root lock. It decides nothing but whether an anon_vma
/// is worth its memory, so it may be read without.
#[derive(Default)]
pub(super) struct TreeStats {
    /// VMAs in all anon_vmas.
    pub(super) vmas: AtomicU64,
    /// Memcgs without any.
    pub(super) empty: AtomicU64,
}

// SAFETY: what is neither atomic nor fixed is read and written only under the root lock, or by the one that
// emptied the anon_vma, or by the auditor of a quiet machine.
unsafe impl Send for AnonVma {}
// SAFETY: as above.
unsafe impl Sync for AnonVma {}

impl AnonVma {
    /// A fresh anon_vma below `parent`, or the root of a new tree.
    pub(super) fn new(parent: Option<&Self>) -> Self {
        Self {
            refs: AtomicU32::new(1),
            lock: RwSleepLock::new(LockClass::Rmap),
            root: parent.map(|parent| NonNull::from(parent.root())),
            parent: parent.map(NonNull::from),
            first_child: Cell::new(None),
            previous: Cell::new(None),
            next: Cell::new(None),
            vmas: IntervalTree::new(),
            stats: TreeStats::default(),
            next_emptied: Cell::new(None),
            scratch: Scratch::default(),
        }
    }

    /// The root of the tree.
    pub(super) fn root(&self) -> &Self {
        // SAFETY: an anon_vma holds its parent, and so its root, until it is freed; the root was retired no
        // sooner, for readers that are in the epoch.
        self.root.map_or(self, |root| unsafe { root.as_ref() })
    }

    pub(super) fn parent(&self) -> Option<&Self> {
        // SAFETY: an anon_vma holds its parent until it is freed.
        self.parent.map(|parent| unsafe { parent.as_ref() })
    }

    /// Whether `other` is this anon_vma or one of those above it. The machine is quiet, or the root lock is
    /// held.
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

    /// Puts `vma` in, which will be as `facts` say. The root lock is held exclusively.
    pub(super) fn enter(&self, vma: &Vma, facts: &VmaSnapshot) {
        if self.vmas.is_empty()
            && let Some(parent) = self.parent()
        {
            parent.link_child(self);
        }
        let (first, last) = facts.page_offsets();
        // SAFETY: the root lock is held exclusively; a VMA in a tree leaves its anon_vma before it is
        // retired.
        unsafe { self.vmas.insert(NonNull::from(vma), first, last) };
        let vmas = &self.root().stats.vmas;
        vmas.store(vmas.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Takes `vma` out, and returns whether it was the last one. The root lock is held exclusively.
    pub(super) fn leave(&self, vma: &Vma) -> bool {
        // SAFETY: the root lock is held exclusively, and the VMA names this anon_vma.
        unsafe { self.vmas.remove(NonNull::from(vma)) };
        let stats = &self.root().stats;
        stats.vmas.store(stats.vmas.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        let emptied = self.vmas.is_empty();
        if emptied {
            stats.empty.store(stats.empty.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        emptied
    }

    /// Notes that `vma`, which is in this anon_vma, will be as `facts` say. The root lock is held
    /// exclusively.
    pub(super) fn change(&self, vma: &Vma, facts: &VmaSnapshot) {
        let (first, last) = facts.page_offsets();
        // SAFETY: the root lock is held exclusively, and the VMA names this anon_vma.
        unsafe { self.vmas.change(NonNull::from(vma), first, last) };
    }

    /// Makes `child` a child of this anon_vma. The root lock is held exclusively.
    fn link_child(&self, child: &Self) {
        self.refs.fetch_add(1, Ordering::Relaxed);
        let first = self.first_child.replace(Some(NonNull::from(child)));
        child.next.set(first);
        if let Some(first) = first {
            // SAFETY: an anon_vma on its parent's list is live.
            unsafe { first.as_ref() }.previous.set(Some(NonNull::from(child)));
        }
    }

    /// Takes this anon_vma off its parent's list. The root lock is held exclusively.
    pub(super) fn unlink_child(&self, parent: &Self) {
        let (previous, next) = (self.previous.get(), self.next.get());
        match previous {
            // SAFETY: an anon_vma on its parent's list is live.
            Some(previous) => unsafe { previous.as_ref() }.next.set(next),
            None => parent.first_child.set(next),
        }
        if let Some(next) = next {
            // SAFETY: as above.
            unsafe { next.as_ref() }.previous.set(previous);
        }
    }

    /// One more reference to a root for a walker, unless the last one is gone.
    pub(super) fn try_hold(&self) -> bool {
        let more = |refs: u32| if refs == 0 { None } else { refs.checked_add(1) };
        // Relaxed: what the reference protects is read under the root lock.
        self.refs.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Drops a reference and returns whether it was the last one.
    pub(super) fn put(&self) -> bool {
        // Release, and acquire for the last one: it comes after all that was done under the others.
        self.refs.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// A VMA's part in its anon_vma. Read and written under the root lock.
#[derive(Debug)]
pub(crate) struct Membership {
    place: Place<Vma>,
    /// The core of the VMA's space, for walks.
    core: Cell<Option<NonNull<SpaceCore>>>,
}

// SAFETY: the core is shared data, and the cell is used only under the root lock.
unsafe impl Send for Membership {}
// SAFETY: as above.
unsafe impl Sync for Membership {}

impl Membership {
    pub(crate) const fn new() -> Self {
        Self { place: Place::new(), core: Cell::new(None) }
    }

    /// The page offsets that the anon_vma's tree has the VMA at.
    pub(super) fn interval(&self) -> (u64, u64) {
        self.place.interval()
    }

    pub(crate) fn is_linked(&self) -> bool {
        self.place.is_linked()
    }

    pub(super) fn core(&self) -> Option<NonNull<SpaceCore>> {
        self.core.get()
    }

    pub(super) fn set_core(&self, core: &SpaceCore) {
        self.core.set(Some(NonNull::from(core)));
    }
}

// SAFETY: the place is a field.
unsafe impl Member for Vma {
    fn place(&self) -> &Place<Self> {
        &self.membership().place
    }
}

impl VmaSnapshot {
    /// The first and the last page offset.
    pub(super) fn page_offsets(&self) -> (u64, u64) {
        (self.page_offset, self.page_offset.saturating_add(self.range.pages().saturating_sub(1)))
    }
}

impl fmt::Debug for AnonVma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnonVma")
            .field("refs", &self.refs)
            .field("vmas", &self.vmas.len())
            .finish_non_exhaustive()
    }
}

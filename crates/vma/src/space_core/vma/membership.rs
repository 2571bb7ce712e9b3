//! The places of a VMA in its anon_vma, and among the mappings of the file that it maps.

use super::Vma;
use crate::space_core::SpaceCore;
use core::cell::Cell;
use core::fmt;
use core::ptr::{self, NonNull};
use quire_file::OfFile;
use quire_sync::atomic::raw::{AtomicPtr, Ordering};
use quire_vma_tree::intervals::{IntervalLink, Member};

/// The kind of tree that the VMAs of an anon_vma are in.
pub(crate) struct OfAnonVma;

/// A VMA's part in its anon_vma, read and written under the root lock, and in its file, under the lock of the
/// file's mappings.
pub(crate) struct Membership {
    place: IntervalLink<Vma, OfAnonVma>,
    file_place: IntervalLink<Vma, OfFile>,
    /// The core of the VMA's space, for walks of both trees. Always the same once it is set, which is before
    /// the VMA is in either.
    core: AtomicPtr<SpaceCore>,
    /// The next on a [`DepartedList`].
    next_departed: Cell<Option<NonNull<Vma>>>,
}

// SAFETY: the places are used only under the lock of their tree; the link by the thread that has the list.
unsafe impl Send for Membership {}
// SAFETY: no thread writes a place beside another that uses it: the lock of its tree excludes it. The link is
// used by the thread that has the list.
unsafe impl Sync for Membership {}

impl Membership {
    #[inline]
    pub(crate) const fn new() -> Self {
        Self {
            place: IntervalLink::new(),
            file_place: IntervalLink::new(),
            core: AtomicPtr::new(ptr::null_mut()),
            next_departed: Cell::new(None),
        }
    }

    /// The page offsets that the anon_vma's tree has the VMA at.
    #[inline]
    pub(crate) fn interval(&self) -> (u64, u64) {
        // SAFETY: the root lock is held, or the machine is quiet.
        unsafe { self.place.interval() }
    }

    #[inline]
    pub(crate) fn is_linked(&self) -> bool {
        // SAFETY: the root lock is held; or the VMA is in no tree, since it has no anon_vma.
        unsafe { self.place.is_linked() }
    }

    /// The page offsets that the file's tree has the VMA at, if it is in one.
    #[inline]
    pub(crate) fn file_interval(&self) -> Option<(u64, u64)> {
        // SAFETY: the lock of the file's mappings is held exclusively, or the machine is quiet; or the VMA is
        // in no tree of a file, since it maps none.
        unsafe { self.file_place.is_linked().then(|| self.file_place.interval()) }
    }

    /// The space of a VMA that is in one of the trees, whose lock is held.
    #[inline]
    pub(crate) fn core(&self) -> Option<NonNull<SpaceCore>> {
        // Relaxed: it was set before the VMA entered the tree, under the tree's lock.
        NonNull::new(self.core.load(Ordering::Relaxed))
    }

    /// Notes the space of a VMA that is about to enter one of the trees.
    #[inline]
    pub(crate) fn set_core(&self, core: &SpaceCore) {
        self.core.store(ptr::from_ref(core).cast_mut(), Ordering::Relaxed);
    }
}

/// VMAs that have left their trees and go on to hold what their pages need: an anon_vma with VMAs of several
/// spaces, or an open file. They are not freed as long as they are on the list.
#[derive(Default)]
pub(crate) struct DepartedList(Cell<Option<NonNull<Vma>>>);

impl DepartedList {
    /// Adds one that has left its trees.
    #[inline]
    pub(crate) fn add(&self, vma: &Vma) {
        vma.membership().next_departed.set(self.0.get());
        self.0.set(Some(NonNull::from(vma)));
    }

    /// Takes one off, which its caller frees.
    #[inline]
    pub(crate) fn take(&self) -> Option<NonNull<Vma>> {
        let first = self.0.get()?;
        // SAFETY: a VMA is not freed while it is on the list.
        self.0.set(unsafe { first.as_ref() }.membership().next_departed.get());
        Some(first)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.get().is_none()
    }
}

// SAFETY: the place is a field.
unsafe impl Member<OfAnonVma> for Vma {
    #[inline]
    fn place(&self) -> &IntervalLink<Self, OfAnonVma> {
        &self.membership().place
    }
}

// SAFETY: the place is a field.
unsafe impl Member<OfFile> for Vma {
    #[inline]
    fn place(&self) -> &IntervalLink<Self, OfFile> {
        &self.membership().file_place
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The places may be looked at only under the locks of their trees.
        f.debug_struct("Membership").finish_non_exhaustive()
    }
}

//! The place of a VMA in its anon_vma.

use super::Vma;
use crate::space_core::SpaceCore;
use core::cell::Cell;
use core::fmt;
use core::ptr::NonNull;
use quire_vma_tree::intervals::{IntervalLink, Member};

/// A VMA's part in its anon_vma. Read and written under the root lock.
pub(crate) struct Membership {
    place: IntervalLink<Vma>,
    /// The core of the VMA's space, for walks.
    core: Cell<Option<NonNull<SpaceCore>>>,
    /// The next on a [`DepartedList`].
    next_departed: Cell<Option<NonNull<Vma>>>,
}

// SAFETY: the core is shared data, and the cells are used only under the root lock; the link also without it,
// by the thread that has the list.
unsafe impl Send for Membership {}
// SAFETY: no thread writes the cells beside another that uses them: the root lock excludes it. The link is
// also used without it, by the thread that has the list.
unsafe impl Sync for Membership {}

impl Membership {
    #[inline]
    pub(crate) const fn new() -> Self {
        Self { place: IntervalLink::new(), core: Cell::new(None), next_departed: Cell::new(None) }
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

    #[inline]
    pub(crate) fn core(&self) -> Option<NonNull<SpaceCore>> {
        self.core.get()
    }

    #[inline]
    pub(crate) fn set_core(&self, core: &SpaceCore) {
        self.core.set(Some(NonNull::from(core)));
    }
}

/// VMAs that left an anon_vma with VMAs of several spaces, each with a reference to that anon_vma. They are
/// not freed as long as they are on the list.
#[derive(Default)]
pub(crate) struct DepartedList(Cell<Option<NonNull<Vma>>>);

impl DepartedList {
    /// Adds one that has left its anon_vma.
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
unsafe impl Member for Vma {
    fn place(&self) -> &IntervalLink<Self> {
        &self.membership().place
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It may be looked at only under the root lock.
        f.debug_struct("Membership").finish_non_exhaustive()
    }
}

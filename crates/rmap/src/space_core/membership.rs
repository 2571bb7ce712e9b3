//! The place of a VMA in its anon_vma.

use super::{SpaceCore, Vma};
use core::cell::Cell;
use core::fmt;
use core::ptr::NonNull;
use quire_vma_tree::intervals::{IntervalLink, Member};

/// A VMA's part in its anon_vma. Read and written under the root lock.
pub(crate) struct Membership {
    place: IntervalLink<Vma>,
    /// The core of the VMA's space, for walks.
    core: Cell<Option<NonNull<SpaceCore>>>,
}

// SAFETY: the core is shared data, and the cell is used only under the root lock.
unsafe impl Send for Membership {}
// SAFETY: as above.
unsafe impl Sync for Membership {}

impl Membership {
    #[inline]
    pub(crate) const fn new() -> Self {
        Self { place: IntervalLink::new(), core: Cell::new(None) }
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

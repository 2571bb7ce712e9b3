//! Where VMAs come from and go to.

use super::Spaces;
use core::ptr::NonNull;
use quire_arch::{Platform, part_of};
use quire_frame::AllocError;
use quire_vma::Vma;

part_of! {
    /// The VMAs of a machine.
    pub struct VmaStore { pub(super) spaces: Spaces }
}

impl<P: Platform> VmaStore<'_, P> {
    // Always: as a call of its own it copies the VMA.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn allocate(self, vma: Vma) -> Result<NonNull<Vma>, AllocError> {
        let pin = self.spaces.platform().pin();
        self.spaces.vmas.allocate(self.spaces.frames(), &pin, vma)
    }

    /// Frees a VMA that was never in a tree.
    ///
    /// # Safety
    ///
    /// It came from [`allocate`](Self::allocate), nothing else refers to it, and it is not used
    /// again.
    pub(crate) unsafe fn free(self, vma: NonNull<Vma>) {
        let pin = self.spaces.platform().pin();
        // SAFETY: the caller's promise.
        unsafe { self.spaces.vmas.free(self.spaces.frames(), &pin, vma) };
    }

    /// Frees a VMA that was in a tree, once no lock-free reader can be looking at it.
    ///
    /// # Safety
    ///
    /// It came from [`allocate`](Self::allocate), is detached and out of its tree, and the caller
    /// does not use it again.
    #[inline]
    pub(crate) unsafe fn retire(self, vma: NonNull<Vma>) {
        let pin = self.spaces.platform().pin();
        // SAFETY: the caller's promise.
        unsafe { self.spaces.vmas.retire(self.spaces.frames(), &pin, vma) };
    }
}

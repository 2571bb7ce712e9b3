//! Values that own an anon_vma, or a reference to one, and give it up when they are dropped.

use super::Rmap;
use crate::space_core::{AnonVma, AnonVmaRef};
use core::mem;
use core::ptr::NonNull;
use quire_arch::Platform;
use quire_frame::AllocError;
use quire_sync::atomic::Ordering;

/// An anon_vma that no VMA has entered. It is freed when this is dropped.
pub(super) struct FreshAnonVma<'s, P: Platform> {
    rmap: Rmap<'s, P>,
    anon_vma: NonNull<AnonVma>,
}

impl<'s, P: Platform> FreshAnonVma<'s, P> {
    #[cfg_attr(debug_assertions, track_caller)]
    pub(super) fn new(rmap: Rmap<'s, P>, parent: Option<&AnonVma>) -> Result<Self, AllocError> {
        let pin = rmap.memory.platform().pin();
        let anon_vma = rmap.state.anon_vmas.allocate(rmap.memory.frames(), &pin, AnonVma::new(parent))?;
        Ok(Self { rmap, anon_vma })
    }

    /// The value for a VMA that enters it.
    pub(super) fn anon(&self) -> AnonVmaRef {
        // SAFETY: it is live while this value is, and then for as long as there are VMAs that entered.
        unsafe { AnonVmaRef::new(self.anon_vma) }
    }

    /// A VMA has entered: the anon_vma is freed after its last VMA has left.
    pub(super) fn keep(self) {
        mem::forget(self);
    }
}

impl<P: Platform> Drop for FreshAnonVma<'_, P> {
    fn drop(&mut self) {
        let pin = self.rmap.memory.platform().pin();
        // SAFETY: allocated in `new` and not kept, so nothing refers to it.
        unsafe { self.rmap.state.anon_vmas.free(self.rmap.memory.frames(), &pin, self.anon_vma) };
    }
}

/// A reference to a root, which keeps it from being freed.
pub(super) struct RootRef<'s, P: Platform> {
    rmap: Rmap<'s, P>,
    root: NonNull<AnonVma>,
}

impl<'s, P: Platform> RootRef<'s, P> {
    /// A new reference to a root that the caller knows to have one.
    pub(super) fn new(rmap: Rmap<'s, P>, root: &AnonVma) -> Self {
        root.refs.fetch_add(1, Ordering::Relaxed);
        Self { rmap, root: NonNull::from(root) }
    }

    /// A new reference, unless the last one is gone.
    pub(super) fn try_new(rmap: Rmap<'s, P>, root: &AnonVma) -> Option<Self> {
        root.try_hold().then(|| Self { rmap, root: NonNull::from(root) })
    }

    /// The value of a reference that is counted already.
    ///
    /// # Safety
    ///
    /// The reference is the caller's, and the value's from now on.
    pub(super) unsafe fn from_counted(rmap: Rmap<'s, P>, root: &AnonVma) -> Self {
        Self { rmap, root: NonNull::from(root) }
    }

    pub(super) fn root(&self) -> &AnonVma {
        // SAFETY: the reference keeps it.
        unsafe { self.root.as_ref() }
    }
}

impl<P: Platform> Drop for RootRef<'_, P> {
    fn drop(&mut self) {
        if self.root().put() {
            // SAFETY: it was the last reference: the root has no VMAs and no children, and a root is on no
            // parent's list.
            unsafe { self.rmap.retire_anon_vma(self.root) };
        }
    }
}

impl<P: Platform> Rmap<'_, P> {
    /// Frees an anon_vma that walkers in the epoch may be looking at.
    ///
    /// # Safety
    ///
    /// Its last reference is gone, and it is out of the tree.
    pub(super) unsafe fn retire_anon_vma(self, anon_vma: NonNull<AnonVma>) {
        let pin = self.memory.platform().pin();
        // SAFETY: every anon_vma came from `FreshAnonVma::new`; no VMA and no child names it, and no page
        // that is mapped.
        unsafe { self.state.anon_vmas.retire(self.memory.frames(), &pin, anon_vma) };
    }
}

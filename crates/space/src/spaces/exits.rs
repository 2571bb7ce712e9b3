//! Spaces that lost their last handle in the depth of reclaim, and exit when that has returned.

use super::Spaces;
use core::ptr::{self, NonNull};
use quire_arch::Platform;
use quire_sync::atomic::{AtomicPtr, Ordering};
use quire_vma::SpaceCore;

/// The spaces, as a stack through [`SpaceCore::next_exit`]. All are taken at once, so none can come back
/// beside a thread that takes one.
#[derive(Debug)]
pub(super) struct Exits(AtomicPtr<SpaceCore>);

impl Exits {
    /// None.
    pub(super) fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }
}

impl<P: Platform> Spaces<P> {
    /// Leaves the exit of a space to the next thread that [takes](Self::take_exits) it.
    ///
    /// # Safety
    ///
    /// The caller has dropped its last handle.
    pub(crate) unsafe fn exit_later(&self, core: NonNull<SpaceCore>) {
        let head = &self.exits.0;
        let mut first = head.load(Ordering::Relaxed);
        loop {
            // SAFETY: without handles it is the caller's, until it is on the stack.
            unsafe { core.as_ref() }.next_exit.store(first, Ordering::Relaxed);
            // Release: pairs with the acquire of the thread that takes it, which sees what was done through
            // every handle.
            match head.compare_exchange_weak(first, core.as_ptr(), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// All spaces that are to exit, linked; they are the caller's now.
    pub(crate) fn take_exits(&self) -> Option<NonNull<SpaceCore>> {
        let head = &self.exits.0;
        if head.load(Ordering::Relaxed).is_null() {
            return None;
        }
        // Acquire: pairs with the release of `exit_later`.
        NonNull::new(head.swap(ptr::null_mut(), Ordering::Acquire))
    }
}

//! Handles of reclaim to spaces, and the spaces whose last handle was one of these.
//!
//! An exit needs as much stack as the reclaim that it would happen in, and takes locks of its own. So such a
//! space waits, and exits when reclaim has returned.

use crate::space_core::SpaceCore;
use core::fmt;
use core::ptr::{self, NonNull};
use quire_sync::atomic::{AtomicPtr, Ordering};

/// The spaces of a machine that are to exit, as a stack through [`SpaceCore::next_exit`]. All are taken at
/// once, so none can come back beside a thread that takes one.
#[derive(Debug)]
pub struct Exits(AtomicPtr<SpaceCore>);

impl Exits {
    /// None.
    pub(crate) fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Leaves the exit of a space to the next thread that [takes](Self::take) it.
    ///
    /// # Safety
    ///
    /// The caller has dropped its last handle.
    unsafe fn push(&self, core: NonNull<SpaceCore>) {
        let mut first = self.0.load(Ordering::Relaxed);
        loop {
            // SAFETY: without handles it is the caller's, until it is on the stack.
            unsafe { core.as_ref() }.next_exit.store(first, Ordering::Relaxed);
            // Release: pairs with the acquire of the thread that takes it, which sees what was done through
            // every handle.
            match self.0.compare_exchange_weak(first, core.as_ptr(), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// All spaces that are to exit, linked; they are the caller's now.
    pub fn take(&self) -> Option<NonNull<SpaceCore>> {
        if self.0.load(Ordering::Relaxed).is_null() {
            return None;
        }
        // Acquire: pairs with the release of `push`.
        NonNull::new(self.0.swap(ptr::null_mut(), Ordering::Acquire))
    }
}

/// A handle of reclaim to the core of a space. The last one leaves the space to [`Exits`].
pub struct SpaceHold<'s> {
    core: NonNull<SpaceCore>,
    exits: &'s Exits,
}

// SAFETY: it is a counted reference to a core, which is `Sync`, and may be dropped by any thread.
unsafe impl Send for SpaceHold<'_> {}
// SAFETY: through a shared reference it gives out the core, which is `Sync`.
unsafe impl Sync for SpaceHold<'_> {}

impl<'s> SpaceHold<'s> {
    /// One more handle to `core`, unless the last one is gone already.
    ///
    /// # Safety
    ///
    /// The core is freed only when it has no handle, and `exits` are those of its machine.
    #[inline]
    pub unsafe fn try_new(core: &SpaceCore, exits: &'s Exits) -> Option<Self> {
        core.try_hold().then(|| Self { core: NonNull::from(core), exits })
    }

    /// A handle that the core counts already ([`SpaceCore::try_hold`]).
    ///
    /// # Safety
    ///
    /// As for [`try_new`](Self::try_new). And the caller has that handle, which passes to the new value.
    #[inline]
    pub unsafe fn adopt(core: NonNull<SpaceCore>, exits: &'s Exits) -> Self {
        Self { core, exits }
    }

    /// The space.
    #[inline]
    pub fn core(&self) -> &SpaceCore {
        // SAFETY: the core lives while it has handles, and this is one.
        unsafe { self.core.as_ref() }
    }
}

impl Drop for SpaceHold<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this is a handle, and is not used after.
        if unsafe { self.core().let_go() } {
            // SAFETY: it was the last handle.
            unsafe { self.exits.push(self.core) };
        }
    }
}

impl fmt::Debug for SpaceHold<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SpaceHold").field(&self.core().id()).finish()
    }
}

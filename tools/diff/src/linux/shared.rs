//! Memory that forks of this process share with it.

use core::ops::Deref;
use core::ptr::NonNull;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::num::NonZeroUsize;

/// What may lie in shared memory.
///
/// # Safety
///
/// The type has a size and consists of atomics only, of which zero is a value.
pub(crate) unsafe trait Atomics: Sync {}

/// A value that begins as zeros and is shared with every child that is forked while it lives.
pub(crate) struct Shared<T: Atomics>(NonNull<T>);

// SAFETY: it owns the mapping, and the value can be used by all threads.
unsafe impl<T: Atomics> Send for Shared<T> {}
// SAFETY: the value is atomics, which all threads may use at once.
unsafe impl<T: Atomics> Sync for Shared<T> {}

impl<T: Atomics> Shared<T> {
    pub(crate) fn new() -> nix::Result<Self> {
        let len = NonZeroUsize::new(size_of::<T>()).ok_or(nix::Error::EINVAL)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, which replaces nothing.
        unsafe { mmap_anonymous(None, len, protection, MapFlags::MAP_SHARED) }.map(|at| Self(at.cast()))
    }
}

impl<T: Atomics> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: mapped by `new`, and of zeros, which are a value.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Atomics> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; all references borrow from this.
        let _ = unsafe { munmap(self.0.cast(), size_of::<T>()) };
    }
}

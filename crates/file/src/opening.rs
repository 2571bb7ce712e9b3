//! An open file as VMAs name it (Linux's `vm_file`): counted, and closed when nothing needs it any more.
//!
//! The last one to let an opening go may hold locks that closing needs, the mmap lock of a space at least.
//! So it puts the opening on a stack: that of its call, which closes it when it holds nothing, or one of the
//! machine, from which the next thread that holds nothing takes it.

use crate::mappings::FileMappings;
use core::fmt;
use core::ptr::{self, NonNull};
use quire_sync::atomic::raw::{AtomicPtr, AtomicUsize, Ordering, fence};

/// The part of an open file that a VMA names.
///
/// A holder may use the opening, and the file, until it [lets it go](Self::let_go).
#[repr(align(8))]
pub struct Opening<V> {
    holders: AtomicUsize,
    mappings: NonNull<FileMappings<V>>,
    /// The next one on a [`ClosingStack`].
    next_closing: AtomicPtr<Opening<V>>,
    /// VMAs that the auditor has found by their spaces; zero outside of audits.
    found: AtomicUsize,
}

// SAFETY: the mappings have their own lock, and all other fields are atomic.
unsafe impl<V: Send + Sync> Send for Opening<V> {}
// SAFETY: as for `Send`.
unsafe impl<V: Send + Sync> Sync for Opening<V> {}

impl<V> Opening<V> {
    /// A new opening of the file with these mappings, with one holder: the caller.
    ///
    /// # Safety
    ///
    /// The mappings stay where they are and live until the opening is closed.
    pub const unsafe fn new(mappings: NonNull<FileMappings<V>>) -> Self {
        Self {
            holders: AtomicUsize::new(1),
            mappings,
            next_closing: AtomicPtr::new(ptr::null_mut()),
            found: AtomicUsize::new(0),
        }
    }

    /// One more holder, for a caller that is one or knows of one that stays meanwhile.
    #[inline]
    pub fn hold(&self) {
        // Relaxed: the count cannot be falling to zero.
        self.holders.fetch_add(1, Ordering::Relaxed);
    }

    /// One holder less. Returns whether it was the last one: then the opening is the caller's, to be closed.
    ///
    /// # Safety
    ///
    /// The caller is a holder, and is not after this.
    #[inline]
    #[must_use = "an opening that has lost its last holder is closed"]
    pub unsafe fn let_go(&self) -> bool {
        // Release, and acquire for the last one: it sees what was done by every other holder.
        let last = self.holders.fetch_sub(1, Ordering::Release) == 1;
        if last {
            fence(Ordering::Acquire);
        }
        last
    }

    /// How many hold it, at a moment.
    #[inline]
    pub fn holders(&self) -> usize {
        self.holders.load(Ordering::Relaxed)
    }

    /// The mappings of the file.
    #[inline]
    pub fn mappings(&self) -> &FileMappings<V> {
        // SAFETY: they live until the opening is closed (contract of `new`), and the caller has it.
        unsafe { self.mappings.as_ref() }
    }

    /// For the auditor of a quiet machine: one more VMA was found that names the opening.
    pub fn count_found(&self) {
        self.found.fetch_add(1, Ordering::Relaxed);
    }

    /// For the auditor: how many were found since the last call.
    pub fn take_found(&self) -> usize {
        self.found.swap(0, Ordering::Relaxed)
    }
}

/// Openings that have lost their last holder and are not closed yet. All are taken at once, so none can come
/// back beside a thread that takes one.
pub struct ClosingStack<V>(AtomicPtr<Opening<V>>);

impl<V> ClosingStack<V> {
    /// None.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Whether there is none, at a moment.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed).is_null()
    }

    /// Leaves the closing of an opening to the next thread that [takes](Self::take) it.
    ///
    /// # Safety
    ///
    /// The caller has [let it go](Opening::let_go) as the last holder, and uses it no longer. It lives until
    /// it is taken.
    pub unsafe fn push(&self, opening: NonNull<Opening<V>>) {
        let mut first = self.0.load(Ordering::Relaxed);
        loop {
            // SAFETY: without holders it is the caller's, until it is on the stack.
            unsafe { opening.as_ref() }.next_closing.store(first, Ordering::Relaxed);
            // Release: the thread that takes it sees what was done by every holder.
            match self.0.compare_exchange_weak(first, opening.as_ptr(), Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// Takes all of them. Each is the caller's, to be closed.
    pub fn take(&self) -> impl Iterator<Item = NonNull<Opening<V>>> + use<V> {
        let mut next = match self.is_empty() {
            true => None,
            // Acquire: pairs with the release of `push`.
            false => NonNull::new(self.0.swap(ptr::null_mut(), Ordering::Acquire)),
        };
        core::iter::from_fn(move || {
            let opening = next?;
            // SAFETY: it is live, and the caller's only from here on.
            next = NonNull::new(unsafe { opening.as_ref() }.next_closing.load(Ordering::Relaxed));
            Some(opening)
        })
    }
}

impl<V> Default for ClosingStack<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V> fmt::Debug for Opening<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening").field("holders", &self.holders).finish_non_exhaustive()
    }
}

impl<V> fmt::Debug for ClosingStack<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClosingStack").field(&!self.is_empty()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

//! Spin locks.

use crate::atomic::{AtomicU32, Ordering, UnsafeCell};
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
// Counts order nothing, so no model has to see them.
use core::sync::atomic::AtomicU64;
use quire_arch::{Execution, LockClass};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held by a thread that finds out whether this is the lock that it wants.
const LOOKED_AT: u32 = 2;

/// A spin lock that is one word and guards whatever its owner says, e.g. a page table from within the table's
/// frame descriptor.
///
/// The acquiring exchange pairs with the releasing store in [`unlock`](Self::unlock).
#[derive(Debug)]
#[repr(transparent)]
pub struct RawSpin(AtomicU32);

impl Default for RawSpin {
    fn default() -> Self {
        Self(AtomicU32::new(FREE))
    }
}

impl RawSpin {
    /// A free lock.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self(AtomicU32::new(FREE))
    }

    /// Takes the lock and returns whether it had to wait.
    #[inline]
    pub fn lock<E: Execution>(&self, class: LockClass) -> bool {
        if cfg!(debug_assertions) {
            E::lock_taken(class);
        }
        if self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return false;
        }
        self.wait::<E>();
        true
    }

    #[cold]
    #[inline(never)]
    fn wait<E: Execution>(&self) {
        let mut attempt = 0;
        loop {
            E::relax(attempt);
            attempt = attempt.saturating_add(1);
            // Reading first keeps the line shared among the waiters until the holder writes it. A model
            // checker may return the old value to relaxed loads forever, so there the exchange is tried at
            // once.
            let maybe_free = cfg!(loom) || self.0.load(Ordering::Relaxed) == FREE;
            if maybe_free && self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
        }
    }

    /// Takes the lock if it is free now.
    #[inline]
    pub fn try_lock<E: Execution>(&self, class: LockClass) -> bool {
        let taken = self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if cfg!(debug_assertions) && taken {
            E::lock_taken(class);
        }
        taken
    }

    /// Takes the lock if it is free now, for a look at what it guards: that may have got another owner, whose
    /// lock the caller does not want. It excludes others as any hold does, but [`is_locked`](Self::is_locked)
    /// does not count it. The caller has announced its wish, and [keeps](Self::keep) the lock or [gives it
    /// back](Self::give_back) within a few instructions.
    #[inline]
    #[must_use = "the lock is to be kept or given back"]
    pub fn try_look(&self) -> bool {
        self.0.compare_exchange(FREE, LOOKED_AT, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// The lock is the one that the caller wanted: it holds it from now on.
    ///
    /// # Safety
    ///
    /// The caller took it by [`try_look`](Self::try_look).
    #[inline]
    pub unsafe fn keep(&self) {
        // While it is held no other thread writes it, and what it guards is not handed over.
        self.0.store(HELD, Ordering::Relaxed);
    }

    /// The lock is not the one that the caller wanted.
    ///
    /// # Safety
    ///
    /// As for [`keep`](Self::keep).
    #[inline]
    pub unsafe fn give_back(&self) {
        // Release, as in `unlock`: the next holder's exchange comes after the look.
        self.0.store(FREE, Ordering::Release);
    }

    /// Releases the lock.
    ///
    /// # Safety
    ///
    /// The caller holds it, and its last access to what the lock guards is done.
    #[inline]
    pub unsafe fn unlock<E: Execution>(&self, class: LockClass) {
        self.0.store(FREE, Ordering::Release);
        if cfg!(debug_assertions) {
            E::lock_dropped(class);
        }
    }

    /// Whether the lock is held now, by a thread that wanted it.
    #[inline]
    pub fn is_locked(&self) -> bool {
        self.0.load(Ordering::Relaxed) == HELD
    }
}

/// A lock's statistics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpinStatistics {
    /// Times that the lock was taken.
    pub takes: u64,
    /// Contended acquisitions.
    pub contended: u64,
    /// Nanoseconds that it was held in all, where the lock's owner measures it; else zero.
    pub held_ns: u64,
}

/// A spin lock around a value. It counts its takes under itself, so counting costs no atomic.
///
/// The holder must not sleep; callers take it pinned.
pub struct SpinLock<T, E> {
    raw: RawSpin,
    class: LockClass,
    takes: AtomicU64,
    contended: AtomicU64,
    value: UnsafeCell<T>,
    execution: PhantomData<fn() -> E>,
}

// SAFETY: the raw lock admits one thread at a time to the value, so sharing the lock only moves `T` between
// threads.
unsafe impl<T: Send, E> Sync for SpinLock<T, E> {}
// SAFETY: the lock owns the value, and moves with it.
unsafe impl<T: Send, E> Send for SpinLock<T, E> {}

impl<T, E: Execution> SpinLock<T, E> {
    /// A free lock of `class` around `value`.
    pub fn new(class: LockClass, value: T) -> Self {
        Self {
            raw: RawSpin::default(),
            class,
            takes: AtomicU64::new(0),
            contended: AtomicU64::new(0),
            value: UnsafeCell::new(value),
            execution: PhantomData,
        }
    }

    /// Takes the lock.
    #[inline]
    pub fn lock(&self) -> SpinGuard<'_, T, E> {
        let waited = self.raw.lock::<E>(self.class);
        self.taken(waited)
    }

    /// Takes the lock if it is free now.
    #[inline]
    pub fn try_lock(&self) -> Option<SpinGuard<'_, T, E>> {
        if self.raw.try_lock::<E>(self.class) { Some(self.taken(false)) } else { None }
    }

    #[inline]
    fn taken(&self, waited: bool) -> SpinGuard<'_, T, E> {
        // Plain additions: both counters are written only under the lock.
        self.takes.store(self.takes.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        if waited {
            self.contended.store(self.contended.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        SpinGuard { lock: self, not_send: PhantomData }
    }

    /// How often the lock was taken so far.
    pub fn statistics(&self) -> SpinStatistics {
        SpinStatistics {
            takes: self.takes.load(Ordering::Relaxed),
            contended: self.contended.load(Ordering::Relaxed),
            held_ns: 0,
        }
    }
}

impl<T, E> fmt::Debug for SpinLock<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpinLock").field("class", &self.class).field("raw", &self.raw).finish_non_exhaustive()
    }
}

/// Access to the value of a [`SpinLock`] until dropped.
#[must_use = "the lock is released when the guard is dropped"]
pub struct SpinGuard<'l, T, E: Execution> {
    lock: &'l SpinLock<T, E>,
    not_send: PhantomData<*const ()>,
}

impl<T, E: Execution> Deref for SpinGuard<'_, T, E> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock, so no other thread reaches the value.
        self.lock.value.with_mut(|value| unsafe { &*value })
    }
}

impl<T, E: Execution> DerefMut for SpinGuard<'_, T, E> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock, and it is borrowed exclusively here.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T, E: Execution> Drop for SpinGuard<'_, T, E> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the guard holds the lock and is gone after this.
        unsafe { self.lock.raw.unlock::<E>(self.lock.class) };
    }
}

impl<T: fmt::Debug, E: Execution> fmt::Debug for SpinGuard<'_, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, f)
    }
}

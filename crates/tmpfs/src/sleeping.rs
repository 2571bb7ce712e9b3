//! A value behind a sleeping reader-writer lock.

use core::cell::UnsafeCell;
use core::fmt;
use core::ops::{Deref, DerefMut};
use quire_arch::{LockClass, Platform};
use quire_sync::{RwSleepLock, RwSleepReadGuard, RwSleepWriteGuard};

/// A value that is read by several at a time, or written by one. Who waits sleeps.
pub(crate) struct Sleeping<T> {
    lock: RwSleepLock,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives out the value to one writer, or shares it among readers.
unsafe impl<T: Send + Sync> Sync for Sleeping<T> {}

impl<T> Sleeping<T> {
    pub(crate) fn new(class: LockClass, value: T) -> Self {
        Self { lock: RwSleepLock::new(class), value: UnsafeCell::new(value) }
    }

    pub(crate) fn read<'l, P: Platform>(&'l self, platform: &'l P) -> Read<'l, T, P> {
        Read { _held: self.lock.read(platform), value: &self.value }
    }

    pub(crate) fn write<'l, P: Platform>(&'l self, platform: &'l P) -> Write<'l, T, P> {
        Write { _held: self.lock.write(platform), value: &self.value }
    }

    /// The value, of an owner: no lock is needed.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

/// The value, shared, until dropped.
pub(crate) struct Read<'l, T, P: Platform> {
    _held: RwSleepReadGuard<'l, P>,
    value: &'l UnsafeCell<T>,
}

impl<T, P: Platform> Deref for Read<'_, T, P> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is read-held, so nothing writes.
        unsafe { &*self.value.get() }
    }
}

/// The value, exclusively, until dropped.
pub(crate) struct Write<'l, T, P: Platform> {
    _held: RwSleepWriteGuard<'l, P>,
    value: &'l UnsafeCell<T>,
}

impl<T, P: Platform> Deref for Write<'_, T, P> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is write-held by this guard.
        unsafe { &*self.value.get() }
    }
}

impl<T, P: Platform> DerefMut for Write<'_, T, P> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is write-held by this guard, which is borrowed exclusively.
        unsafe { &mut *self.value.get() }
    }
}

impl<T> fmt::Debug for Sleeping<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleeping").field("lock", &self.lock).finish_non_exhaustive()
    }
}

//! A value that a model checks the order of accesses to.

use loom::cell::UnsafeCell;

/// A value that the threads of a loom model share with no lock of its own. What a model checks with it is
/// that its accesses are ordered: loom panics where a write comes at the same time as another access, or is
/// not ordered before it.
#[derive(Debug, Default)]
pub struct Watched<T>(UnsafeCell<T>);

// SAFETY: loom runs one thread of a model at a time, and no access lasts over a switch to another one.
// Outside of a model the cell panics.
unsafe impl<T: Send> Sync for Watched<T> {}
// SAFETY: the cell owns its value, and hands out copies only.
unsafe impl<T: Send> Send for Watched<T> {}

impl<T: Copy> Watched<T> {
    /// A value that begins as `value`.
    pub fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// Reads it.
    pub fn get(&self) -> T {
        // SAFETY: loom has checked that no write comes at the same time.
        self.0.with(|value| unsafe { *value })
    }

    /// Writes it.
    pub fn set(&self, new: T) {
        // SAFETY: loom has checked that no other access comes at the same time.
        self.0.with_mut(|value| unsafe { *value = new });
    }
}

//! Atomics and cells: `core`'s, or those of a model checker where a model runs.
//!
//! Under `--cfg loom` they are loom's, which try every interleaving and every allowed value of a few words.
//! Under `--cfg shuttle` they are `core`'s behind a point of choice each (`scheduled.rs`), so that whole
//! machines run under random schedules.

#[cfg(not(any(loom, shuttle)))]
pub use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(loom)]
pub use crate::forced::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, force_failures};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicUsize, Ordering, fence};

#[cfg(shuttle)]
pub use crate::scheduled::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, as_one_step};
#[cfg(shuttle)]
pub use core::sync::atomic::{Ordering, fence};

/// Atomics with the layout of plain integers in every build, for words in raw memory: page-table entries,
/// program data, links of free objects. Loom does not see them.
pub mod raw {
    #[cfg(shuttle)]
    pub use crate::scheduled::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize};
    #[cfg(not(shuttle))]
    pub use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize};
    pub use core::sync::atomic::{Ordering, fence};
}

/// A cell with closure access, in the shape that loom can watch.
#[cfg(not(loom))]
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    /// A cell that holds `value`.
    pub const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    /// Calls `access` with a pointer for reading.
    #[inline]
    pub fn with<R>(&self, access: impl FnOnce(*const T) -> R) -> R {
        access(self.0.get())
    }

    /// Calls `access` with a pointer for reading and writing.
    #[inline]
    pub fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
        access(self.0.get())
    }
}

#[cfg(loom)]
pub use loom::cell::UnsafeCell;

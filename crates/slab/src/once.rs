//! A value that is set once and then shared without a lock.

use core::fmt;
use core::mem::{self, MaybeUninit};
use quire_sync::atomic::{AtomicU8, Ordering, UnsafeCell};

const EMPTY: u8 = 0;
const SETTING: u8 = 1;
const SET: u8 = 2;

/// A cell for a value whose construction may fail. The value is never dropped: a thread that has seen it may
/// use it as long as the cell exists.
pub(crate) struct SetOnce<T> {
    state: AtomicU8,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the cell is written once, by the one thread that moved the state to `SETTING`, which sends the
// value here; it is read only after the state was seen to be `SET`, then by any number of threads at once.
unsafe impl<T: Send + Sync> Sync for SetOnce<T> {}

/// The place has its value already, or another thread is just making it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Taken;

impl<T> SetOnce<T> {
    /// An empty place.
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self { state: AtomicU8::new(EMPTY), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// An empty place.
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self { state: AtomicU8::new(EMPTY), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// The exclusive turn to make the value.
    pub(crate) fn claim(&self) -> Result<Turn<'_, T>, Taken> {
        // Acquire: a failed turn is over before the next one begins. Pairs with the store in the drop of a
        // turn.
        let turn = self.state.compare_exchange(EMPTY, SETTING, Ordering::Acquire, Ordering::Relaxed);
        turn.map(|_| Turn { place: self }).map_err(|_| Taken)
    }

    /// The value, once it is set.
    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        if self.state.load(Ordering::Acquire) != SET {
            return None;
        }
        // SAFETY: the state says that the cell was written; no thread writes it again.
        Some(self.value.with(|place| unsafe { (*place).assume_init_ref() }))
    }
}

/// The holder makes the value. Dropped without one, it leaves the place empty for the next one to try.
pub(crate) struct Turn<'p, T> {
    place: &'p SetOnce<T>,
}

impl<T> Turn<'_, T> {
    /// Sets the value.
    pub(crate) fn set(self, value: T) {
        // SAFETY: there is one turn at a time, and no thread reads the cell before the store.
        self.place.value.with_mut(|place| unsafe { (*place).write(value) });
        // Pairs with the load in `get`.
        self.place.state.store(SET, Ordering::Release);
        mem::forget(self);
    }
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        self.place.state.store(EMPTY, Ordering::Release);
    }
}

impl<T> fmt::Debug for SetOnce<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetOnce").field("set", &self.get().is_some()).finish_non_exhaustive()
    }
}

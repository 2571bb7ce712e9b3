//! A value that is set once and then shared without a lock.

use core::fmt;
use core::mem::MaybeUninit;
use quire_sync::atomic::{AtomicU8, Ordering, UnsafeCell};

const EMPTY: u8 = 0;
const SETTING: u8 = 1;
const SET: u8 = 2;

/// A place for a value that may fail to be made. It is never dropped: whoever has seen it may use it as long as the place
/// is there.
pub(super) struct SetOnce<T> {
    state: AtomicU8,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the cell is written once, by the one thread that moved the state to `SETTING`, which sends the value here; it
// is read only after the state was seen to be `SET`, then by any number of threads at once.
unsafe impl<T: Send + Sync> Sync for SetOnce<T> {}

/// The place has its value already, or somebody is just making it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Taken;

impl<T> SetOnce<T> {
    /// An empty place.
    #[cfg(not(loom))]
    pub(super) const fn new() -> Self {
        Self { state: AtomicU8::new(EMPTY), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// An empty place.
    #[cfg(loom)]
    pub(super) fn new() -> Self {
        Self { state: AtomicU8::new(EMPTY), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// Sets what `make` makes. If that fails the place is empty again, for the next one to try.
    pub(super) fn set_with<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<Result<(), E>, Taken> {
        // Acquire: what one did in vain is over before the next one begins. Pairs with the store after a failure.
        let turn = self.state.compare_exchange(EMPTY, SETTING, Ordering::Acquire, Ordering::Relaxed);
        turn.map_err(|_| Taken)?;
        Ok(match make() {
            Ok(value) => {
                // SAFETY: this thread alone moved the state to `SETTING`, and nobody reads the cell before the next.
                self.value.with_mut(|place| unsafe { (*place).write(value) });
                // Pairs with the load in `get`.
                self.state.store(SET, Ordering::Release);
                Ok(())
            }
            Err(error) => {
                self.state.store(EMPTY, Ordering::Release);
                Err(error)
            }
        })
    }

    /// The value, once it is set.
    #[inline]
    pub(super) fn get(&self) -> Option<&T> {
        if self.state.load(Ordering::Acquire) != SET {
            return None;
        }
        // SAFETY: the state says that the cell was written; nobody writes it again.
        Some(self.value.with(|place| unsafe { (*place).assume_init_ref() }))
    }
}

impl<T> fmt::Debug for SetOnce<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetOnce").field("set", &self.get().is_some()).finish_non_exhaustive()
    }
}

//! Atomics under shuttle's scheduler: before each operation any other thread of the model may run.
//!
//! The types are `core`'s with nothing added, so they may lie in raw memory as those do: page-table entries,
//! zeroed frames, descriptors of a fixed size. shuttle's own atomics carry a history of their own and may
//! not. Every operation is sequentially consistent, whatever order it asks for: this finds wrong protocols,
//! not wrong orders. Loom looks for those.

use core::cell::Cell;
use core::fmt;
use core::sync::atomic::Ordering;
use core::time::Duration;

/// More operations than any sound step makes: beyond it a list has become a ring.
const STEP_BOUND: u64 = 10_000_000;

std::thread_local! {
    /// Operations that the step may still make, in [`as_one_step`], on this thread of the host. It runs one
    /// model at a time.
    static ONE_STEP: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Runs `action` with no other thread of the model in between, for what runs alone anyway: building a machine
/// and auditing it. Schedules stay short, and the scheduler's choices fall where there is one.
///
/// # Panics
///
/// When the step does not end.
pub fn as_one_step<R>(action: impl FnOnce() -> R) -> R {
    struct Restore(Option<u64>);
    impl Drop for Restore {
        fn drop(&mut self) {
            ONE_STEP.set(self.0);
        }
    }
    let _restore = Restore(ONE_STEP.replace(Some(STEP_BOUND)));
    action()
}

/// Lets the scheduler choose the thread that runs next. Does nothing outside of a model, nor while a panic
/// unwinds: what has failed is reported as it was.
fn point() {
    if std::thread::panicking() {
        return;
    }
    if let Some(left) = ONE_STEP.get() {
        assert!(left > 0, "a step of a model does not end");
        ONE_STEP.set(Some(left - 1));
    } else if shuttle::current::try_get_current_task().is_some() {
        // shuttle knows no time: its `sleep` is a point of choice and nothing else.
        shuttle::thread::sleep(Duration::ZERO);
    }
}

macro_rules! atomic {
    ($(#[$doc:meta])* $name:ident $(<$type:ident>)?, $value:ty, $core:ty) => {
        $(#[$doc])*
        #[derive(Default)]
        #[repr(transparent)]
        pub struct $name $(<$type>)? ($core);

        impl $(<$type>)? $name $(<$type>)? {
            /// An atomic that holds `value`.
            pub const fn new(value: $value) -> Self {
                Self(<$core>::new(value))
            }

            /// The atomic at `at`.
            ///
            /// # Safety
            ///
            /// As for the function of `core`.
            pub unsafe fn from_ptr<'a>(at: *mut $value) -> &'a Self {
                // SAFETY: the caller's promise, for the same layout: the type is transparent.
                unsafe { &*at.cast() }
            }

            /// The value, owned.
            pub fn into_inner(self) -> $value {
                self.0.into_inner()
            }

            /// The value, held alone.
            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }

            /// Reads the value.
            pub fn load(&self, _order: Ordering) -> $value {
                point();
                self.0.load(Ordering::SeqCst)
            }

            /// Writes the value.
            pub fn store(&self, value: $value, _order: Ordering) {
                point();
                self.0.store(value, Ordering::SeqCst);
            }

            /// Writes the value and returns the one before.
            pub fn swap(&self, value: $value, _order: Ordering) -> $value {
                point();
                self.0.swap(value, Ordering::SeqCst)
            }

            /// Writes `new` if the value is `current`.
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                _success: Ordering,
                _failure: Ordering,
            ) -> Result<$value, $value> {
                point();
                self.0.compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst)
            }

            /// As [`compare_exchange`](Self::compare_exchange); fails for no other reason here, so that
            /// schedules replay.
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }
        }

        impl $(<$type>)? fmt::Debug for $name $(<$type>)? {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

macro_rules! integer {
    ($name:ident, $value:ty) => {
        atomic!(
            /// As the type of the same name in `core`.
            $name,
            $value,
            core::sync::atomic::$name
        );

        impl $name {
            /// Adds and returns the value before.
            pub fn fetch_add(&self, value: $value, _order: Ordering) -> $value {
                point();
                self.0.fetch_add(value, Ordering::SeqCst)
            }

            /// Subtracts and returns the value before.
            pub fn fetch_sub(&self, value: $value, _order: Ordering) -> $value {
                point();
                self.0.fetch_sub(value, Ordering::SeqCst)
            }

            /// Sets bits and returns the value before.
            pub fn fetch_or(&self, value: $value, _order: Ordering) -> $value {
                point();
                self.0.fetch_or(value, Ordering::SeqCst)
            }

            /// Keeps bits and returns the value before.
            pub fn fetch_and(&self, value: $value, _order: Ordering) -> $value {
                point();
                self.0.fetch_and(value, Ordering::SeqCst)
            }

            /// Raises the value to at least `value` and returns the one before.
            pub fn fetch_max(&self, value: $value, _order: Ordering) -> $value {
                point();
                self.0.fetch_max(value, Ordering::SeqCst)
            }

            /// Replaces the value by the result of `next`, unless that is `None`.
            pub fn fetch_update(
                &self,
                _set: Ordering,
                _fetch: Ordering,
                next: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                point();
                self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next)
            }
        }
    };
}

integer!(AtomicU8, u8);
integer!(AtomicU32, u32);
integer!(AtomicU64, u64);
integer!(AtomicUsize, usize);

atomic!(
    /// As the type of the same name in `core`.
    AtomicBool,
    bool,
    core::sync::atomic::AtomicBool
);

atomic!(
    /// As the type of the same name in `core`.
    AtomicPtr<T>,
    *mut T,
    core::sync::atomic::AtomicPtr<T>
);

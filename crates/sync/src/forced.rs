//! Loom's atomics, with weak exchanges that fail spuriously.
//!
//! `compare_exchange_weak` may fail though the word is as expected, and on x86 never does, nor in loom. Code
//! that takes such a failure for interference by another thread would only be wrong elsewhere. So a model can
//! demand failures: the next few weak exchanges then fail and return the current value.

use core::cell::Cell;
use core::fmt;
use core::ops::Deref;
use loom::sync::atomic::Ordering;

std::thread_local! {
    static LEFT: Cell<u32> = const { Cell::new(0) };
}

/// The next `count` weak exchanges of this model fail, whichever of its threads makes them. To be called
/// where the model begins: it discards what an earlier interleaving left.
pub fn force_failures(count: u32) {
    LEFT.with(|left| left.set(count));
}

fn must_fail() -> bool {
    // Loom's threads take turns on one thread of the system.
    LEFT.with(|left| {
        let now = left.get();
        left.set(now.saturating_sub(1));
        now > 0
    })
}

macro_rules! atomics {
    ($($name:ident $(<$type:ident>)?: $value:ty,)+) => {$(
        /// Loom's atomic of the same name.
        pub struct $name $(<$type>)? (loom::sync::atomic::$name $(<$type>)?);

        impl $(<$type>)? $name $(<$type>)? {
            /// An atomic with this value.
            pub fn new(value: $value) -> Self {
                Self(loom::sync::atomic::$name::new(value))
            }

            /// As `core`'s: may fail though the value is `current`.
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                if must_fail() {
                    return Err(self.0.load(failure));
                }
                self.0.compare_exchange_weak(current, new, success, failure)
            }
        }

        impl $(<$type>)? Default for $name $(<$type>)? {
            fn default() -> Self {
                Self(loom::sync::atomic::$name::default())
            }
        }

        impl $(<$type>)? fmt::Debug for $name $(<$type>)? {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl $(<$type>)? Deref for $name $(<$type>)? {
            type Target = loom::sync::atomic::$name $(<$type>)?;

            fn deref(&self) -> &Self::Target {
                &self.0
            }
        }
    )+};
}

atomics! {
    AtomicU8: u8,
    AtomicU32: u32,
    AtomicU64: u64,
    AtomicPtr<T>: *mut T,
}

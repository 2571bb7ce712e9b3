//! Who has a machine's RAM.

use core::sync::atomic::{AtomicBool, Ordering};

/// Whether a memory manager has the RAM of a machine. A platform keeps one, where its RAM is described, and
/// shows it by [`Platform::ram_claim`](crate::Platform::ram_claim). The memory management takes it before it
/// touches the RAM, and gives it back when it is dropped.
///
/// It cannot be copied: where a platform is a handle of which there may be several, they share the claim as
/// they share the RAM (in a `static`, or behind an `Arc`).
#[derive(Debug, Default)]
pub struct RamClaim {
    taken: AtomicBool,
}

impl RamClaim {
    /// The claim to RAM that no manager has.
    pub const fn new() -> Self {
        Self { taken: AtomicBool::new(false) }
    }

    /// Takes the RAM. False if another manager has it.
    #[doc(hidden)]
    #[must_use = "only one that took the RAM may use it"]
    pub fn take(&self) -> bool {
        // Acquire: pairs with `release`, so that all that the manager before wrote to the RAM comes before.
        !self.taken.swap(true, Ordering::Acquire)
    }

    /// Gives the RAM back.
    ///
    /// # Safety
    ///
    /// The caller took it, and neither it nor anything that it gave out uses the RAM any more.
    #[doc(hidden)]
    pub unsafe fn release(&self) {
        // Release: pairs with `take`.
        self.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::RamClaim;

    #[test]
    fn ram_is_taken_once_until_it_is_given_back() {
        let claim = RamClaim::new();
        for _ in 0..2 {
            assert!(claim.take());
            assert!(!claim.take());
            // A refusal takes nothing away either.
            assert!(!claim.take());
            // SAFETY: there is no RAM.
            unsafe { claim.release() };
        }
    }
}

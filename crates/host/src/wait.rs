//! How a thread of the host waits for another one.

use quire_arch::{Execution, LockClass};

/// Attempts before a waiter lets other threads run: there may be more vCPU threads than real CPUs.
pub(crate) const SPINS: u32 = 64;

/// Waits a little, longer as `attempt` grows.
#[inline]
pub(crate) fn pause(attempt: u32) {
    #[cfg(loom)]
    {
        let _ = attempt;
        loom::thread::yield_now();
    }
    #[cfg(not(loom))]
    if attempt < SPINS {
        core::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

/// Waiting for the machine's own locks, which stand below every lock of the memory manager: they are innermost by
/// construction, and no class of theirs has to be checked.
#[derive(Debug)]
pub(crate) struct Innermost;

impl Execution for Innermost {
    #[inline]
    fn relax(attempt: u32) {
        pause(attempt);
    }

    fn lock_taken(_class: LockClass) {}
}

//! How a thread of the host waits for another one.

use quire_arch::{Execution, LockClass};

/// Attempts before a waiter lets other threads run: there may be more vCPU threads than real CPUs.
const SPINS: u32 = 64;

/// Whether this attempt may still spin. In a model one thread runs at a time, so spinning would wait in vain.
#[inline]
pub(crate) fn may_spin(attempt: u32) -> bool {
    cfg!(not(shuttle)) && attempt < SPINS
}

/// Waits a little, longer as `attempt` grows.
#[inline]
pub(crate) fn pause(attempt: u32) {
    #[cfg(loom)]
    {
        let _ = attempt;
        loom::thread::yield_now();
    }
    #[cfg(not(loom))]
    if may_spin(attempt) {
        core::hint::spin_loop();
    } else {
        crate::threads::yield_now();
    }
}

/// Waiting for the machine's own locks, which stand below every lock of the memory manager: they are
/// innermost by construction, and no class of theirs has to be checked.
#[derive(Debug)]
pub(crate) struct Innermost;

impl Execution for Innermost {
    #[inline]
    fn relax(attempt: u32) {
        pause(attempt);
    }

    fn lock_taken(_class: LockClass) {}
}

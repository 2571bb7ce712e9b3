//! What one CPU runs, and how an exiting space is taken off every CPU.

use super::SpaceCpus;
use core::ptr::{self, NonNull};
use quire_arch::{CpuId, Execution};
use quire_sync::atomic::{AtomicPtr, Ordering};

/// The space that one CPU runs, or none. The CPU itself changes it, pinned; and the exit of the space empties
/// it.
///
/// Relaxed throughout: a pointer is followed only by the CPU that wrote it, and what orders a CPU that leaves
/// before the exit that frees the core is the CPU's bit in the running set.
#[derive(Debug)]
pub(crate) struct CpuSlot<C>(AtomicPtr<C>);

impl<C> CpuSlot<C> {
    /// Nothing runs here yet.
    pub(crate) fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Whether this CPU runs `core`.
    #[inline]
    pub(crate) fn is(&self, core: NonNull<C>) -> bool {
        self.0.load(Ordering::Relaxed) == core.as_ptr()
    }

    /// Records what this CPU runs now, and returns what it ran before. That core lives until the CPU has
    /// taken itself out of its running set: see [`clear_everywhere`].
    #[inline]
    pub(crate) fn replace(&self, core: Option<NonNull<C>>) -> Option<NonNull<C>> {
        let core = core.map_or(ptr::null_mut(), NonNull::as_ptr);
        NonNull::new(self.0.swap(core, Ordering::Relaxed))
    }

    /// Empties the slot if it holds `core`, and returns whether it did.
    fn clear(&self, core: NonNull<C>) -> bool {
        self.0.compare_exchange(core.as_ptr(), ptr::null_mut(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Takes an exiting space, which has no handles left, off every CPU. Afterwards no CPU touches `core`, and
/// all that CPUs did in the space has happened.
///
/// A CPU that switches meanwhile takes the core out of its slot first and itself out of the running set last.
/// So either the slot still holds the core, and the CPU will find it empty; or the CPU is about to leave by
/// itself, pinned, and is waited for.
pub(crate) fn clear_everywhere<'s, E: Execution, C: 's>(
    core: NonNull<C>,
    cpus: &SpaceCpus,
    slot: impl Fn(CpuId) -> Option<&'s CpuSlot<C>>,
) {
    for cpu in cpus.running().iter() {
        if slot(cpu).is_some_and(|slot| slot.clear(core)) {
            cpus.leave(cpu);
            continue;
        }
        let mut attempt = 0;
        // Acquires what the CPU released when it left.
        while cpus.running().contains(cpu) {
            E::relax(attempt);
            attempt = attempt.saturating_add(1);
        }
    }
}

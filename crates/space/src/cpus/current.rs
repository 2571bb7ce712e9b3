//! The space that each CPU runs, and how a CPU switches.
//!
//! Which space a CPU leaves is known to the CPU alone: a caller of [`Space::activate`] may have slept, and
//! been on another CPU, since it last looked. (Linux's `switch_mm` is passed the previous space as well, and
//! ignores it.) So [`Spaces`] keeps for each CPU a pointer to the space that is current there. It does not
//! count as a handle.

use super::SpaceCpus;
use crate::space::{Space, SpaceCore};
use crate::spaces::Spaces;
use core::ptr::{self, NonNull};
use quire_arch::{CpuId, Execution, MAX_CPUS, Order, Pin, Platform, TlbFlush};
use quire_frame::VmEvent;
use quire_sync::PerCpu;
use quire_sync::atomic::{AtomicPtr, Ordering};

/// Which space each CPU runs.
pub(crate) type CurrentSpaces = PerCpu<Slot<SpaceCore>>;

const _: () = assert!(
    PerCpu::<Slot<()>>::bytes(MAX_CPUS) as u64 <= Order::MAX.bytes(),
    "one block holds the slots of every machine"
);

/// The space that one CPU runs, or none. The CPU itself changes it, pinned; and the exit of the space empties
/// it.
///
/// Relaxed throughout: a pointer is followed only by the CPU that wrote it, and what orders a CPU that leaves
/// before the exit that frees the core is the CPU's bit in the running set.
#[derive(Debug)]
pub(crate) struct Slot<C>(AtomicPtr<C>);

impl<C> Slot<C> {
    pub(crate) fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Whether this CPU runs `core`.
    #[inline]
    pub(crate) fn is(&self, core: NonNull<C>) -> bool {
        self.0.load(Ordering::Relaxed) == core.as_ptr()
    }

    /// Notes what this CPU runs now, and returns what it ran before. That core lives until the CPU has taken
    /// itself out of its running set: see [`clear_everywhere`].
    #[inline]
    pub(super) fn replace(&self, core: Option<NonNull<C>>) -> Option<NonNull<C>> {
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
pub(super) fn clear_everywhere<'s, E: Execution, C: 's>(
    core: NonNull<C>,
    cpus: &SpaceCpus,
    slot: impl Fn(CpuId) -> Option<&'s Slot<C>>,
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
            attempt += 1;
        }
    }
}

impl<P: Platform> Space<'_, P> {
    /// Makes this space the current one of the pinned CPU, in place of the one that is.
    ///
    /// A handle must exist for as long as the CPU may walk the tables. On a machine that walks for accesses
    /// only, the threads that make the accesses have one. Where a CPU may walk at any time, as hardware that
    /// speculates does, the caller keeps one until the CPU has another space or none
    /// ([`Spaces::deactivate`]). When the last handle is dropped, the space exits and is current nowhere.
    pub fn activate(&self, pin: &Pin<'_, P>) {
        let core = self.core();
        let slot = self.spaces.current().mine(pin);
        if slot.is(self.shared()) {
            // It has been running it since, so every flush has reached it.
            return;
        }
        core.cpus.enter(pin.cpu(), || {
            pin.platform().flush_local(pin, TlbFlush::Space { asid: core.asid() });
            self.spaces.frames().events().add(pin, VmEvent::TlbFlushOnTaskSwitch, 1);
        });
        pin.platform().activate(pin, Some((core.root(), core.asid())));
        leave(pin, slot.replace(Some(self.shared())));
    }
}

impl<P: Platform> Spaces<P> {
    /// Leaves the pinned CPU without a space. For a CPU that goes idle or runs the kernel's own threads:
    /// flushes skip it from now on.
    pub fn deactivate(&self, pin: &Pin<'_, P>) {
        pin.platform().activate(pin, None);
        leave(pin, self.current().mine(pin).replace(None));
    }

    /// Takes a space whose last handle is gone off every CPU.
    pub(crate) fn clear_current(&self, core: NonNull<SpaceCore>, cpus: &SpaceCpus) {
        clear_everywhere::<P, _>(core, cpus, |cpu| self.current().get(cpu));
    }
}

/// The pinned CPU has loaded other tables than those of `left`, which it has just taken out of its slot.
fn leave<P: Platform>(pin: &Pin<'_, P>, left: Option<NonNull<SpaceCore>>) {
    if let Some(left) = left {
        // SAFETY: the CPU is in the core's running set until this call has taken it out, and an exit waits
        // for that before it frees the core (`clear_everywhere`).
        unsafe { left.as_ref() }.cpus.leave(pin.cpu());
    }
}

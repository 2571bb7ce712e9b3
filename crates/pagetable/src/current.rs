//! The space that each CPU runs, and how a CPU switches.
//!
//! Which space a CPU leaves is known to the CPU alone: a thread that makes a CPU switch may have slept, and
//! been on another CPU, since it last looked. (Linux's `switch_mm` is passed the previous space as well, and
//! ignores it.) So there is for each CPU a pointer to the tables that are current there. It does not count as
//! a handle of the space.

use crate::cpus::{CpuSlot, SpaceCpus, clear_everywhere};
use crate::memory::MemoryCore;
use crate::space_tables::SpaceTables;
use core::fmt;
use core::ptr::NonNull;
use quire_arch::{CpuId, MAX_CPUS, Order, Pfn, Pin, Platform, TlbFlush};
use quire_frame::{AllocError, AllocRequest, FailSite, VmEvent};
use quire_sync::PerCpu;

const _: () = assert!(
    PerCpu::<CpuSlot<()>>::bytes(MAX_CPUS) as u64 <= Order::MAX.bytes(),
    "one block holds the slots of every machine"
);

/// Which space each CPU runs.
pub struct CurrentSpaces {
    slots: PerCpu<CpuSlot<SpaceTables>>,
    block: Pfn,
}

impl CurrentSpaces {
    /// No CPU runs a space.
    ///
    /// # Errors
    ///
    /// When there are no frames for the slots.
    pub fn new<P: Platform>(memory: &MemoryCore<P>, pin: &Pin<'_, P>) -> Result<Self, AllocError> {
        let cpus = memory.platform().cpu_count();
        let bytes = PerCpu::<CpuSlot<SpaceTables>>::bytes(cpus) as u64;
        let order = Order::for_bytes(bytes).unwrap_or(Order::MAX);
        let block = memory.frames().allocate(pin, AllocRequest::new(order, FailSite::new("spaces")))?;
        // SAFETY: the block holds the slots (the largest order holds those of `MAX_CPUS`, as asserted above)
        // and is aligned to a page; it belongs to this value and is never freed.
        let slots = unsafe { PerCpu::init(memory.platform().direct_map(block), cpus, |_| CpuSlot::new()) };
        Ok(Self { slots, block })
    }

    /// The first frame of what the slots lie in.
    pub fn block(&self) -> Pfn {
        self.block
    }

    /// Makes `space` the current one of the pinned CPU, in place of the one that is.
    pub fn activate<P: Platform>(&self, memory: &MemoryCore<P>, pin: &Pin<'_, P>, space: &SpaceTables) {
        let slot = self.slots.mine(pin);
        if slot.is(NonNull::from(space)) {
            // It has been running it since, so every flush has reached it.
            return;
        }
        space.cpus.enter(pin.cpu(), || {
            pin.platform().flush_local(pin, TlbFlush::Space { asid: space.asid() });
            memory.frames().events().add(pin, VmEvent::TlbFlushOnTaskSwitch, 1);
        });
        // SAFETY: the tables of a space that is not gone, since it is at hand; what they lead to is freed
        // after a shootdown of the CPUs that run it. `clear` takes it off the CPU before it is freed; no
        // program goes on without a handle. The tag is the space's, and was flushed above if others had it.
        unsafe { pin.platform().activate(pin, Some((space.root(), space.asid()))) };
        leave(pin, slot.replace(Some(NonNull::from(space))));
    }

    /// Whether `cpu` runs `space`; only the CPU itself may rely on it.
    #[inline]
    pub fn is_current(&self, cpu: CpuId, space: &SpaceTables) -> bool {
        self.slots.get(cpu).is_some_and(|slot| slot.is(NonNull::from(space)))
    }

    /// Leaves the pinned CPU without a space.
    pub fn deactivate<P: Platform>(&self, pin: &Pin<'_, P>) {
        // SAFETY: without tables.
        unsafe { pin.platform().activate(pin, None) };
        leave(pin, self.slots.mine(pin).replace(None));
    }

    /// Takes a space whose last handle is gone off every CPU.
    pub fn clear<P: Platform>(&self, space: &SpaceTables) {
        let cpus: &SpaceCpus = &space.cpus;
        clear_everywhere::<P, _>(NonNull::from(space), cpus, |cpu| self.slots.get(cpu));
    }
}

/// The pinned CPU has loaded other tables than those of `left`, which it has just taken out of its slot.
fn leave<P: Platform>(pin: &Pin<'_, P>, left: Option<NonNull<SpaceTables>>) {
    if let Some(left) = left {
        // SAFETY: the CPU is in the space's running set until this call has taken it out, and an exit waits
        // for that before it frees what the tables lie in (`clear_everywhere`).
        unsafe { left.as_ref() }.cpus.leave(pin.cpu());
    }
}

impl fmt::Debug for CurrentSpaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CurrentSpaces").finish_non_exhaustive()
    }
}

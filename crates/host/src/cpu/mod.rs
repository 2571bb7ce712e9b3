//! One vCPU: its door, what only its owner touches, its counters.

pub(crate) mod current;

use crate::counters::CpuCounters;
use crate::door::{Cache, Door};
use crate::lock_order;
use crate::paranoid::Paranoia;
use crate::tlb::Tlb;
use core::cell::Cell;
use core::fmt;
use core::marker::PhantomData;
use core::ops::Deref;
use quire_arch::{Asid, CpuId, Pfn, TlbFlush};
use quire_sync::atomic::raw::{AtomicBool, Ordering};

/// What a door guards: the TLB and what belongs to it.
#[derive(Debug)]
pub(crate) struct Cached {
    /// The current tables and their tag.
    pub(crate) current: Option<(Pfn, Asid)>,
    pub(crate) tlb: Tlb,
    /// Present in paranoid mode.
    pub(crate) paranoia: Option<Box<Paranoia>>,
}

impl Cache for Cached {
    fn apply(&mut self, flush: TlbFlush) {
        self.tlb.flush(flush);
        if let Some(paranoia) = &mut self.paranoia {
            paranoia.flushed(flush);
        }
    }
}

/// A vCPU. Aligned so that two share no cache line, nor a pair of lines that is prefetched together.
#[repr(align(128))]
pub(crate) struct Cpu {
    pub(crate) id: CpuId,
    /// The machine's number, unique in the process.
    pub(crate) machine: u64,
    pub(crate) door: Door<Cached>,
    pub(crate) counters: CpuCounters,
    /// Whether a [`Vcpu`](crate::Vcpu) handle exists.
    claimed: AtomicBool,
    /// Pinned sections that the owner is in. So wide that pins which are leaked one after the other do not
    /// overflow it.
    pins: Cell<u64>,
    /// Whether the owner is inside. Repeats what the door says, at less cost.
    inside: Cell<bool>,
    /// How often the current tables were set.
    activations: Cell<u64>,
    /// The root of the current tables. Repeats what the door guards.
    root: Cell<Option<Pfn>>,
}

// SAFETY: the cells are touched only through `Owner`, i.e. by the thread that owns the CPU; `Door` orders one
// owner's accesses before the next one's (release in `disown`, acquire in `try_own`).
unsafe impl Sync for Cpu {}

impl Cpu {
    pub(crate) fn new(id: CpuId, machine: u64, paranoid: bool) -> Self {
        let paranoia = paranoid.then(Box::default);
        Self {
            id,
            machine,
            door: Door::new(Cached { current: None, tlb: Tlb::new(), paranoia }),
            counters: CpuCounters::default(),
            claimed: AtomicBool::new(false),
            pins: Cell::new(0),
            inside: Cell::new(false),
            activations: Cell::new(0),
            root: Cell::new(None),
        }
    }

    /// Reserves the CPU for one handle, unless it has one.
    pub(crate) fn claim(&self) -> bool {
        !self.claimed.swap(true, Ordering::Acquire)
    }

    /// The handle is gone. Pairs with [`claim`](Self::claim).
    pub(crate) fn unclaim(&self) {
        self.claimed.store(false, Ordering::Release);
    }

    /// Whether a handle exists now.
    pub(crate) fn is_claimed(&self) -> bool {
        self.claimed.load(Ordering::Relaxed)
    }
}

impl AsRef<CpuCounters> for Cpu {
    fn as_ref(&self) -> &CpuCounters {
        &self.counters
    }
}

impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cpu").field("id", &self.id).field("door", &self.door).finish_non_exhaustive()
    }
}

/// The CPUs of one machine.
#[derive(Debug)]
pub(crate) struct Cpus {
    /// The machine's number.
    machine: u64,
    all: Box<[Cpu]>,
}

impl Cpus {
    pub(crate) fn new(count: usize, machine: u64, paranoid: bool) -> Self {
        let all = (0..count).filter_map(CpuId::new).map(|id| Cpu::new(id, machine, paranoid)).collect();
        Self { machine, all }
    }
}

impl Deref for Cpus {
    type Target = [Cpu];

    #[inline]
    fn deref(&self) -> &[Cpu] {
        &self.all
    }
}

/// Proof that the calling thread owns a CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner<'c> {
    cpu: &'c Cpu,
    not_send: PhantomData<*const ()>,
}

impl<'c> Owner<'c> {
    /// # Safety
    ///
    /// The calling thread owns `cpu` whenever it uses the result. (While it lends the CPU it uses none.)
    #[inline]
    pub(crate) unsafe fn assume(cpu: &'c Cpu) -> Self {
        Self { cpu, not_send: PhantomData }
    }

    #[inline]
    pub(crate) fn cpu(self) -> &'c Cpu {
        self.cpu
    }

    #[inline]
    pub(crate) fn is_pinned(self) -> bool {
        self.cpu.pins.get() > 0
    }

    /// Starts a pinned section, outside.
    #[inline]
    pub(crate) fn pin(self) {
        let pins = self.cpu.pins.get();
        if pins == 0 {
            self.leave_guest();
        }
        self.cpu.pins.set(pins + 1);
        lock_order::pinned();
    }

    /// Ends a pinned section and returns whether it was the last.
    ///
    /// # Panics
    ///
    /// When there was none.
    #[inline]
    pub(crate) fn unpin(self) -> bool {
        let pins = self.cpu.pins.get();
        if pins == 0 {
            self.is_not_pinned();
        }
        self.cpu.pins.set(pins - 1);
        lock_order::unpinned();
        pins == 1
    }

    #[cold]
    fn is_not_pinned(self) -> ! {
        panic!("a pin is dropped on {}, which is not pinned", self.cpu.id)
    }

    /// Calls `action` in what nested pins take for a pinned section, but without leaving guest mode.
    pub(crate) fn while_inside_pinned<R>(self, action: impl FnOnce() -> R) -> R {
        struct Unpin<'c>(&'c Cell<u64>);
        impl Drop for Unpin<'_> {
            fn drop(&mut self) {
                self.0.set(self.0.get() - 1);
                lock_order::unpinned();
            }
        }
        self.cpu.pins.set(self.cpu.pins.get() + 1);
        lock_order::pinned();
        let _unpin = Unpin(&self.cpu.pins);
        action()
    }

    #[inline]
    pub(crate) fn is_inside(self) -> bool {
        self.cpu.inside.get()
    }

    /// Notes that the owner went inside together with becoming the owner.
    #[inline]
    pub(crate) fn entered(self) {
        self.cpu.inside.set(true);
    }

    /// Goes inside, unless there already. Mail is left for [`serve_mail`](Self::serve_mail).
    #[inline]
    pub(crate) fn enter_guest(self) {
        if !self.is_inside() {
            // SAFETY: this thread owns the CPU and is outside.
            unsafe { self.cpu.door.enter() };
            self.cpu.inside.set(true);
        }
    }

    /// Goes outside, unless there already.
    #[inline]
    pub(crate) fn leave_guest(self) {
        if self.cpu.inside.replace(false) {
            // SAFETY: this thread owns the CPU and is inside; references to the cache live only within
            // `translate` and `serve_mail`, which do not call out while they hold one.
            unsafe { self.cpu.door.exit() };
        }
    }

    /// Does what the mailbox asks for. The owner is inside.
    #[inline]
    pub(crate) fn serve_mail(self) {
        if self.cpu.door.has_mail() {
            debug_assert!(self.is_inside());
            // SAFETY: inside, and no other reference to the cache lives: see `leave_guest`.
            self.cpu.door.serve(unsafe { self.cpu.door.cache() });
        }
    }

    /// Ends the ownership, from inside or outside.
    #[inline]
    pub(crate) fn disown(self) {
        if self.cpu.inside.replace(false) {
            // SAFETY: as in `leave_guest`.
            unsafe { self.cpu.door.exit_and_disown() };
        } else {
            // SAFETY: this thread owns the CPU and is outside.
            unsafe { self.cpu.door.disown() };
        }
    }

    /// How often the current tables were set. If the number differs from an earlier one, the tables may
    /// differ too.
    #[inline]
    pub(crate) fn activations(self) -> u64 {
        self.cpu.activations.get()
    }

    /// The root of the current tables.
    pub(crate) fn root(self) -> Option<Pfn> {
        self.cpu.root.get()
    }

    /// Sets the current tables. The owner is outside.
    pub(crate) fn activate(self, current: Option<(Pfn, Asid)>) {
        self.cpu.root.set(current.map(|(root, _)| root));
        self.cpu.activations.set(self.cpu.activations.get() + 1);
        self.cpu.door.hold(|cached| {
            cached.current = current;
            if let Some((_, Asid::NONE)) = current {
                // The tag is shared, so what the last space left under it must not be used.
                cached.apply(TlbFlush::Space { asid: Asid::NONE });
            }
        });
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Hazard: safe code leaks pins until their count is zero again, and the CPU of those that live is given
    /// away.
    #[test]
    fn leaked_pins_keep_the_cpu_pinned() {
        let cpus = Cpus::new(1, 1, false);
        let cpu = &cpus[0];
        assert!(cpu.door.try_own());
        // SAFETY: this thread owns it.
        let owner = unsafe { Owner::assume(cpu) };
        cpu.pins.set(u64::from(u32::MAX));
        owner.pin();
        assert!(owner.is_pinned());
        assert!(!owner.unpin());
    }
}

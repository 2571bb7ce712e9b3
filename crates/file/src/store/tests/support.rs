//! What the tests share: a machine that is nothing but CPUs, and nodes on the heap.

use crate::source::{NodeSource, Reserve};
use crate::{Narrow, Wide};
use quire_arch::paging::invented::Invented3;
use quire_arch::{Asid, CpuId, CpuMask, Execution, Pfn, PfnRange, Pin, Platform, RamClaim, TlbFlush};
use quire_frame::AllocError;
use quire_sync::{CachePadded, Epoch, EpochSlot, PerCpu, Stamp};
use std::boxed::Box;
use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::vec::Vec;

/// One CPU of a machine without memory. Each thread of a test has its own, so that a [`Pin`] tells them
/// apart.
pub(crate) struct Cpu(pub(crate) usize);

impl Execution for Cpu {
    #[cfg(not(loom))]
    fn relax(_attempt: u32) {
        std::thread::yield_now();
    }

    #[cfg(loom)]
    fn relax(_attempt: u32) {
        loom::thread::yield_now();
    }
}

// SAFETY: there is no RAM and no TLB to be wrong about, and each thread makes a CPU of its own number.
unsafe impl Platform for Cpu {
    type Paging = Invented3;

    fn for_each_ram(&self, _visit: &mut dyn FnMut(PfnRange)) {}

    fn ram_claim(&self) -> &RamClaim {
        unreachable!("no RAM")
    }

    fn direct_map(&self, _pfn: Pfn) -> NonNull<u8> {
        NonNull::dangling()
    }

    fn cpu_count(&self) -> usize {
        self.0 + 1
    }

    fn pin_enter(&self) -> CpuId {
        CpuId::new(self.0).expect("tests have few CPUs")
    }

    unsafe fn pin_exit(&self) {}

    fn flush_local(&self, _pin: &Pin<'_, Self>, _flush: TlbFlush) {}

    fn shootdown(&self, _pin: &Pin<'_, Self>, _cpus: &CpuMask, _flush: TlbFlush) {}

    unsafe fn activate(&self, _pin: &Pin<'_, Self>, _root: Option<(Pfn, Asid)>) {}

    fn asid_count(&self) -> u32 {
        1
    }

    fn now(&self) -> u64 {
        0
    }

    fn park(&self, _key: usize, _still: &mut dyn FnMut() -> bool) {}

    fn unpark(&self, _key: usize) {}
}

/// Epochs for `cpus` CPUs. The slots are leaked.
pub(super) fn epoch(cpus: usize) -> Epoch {
    let memory = Box::leak(Box::<[CachePadded<EpochSlot>]>::new_uninit_slice(cpus));
    // SAFETY: the block has the size and alignment that `init` asks for; it is leaked, so it is never freed.
    Epoch::new(unsafe { PerCpu::init(NonNull::from(memory).cast(), cpus, |_| EpochSlot::default()) })
}

/// A node's memory.
#[derive(Clone, Copy, PartialEq)]
enum Memory {
    Wide(NonNull<Wide>),
    Narrow(NonNull<Narrow>),
}

impl Memory {
    /// Frees it. Poison first, for a reader that still uses it.
    ///
    /// # Safety
    ///
    /// It came from [`Nodes`], and nothing uses it.
    unsafe fn free(self) {
        // SAFETY: it came from a box, and only here it becomes one again.
        unsafe {
            match self {
                Self::Wide(node) => {
                    node.write_bytes(0xaa, 1);
                    drop(Box::from_raw(node.cast::<MaybeUninit<Wide>>().as_ptr()));
                }
                Self::Narrow(node) => {
                    node.write_bytes(0xaa, 1);
                    drop(Box::from_raw(node.cast::<MaybeUninit<Narrow>>().as_ptr()));
                }
            }
        }
    }
}

/// Nodes on the heap. One that is retired is freed when its epoch has passed.
pub(super) struct Nodes {
    pub(super) epoch: Epoch,
    retired: RefCell<Vec<(Stamp, Memory)>>,
    /// Nodes that are allocated and not retired.
    pub(super) out: Cell<usize>,
    /// How many more allocations succeed; `None` is without limit.
    pub(super) budget: Cell<Option<usize>>,
}

// SAFETY: the cells are used by the writer's thread alone; the rest is shared by its own means.
unsafe impl Sync for Nodes {}
// SAFETY: the nodes lie on the heap, and nothing here belongs to a thread.
unsafe impl Send for Nodes {}

impl Nodes {
    pub(super) fn new(cpus: usize) -> Self {
        Self { epoch: epoch(cpus), retired: RefCell::default(), out: Cell::new(0), budget: Cell::new(None) }
    }

    /// For the stores that are locked with these nodes: all of a test.
    pub(super) fn reserve(&self) -> Reserve<'_, Self> {
        // SAFETY: a test has nodes of one source.
        unsafe { Reserve::new(self) }
    }

    fn spend(&self) -> Result<(), AllocError> {
        if let Some(budget) = self.budget.get() {
            self.budget.set(Some(budget.checked_sub(1).ok_or(AllocError::OutOfMemory)?));
        }
        self.out.set(self.out.get() + 1);
        Ok(())
    }

    fn retire(&self, memory: Memory) {
        self.out.set(self.out.get() - 1);
        self.retired.borrow_mut().push((self.epoch.stamp(), memory));
        self.reap();
    }

    /// Lets epochs pass as far as readers allow, and frees what is past its own.
    pub(super) fn reap(&self) {
        let _ = self.epoch.advance() && self.epoch.advance();
        self.retired.borrow_mut().retain(|&(stamp, memory)| {
            let passed = self.epoch.has_passed(stamp);
            if passed {
                // SAFETY: no reader can have it any more.
                unsafe { memory.free() };
            }
            !passed
        });
    }
}

// SAFETY: nodes are fresh heap blocks, and are freed when their epoch has passed.
unsafe impl NodeSource for Nodes {
    fn allocate_wide(&self) -> Result<NonNull<Wide>, AllocError> {
        self.spend()?;
        Ok(NonNull::from(Box::leak(Box::<Wide>::new_uninit())).cast())
    }

    fn allocate_narrow(&self) -> Result<NonNull<Narrow>, AllocError> {
        self.spend()?;
        Ok(NonNull::from(Box::leak(Box::<Narrow>::new_uninit())).cast())
    }

    unsafe fn retire_wide(&self, node: NonNull<Wide>) {
        self.retire(Memory::Wide(node));
    }

    unsafe fn retire_narrow(&self, node: NonNull<Narrow>) {
        self.retire(Memory::Narrow(node));
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for (_, memory) in self.retired.borrow_mut().drain(..) {
            // SAFETY: there are no readers any more.
            unsafe { memory.free() };
        }
        if !std::thread::panicking() {
            assert_eq!(self.out.get(), 0, "nodes leaked");
        }
    }
}

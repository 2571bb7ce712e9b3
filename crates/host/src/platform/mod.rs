//! The machine as the memory manager sees it, and the handles of its vCPUs.

mod vcpu;

pub use vcpu::{Vcpu, VcpuError};

use crate::config::{Contents, HostConfig, HostError};
use crate::counters::{Event, HostCounters};
use crate::cpu::{Owner, current};
use crate::door::Cache;
use crate::machine::{FrameQuery, MachineId, SharedMachine};
use crate::paranoid::{self, StaleHit};
use crate::shootdown::{count_kind, shoot};
use crate::threads::yield_now;
use crate::wait::may_spin;
use crate::zeroing::{PAST_CACHES, zero_past_caches};
use crate::{give_way, lock_order};
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use quire_arch::paging::X86_64Level4;
use quire_arch::{
    Asid, CachedTranslation, CpuId, CpuMask, Execution, LockClass, NodeId, Order, PAGE_SIZE, PagingFormat,
    Pfn, PfnRange, Pin, Platform, RamClaim, TlbFlush,
};
use std::sync::Arc;
use std::time::Duration;

/// A machine in this process that walks page tables of format `F`. Clones are handles of the same machine.
pub struct HostPlatform<F: PagingFormat = X86_64Level4> {
    machine: Arc<SharedMachine>,
    format: PhantomData<fn() -> F>,
}

impl<F: PagingFormat> HostPlatform<F> {
    /// Builds the machine.
    pub fn new(config: &HostConfig) -> Result<Self, HostError> {
        let kernel_half = F::user_entries(F::root_level())..F::entries(F::root_level());
        if let Some(&(index, _)) = config.kernel_half.iter().find(|(index, _)| !kernel_half.contains(index)) {
            return Err(HostError::KernelHalf { index, kernel_half });
        }
        Ok(Self { machine: Arc::new(SharedMachine::new(config)?), format: PhantomData })
    }

    /// The machine's number: that of all its handles, and of no other machine.
    #[inline]
    pub fn id(&self) -> MachineId {
        self.machine.id
    }

    /// The handle of vCPU `number`. There is at most one at a time.
    pub fn vcpu(&self, number: usize) -> Result<Vcpu<F>, VcpuError> {
        Vcpu::claim(self.clone(), number)
    }

    /// Whether both are handles of the same machine. Models have no device that asks.
    #[cfg(not(shuttle))]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.machine, &other.machine)
    }

    /// The counters, summed over the CPUs. Exact when the machine is quiet.
    pub fn counters(&self) -> HostCounters {
        HostCounters::sum(&self.machine.cpus)
    }

    /// Sets paranoid mode's query whether a frame is free, or (with `None`) removes it.
    ///
    /// The query is called in the middle of a program access, by a CPU that serves no shootdown meanwhile: it
    /// must only read atomics, take no lock, and not keep the machine alive (hold a `Weak`).
    pub fn set_frame_query(&self, query: Option<FrameQuery>) {
        self.machine.set_frame_query(query);
    }

    /// Removes and returns the uses of stale translations that were never flushed; see [`paranoid`]. To be
    /// called when the machine is quiet: no call into the memory manager is under way.
    #[must_use = "each report is an error of the memory manager"]
    pub fn check_suspects(&self) -> Vec<StaleHit> {
        // Pinned, so that the caller's own CPU is outside.
        let _pin = self.pin();
        self.machine
            .cpus
            .iter()
            .flat_map(|cpu| {
                cpu.door.hold(|cached| match &mut cached.paranoia {
                    Some(paranoia) => paranoia.convict(cached.current),
                    None => Vec::new(),
                })
            })
            .collect()
    }

    #[inline]
    pub(crate) fn machine(&self) -> &SharedMachine {
        &self.machine
    }

    /// The CPU that the caller is pinned on.
    ///
    /// # Panics
    ///
    /// When the pin is another machine's.
    #[inline]
    fn pinned<'p>(&'p self, pin: &'p Pin<'_, Self>) -> Owner<'p> {
        assert!(Arc::ptr_eq(&self.machine, &pin.platform().machine), "the pin is another machine's");
        // SAFETY: a pin proves that its thread, which is the calling one since pins do not move between
        // threads, owns the CPU.
        unsafe { Owner::assume(&self.machine.cpus[pin.cpu().index()]) }
    }
}

impl<F: PagingFormat> Execution for HostPlatform<F> {
    #[inline]
    fn relax(attempt: u32) {
        // Nothing has to be served here: a pinned waiter is outside, where initiators flush it themselves,
        // and any other goes outside when the wait grows long.
        if may_spin(attempt) {
            core::hint::spin_loop();
        } else {
            current::lend(yield_now);
        }
    }

    fn lock_taken(class: LockClass) {
        give_way::chance();
        lock_order::taken(class);
    }

    fn lock_dropped(class: LockClass) {
        lock_order::dropped(class);
        give_way::chance();
    }
}

// SAFETY: the ranges are checked to be disjoint and belong to this machine's own mapping, which the direct
// map covers linearly; all handles share the machine and so its claim; `pin` makes the thread the CPU's only
// owner until the section ends; `shootdown` is argued in its module.
unsafe impl<F: PagingFormat> Platform for HostPlatform<F> {
    type Paging = F;

    fn for_each_ram(&self, visit: &mut dyn FnMut(PfnRange)) {
        self.machine.arena.ranges().iter().copied().for_each(visit);
    }

    fn ram_claim(&self) -> &RamClaim {
        &self.machine.ram_claim
    }

    fn node_count(&self) -> usize {
        self.machine.nodes()
    }

    fn node_of_ram(&self, start: Pfn) -> NodeId {
        self.machine.node_of_ram(start)
    }

    #[inline]
    fn node_of_cpu(&self, cpu: CpuId) -> NodeId {
        self.machine.node_of_cpu(cpu)
    }

    #[inline]
    fn direct_map(&self, pfn: Pfn) -> NonNull<u8> {
        debug_assert!(self.machine.arena.contains(pfn, 1), "{pfn:?} is not in RAM");
        self.machine.arena.direct(pfn)
    }

    #[inline]
    unsafe fn zero_user(&self, pfn: Pfn, order: Order) {
        match &self.machine.written {
            Some(written) => written.set(pfn, order, false),
            // SAFETY: the caller's contract.
            None if self.machine.contents == Contents::Bytes => unsafe { self.zero(pfn, order) },
            None => {}
        }
    }

    unsafe fn zero_ahead(&self, pfn: Pfn, order: Order) {
        if order < PAST_CACHES || self.machine.contents != Contents::Bytes {
            // SAFETY: the caller's contract.
            unsafe { self.zero_user(pfn, order) };
        } else {
            // SAFETY: a block in RAM is contiguous in the direct map, and the caller owns it; frames begin at
            // a border of 4 KiB.
            unsafe { zero_past_caches(self.direct_map(pfn).as_ptr(), order.bytes() as usize) };
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn expect_zero(&self, pfn: Pfn) {
        use core::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        let start = self.direct_map(pfn).as_ptr();
        // For writing, so that the stores to come own their lines already.
        for line in (0..PAGE_SIZE as usize).step_by(64) {
            // SAFETY: a prefetch touches nothing that a program can see, wherever it points.
            unsafe {
                _mm_prefetch::<_MM_HINT_ET0>(start.wrapping_add(line).cast());
            }
        }
    }

    #[inline]
    unsafe fn copy_user(&self, from: Pfn, to: Pfn, order: Order) {
        match &self.machine.written {
            Some(written) => written.copy(from, to, order),
            // SAFETY: the caller's contract.
            None if self.machine.contents == Contents::Bytes => unsafe { self.copy(from, to, order) },
            None => {}
        }
    }

    #[inline]
    unsafe fn fill_user(&self, pfn: Pfn, order: Order) {
        if let Some(written) = &self.machine.written {
            written.set(pfn, order, true);
        }
    }

    #[inline]
    fn knows_zeros(&self, pfn: Pfn, order: Order) -> Option<bool> {
        match self.machine.contents {
            Contents::Bytes => None,
            Contents::Writes => self.machine.written.as_ref().map(|written| written.is_zero(pfn, order)),
            Contents::Unknown => Some(false),
        }
    }

    fn cpu_count(&self) -> usize {
        self.machine.cpus.len()
    }

    #[inline]
    fn pin_enter(&self) -> CpuId {
        current::pin(&self.machine.cpus)
    }

    #[inline(always)]
    unsafe fn pin_exit(&self) {
        current::unpin(&self.machine.cpus);
    }

    fn flush_local(&self, pin: &Pin<'_, Self>, flush: TlbFlush) {
        let cpu = self.pinned(pin).cpu();
        cpu.counters.add(Event::LocalFlush);
        count_kind(&cpu.counters, flush);
        cpu.door.hold(|cached| cached.apply(flush));
    }

    fn shootdown(&self, pin: &Pin<'_, Self>, cpus: &CpuMask, flush: TlbFlush) {
        let own = self.pinned(pin).cpu().id;
        shoot(&self.machine.cpus, own, cpus, flush);
    }

    unsafe fn activate(&self, pin: &Pin<'_, Self>, root: Option<(Pfn, Asid)>) {
        if let Some((_, asid)) = root {
            assert!(asid.0 < self.machine.asids, "{asid:?} is activated; there are {}", self.machine.asids);
        }
        let owner = self.pinned(pin);
        owner.cpu().counters.add(Event::Activate);
        owner.activate(root);
        // See `shootdown`, "not at all".
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    fn init_root(&self, _root: Pfn, kernel_half: &mut [u64]) {
        let user = F::user_entries(F::root_level());
        for &(index, entry) in &self.machine.kernel_half {
            if let Some(place) = kernel_half.get_mut(index - user) {
                *place = entry;
            }
        }
    }

    fn asid_count(&self) -> u32 {
        self.machine.asids
    }

    fn now(&self) -> u64 {
        self.machine.now()
    }

    fn park(&self, key: usize, still: &mut dyn FnMut() -> bool) {
        assert!(!current::is_pinned(&self.machine.cpus), "a thread goes to sleep in a pinned section");
        self.machine.parking.park(key, still);
    }

    fn park_for(&self, key: usize, ns: u64, still: &mut dyn FnMut() -> bool) {
        assert!(!current::is_pinned(&self.machine.cpus), "a thread goes to sleep in a pinned section");
        self.machine.parking.park_for(key, Duration::from_nanos(ns), still);
    }

    fn unpark(&self, key: usize) {
        self.machine.parking.unpark(key);
    }

    fn for_each_cached_translation(&self, visit: &mut dyn FnMut(CachedTranslation)) {
        // Pinned, so that the caller's own CPU is outside.
        let _pin = self.pin();
        for cpu in self.machine.cpus.iter() {
            let all: Vec<CachedTranslation> = cpu
                .door
                .hold(|cached| cached.tlb.iter().map(|slot| paranoid::describe(slot, cpu.id)).collect());
            all.into_iter().for_each(&mut *visit);
        }
    }
}

impl<F: PagingFormat> Clone for HostPlatform<F> {
    fn clone(&self) -> Self {
        Self { machine: Arc::clone(&self.machine), format: PhantomData }
    }
}

impl<F: PagingFormat> fmt::Debug for HostPlatform<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostPlatform").field("format", &F::NAME).field("machine", &self.machine).finish()
    }
}

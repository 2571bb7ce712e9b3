//! The machine: the interface that an embedder implements, and its types.
//!
//! [`Platform`] is the whole interface to hardware, and states for each of its functions what may be assumed.
//! docs/embedding.md explains it for a kernel.

#[doc(inline)]
pub use quire_arch::paging::{X86_64Level4, X86_64Level5};
#[doc(inline)]
pub use quire_arch::{
    Access, Asid, CachedTranslation, CpuId, CpuMask, Entry, Execution, Leaf, LeafFlags, Level, LockClass,
    MAX_CPUS, MAX_NODES, NodeId, Order, PAGE_SHIFT, PAGE_SIZE, PagingFormat, Pfn, PfnRange, PhysAddr, Pin,
    RamClaim, TlbFlush, VirtAddr, VirtRange,
};

/// For the project's own tests and tools.
#[doc(hidden)]
pub use quire_arch::{SwapEntry, paging::X86_64};

/// The machine. The smallest one: a CPU without a TLB, and 4 MiB of RAM. A real CPU walks the tables by
/// itself; here `access` does: it walks, sets the bits that an MMU sets, and calls `Space::fault` where it
/// finds no translation.
///
/// ```
/// use quire_mm::platform::*;
/// use quire_mm::space::{FaultError, MapRequest, Protection, Space};
/// use std::alloc::Layout;
/// use std::ptr::NonNull;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// const FRAMES: u64 = 1024;
///
/// struct Small {
///     ram: NonNull<u8>,
///     claim: RamClaim,
///     ticks: AtomicU64,
/// }
///
/// // SAFETY: the RAM is used by the rules of the memory management.
/// unsafe impl Send for Small {}
/// // SAFETY: the RAM is used by the rules of the memory management, by any thread.
/// unsafe impl Sync for Small {}
///
/// impl Execution for Small {
///     fn relax(_attempt: u32) {
///         std::hint::spin_loop();
///     }
/// }
///
/// // SAFETY: the one range of RAM is allocated for it, and its claim lies beside it; there is one CPU,
/// // one thread, and no TLB.
/// unsafe impl Platform for Small {
///     type Paging = X86_64Level4;
///
///     fn for_each_ram(&self, visit: &mut dyn FnMut(PfnRange)) {
///         visit(PfnRange::new(Pfn(256), Pfn(256 + FRAMES)));
///     }
///     fn ram_claim(&self) -> &RamClaim {
///         &self.claim
///     }
///     fn direct_map(&self, pfn: Pfn) -> NonNull<u8> {
///         // SAFETY: called for frames in RAM only.
///         unsafe { self.ram.add(((pfn.0 - 256) * PAGE_SIZE) as usize) }
///     }
///     fn cpu_count(&self) -> usize {
///         1
///     }
///     fn pin_enter(&self) -> CpuId {
///         CpuId::default() // a kernel switches interrupts off
///     }
///     unsafe fn pin_exit(&self) {}
///     fn flush_local(&self, _pin: &Pin<'_, Self>, _flush: TlbFlush) {}
///     fn shootdown(&self, _pin: &Pin<'_, Self>, _cpus: &CpuMask, _flush: TlbFlush) {}
///     unsafe fn activate(&self, _pin: &Pin<'_, Self>, _root: Option<(Pfn, Asid)>) {}
///     fn asid_count(&self) -> u32 {
///         1
///     }
///     fn now(&self) -> u64 {
///         self.ticks.fetch_add(1, Ordering::Relaxed)
///     }
///     fn park(&self, _key: usize, still: &mut dyn FnMut() -> bool) {
///         assert!(!still(), "nothing would wake the only thread");
///     }
///     fn unpark(&self, _key: usize) {}
/// }
///
/// /// The word at `addr`, as the program's CPU reaches it for `access`.
/// fn access<'s>(space: &'s Space<'_, Small>, addr: VirtAddr, access: Access) -> Result<&'s AtomicU64,
/// FaultError> {
///     let small = space.platform();
///     // SAFETY: an aligned word in RAM, which is accessed by atomics only.
///     let word = |pfn, offset: u64| unsafe { small.direct_map(pfn).add(offset as usize).cast::<AtomicU64>().as_ref() };
///     'again: loop {
///         let (mut frame, mut level) = (space.root(), X86_64Level4::root_level());
///         loop {
///             let entry = word(frame, X86_64Level4::index(addr, level) as u64 * 8);
///             let raw = entry.load(Ordering::Acquire);
///             match (X86_64Level4::decode(raw, level), level.down()) {
///                 (Entry::Table(table), Some(below)) => (frame, level) = (table, below),
///                 (Entry::Leaf(leaf), _) if leaf.flags.contains(access.needs()) => {
///                     let dirty = if access == Access::Write { X86_64Level4::DIRTY } else { 0 };
///                     let used = raw | X86_64Level4::ACCESSED | dirty;
///                     if entry.compare_exchange(raw, used, Ordering::AcqRel, Ordering::Relaxed).is_err() {
///                         continue 'again;
///                     }
///                     let offset = addr.0 % X86_64Level4::entry_bytes(level); // a leaf may be of 2 MiB
///                     return Ok(word(leaf.pfn.offset(offset >> PAGE_SHIFT), offset % PAGE_SIZE));
///                 }
///                 _ => {
///                     space.fault(addr, access)?; // the CPU found no translation
///                     continue 'again;
///                 }
///             }
///         }
///     }
/// }
///
/// let layout = Layout::from_size_align((FRAMES * PAGE_SIZE) as usize, PAGE_SIZE as usize)?;
/// // SAFETY: the size is not 0.
/// let ram = NonNull::new(unsafe { std::alloc::alloc(layout) }).ok_or("no memory")?;
/// let small = Small { ram, claim: RamClaim::new(), ticks: AtomicU64::new(0) };
/// let memory = quire_mm::Memory::new(small, Default::default())?;
/// let space = memory.create_space()?;
/// let addr = space.mmap(&MapRequest::anonymous(PAGE_SIZE, Protection::READ | Protection::WRITE))?;
/// space.activate(&memory.platform().pin()); // before its program runs
/// access(&space, addr, Access::Write)?.store(42, Ordering::Relaxed);
/// assert_eq!(access(&space, addr, Access::Read)?.load(Ordering::Relaxed), 42);
/// assert!(memory.audit(|violation| println!("{violation}")).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
#[doc(inline)]
pub use quire_arch::Platform;

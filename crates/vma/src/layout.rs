//! The layout of an address space, and its limits.

use quire_arch::{PAGE_SIZE, VirtAddr, VirtRange};
use quire_sync::atomic::AtomicU64;
use quire_sync::atomic::raw::Ordering;

/// Pages that stay free below a stack (Linux's `stack_guard_gap`, 1 MiB).
pub const STACK_GUARD_GAP: u64 = 256 * PAGE_SIZE;

/// The fixed points of an address space. A program loader decides them; they do not change afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Free ranges are searched from here downwards.
    pub mmap_base: VirtAddr,
    /// Free ranges are searched from here upwards, if `top_down` is off or finds nothing.
    pub mmap_legacy_base: VirtAddr,
    /// Whether new mappings go below existing ones (the usual layout).
    pub top_down: bool,
    /// The lowest address that a mapping may have without FIXED, and that a stack grows down to: the larger
    /// one of `vm.mmap_min_addr` and what a security module was built with (`CONFIG_LSM_MMAP_MIN_ADDR`).
    pub mmap_min: VirtAddr,
    /// The lowest address that a mapping may have with FIXED (`vm.mmap_min_addr`), unless the caller has
    /// [`Rights::MAP_LOW`](crate::Rights::MAP_LOW).
    pub fixed_min: VirtAddr,
    /// Start of the heap that `brk` moves the end of.
    pub brk_start: VirtAddr,
    /// Initial program break; need not be page aligned.
    pub brk: VirtAddr,
    /// Size of the program's data segment in bytes, which counts with the heap for `RLIMIT_DATA`.
    pub data_bytes: u64,
}

impl Layout {
    /// A usual layout below `user_end`: mappings from 128 MiB below the top downwards, the heap at 1 GiB.
    #[inline]
    pub const fn standard(user_end: VirtAddr) -> Self {
        let gap = if user_end.0 > 8 << 30 { 128 << 20 } else { user_end.0 / 64 };
        let brk = VirtAddr(if user_end.0 > 8 << 30 { 1 << 30 } else { user_end.0 / 8 });
        Self {
            mmap_base: VirtAddr((user_end.0 - gap) & !(PAGE_SIZE - 1)),
            mmap_legacy_base: VirtAddr((user_end.0 / 3).next_multiple_of(PAGE_SIZE)),
            top_down: true,
            mmap_min: VirtAddr(65536),
            fixed_min: VirtAddr(PAGE_SIZE),
            brk_start: brk,
            brk,
            data_bytes: 0,
        }
    }

    /// The range that is searched downwards.
    #[doc(hidden)]
    #[inline]
    pub fn top_down_window(&self) -> VirtRange {
        VirtRange::new(self.mmap_min.max(VirtAddr(PAGE_SIZE)), self.mmap_base)
    }
}

/// How much an address space may hold. `u64::MAX` means no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of mappings (`RLIMIT_AS`).
    pub address_space: u64,
    /// Bytes of private writable mappings (`RLIMIT_DATA`).
    pub data: u64,
    /// Bytes of one growing stack (`RLIMIT_STACK`).
    pub stack: u64,
    /// Bytes of locked memory (`RLIMIT_MEMLOCK`), unless the caller has
    /// [`Rights::LOCK`](crate::Rights::LOCK).
    pub locked: u64,
    /// Number of mappings (`vm.max_map_count`).
    pub mappings: u64,
}

impl Default for Limits {
    /// Linux's defaults: only the stack (8 MiB), locked memory (8 MiB) and the number of mappings are
    /// limited.
    fn default() -> Self {
        Self { address_space: u64::MAX, data: u64::MAX, stack: 8 << 20, locked: 8 << 20, mappings: 65530 }
    }
}

/// [`Limits`] that can be changed while they are read.
#[derive(Debug)]
pub struct AtomicLimits {
    address_space: AtomicU64,
    data: AtomicU64,
    stack: AtomicU64,
    locked: AtomicU64,
    mappings: AtomicU64,
}

impl AtomicLimits {
    /// Limits that are `limits` at first.
    #[inline]
    pub fn new(limits: Limits) -> Self {
        let new = Self {
            address_space: AtomicU64::new(0),
            data: AtomicU64::new(0),
            stack: AtomicU64::new(0),
            locked: AtomicU64::new(0),
            mappings: AtomicU64::new(0),
        };
        new.store(limits);
        new
    }

    /// The limits at this moment.
    #[inline]
    pub fn load(&self) -> Limits {
        Limits {
            address_space: self.address_space.load(Ordering::Relaxed),
            data: self.data.load(Ordering::Relaxed),
            stack: self.stack.load(Ordering::Relaxed),
            locked: self.locked.load(Ordering::Relaxed),
            mappings: self.mappings.load(Ordering::Relaxed),
        }
    }

    /// Changes them.
    #[inline]
    pub fn store(&self, limits: Limits) {
        self.address_space.store(limits.address_space, Ordering::Relaxed);
        self.data.store(limits.data, Ordering::Relaxed);
        self.stack.store(limits.stack, Ordering::Relaxed);
        self.locked.store(limits.locked, Ordering::Relaxed);
        self.mappings.store(limits.mappings, Ordering::Relaxed);
    }
}

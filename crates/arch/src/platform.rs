//! The interface to hardware: everything that touches a machine goes through [`Platform`], and nothing else
//! does.

use crate::addr::{VirtAddr, VirtRange};
use crate::cpu::{CpuId, CpuMask, NodeId};
use crate::order::Order;
use crate::paging::{Leaf, Level, PagingFormat};
use crate::pfn::{Pfn, PfnRange};
use crate::ram_claim::RamClaim;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;

/// The tag under which a TLB keeps the translations of one address space (x86's PCID).
///
/// [`Asid::NONE`] is shared by all spaces that got no tag of their own: making such a space current drops
/// every translation under that tag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub struct Asid(pub u32);

impl Asid {
    /// No tag of one's own.
    pub const NONE: Self = Self(0);
}

/// Translations that a TLB must drop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlbFlush {
    /// All translations of the space `asid` for addresses in `range`, of whatever page size, and anything
    /// cached of the tables above them.
    Range {
        /// The space.
        asid: Asid,
        /// The addresses.
        range: VirtRange,
    },
    /// All translations of one space.
    Space {
        /// The space.
        asid: Asid,
    },
    /// Everything.
    All,
}

/// A translation that some CPU's TLB holds, as reported to the auditor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CachedTranslation {
    /// Whose TLB.
    pub cpu: CpuId,
    /// The space it belongs to.
    pub asid: Asid,
    /// First address that it translates.
    pub addr: VirtAddr,
    /// The level of the entry that it was read from.
    pub level: Level,
    /// What it maps.
    pub leaf: Leaf,
}

/// The classes of locks, outermost first. A lock may be taken only while every lock held by the same thread
/// of execution is of an earlier class (or of the same class where docs/locking.md gives the order within
/// it).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum LockClass {
    /// khugepaged's scan position.
    Khugepaged,
    /// The set of swap devices: held while one is added or removed.
    SwapDevices,
    /// Moves between directories of one file system.
    Rename,
    /// An inode: the names in a directory, the size of a file; within the class a directory before those
    /// below it.
    Inode,
    /// An address space's mmap lock.
    Mmap,
    /// Whether folios of a file may be put into its cache, and be mapped.
    Invalidate,
    /// The mappings of a file.
    FileRmap,
    /// The anon_vmas of one family of processes.
    Rmap,
    /// What `stat` tells of an inode.
    InodeAttributes,
    /// The list of all spaces of a machine.
    Spaces,
    /// A name space of SysV shared memory: its table of segments.
    Segments,
    /// The list of all files of a machine.
    Files,
    /// A page table above the bottom level; within the class from the root down.
    UpperTable,
    /// A bottom-level page table.
    PteTable,
    /// The head lock of a large folio: its map count, and the entries that map it.
    Folio,
    /// The deferred split queues of all memcgs.
    DeferredSplit,
    /// The huge zero page: whether there is one.
    HugeZero,
    /// What a file has at each of its pages.
    FolioStore,
    /// A cluster: 512 slots of a swap device.
    SwapCluster,
    /// A swap device's lists of clusters.
    SwapLists,
    /// Which pages a compressed cache is writing back.
    CompressedFront,
    /// A slot's state on a device of compressed RAM.
    CompressedSlot,
    /// A pool of compressed pages.
    CompressedPool,
    /// The set of memcgs.
    Memcgs,
    /// The LRU lists of one memcg and node.
    Lru,
    /// A CPU's batch for the LRU lists.
    LruIncoming,
    /// Ranges of frames that go online and offline.
    Hotplug,
    /// A slab cache.
    Slab,
    /// Retired frames that wait for an epoch (the limbo).
    Limbo,
    /// A CPU's page lists.
    Pcp,
    /// A zone.
    Zone,
}

impl LockClass {
    /// Number of classes.
    pub const COUNT: usize = Self::Zone as usize + 1;
}

/// How code waits and how debug builds watch its locks. Split from [`Platform`] so that a lock needs no
/// machine.
///
/// So none of these has a `self`. A platform with state finds it as the code of a kernel finds its CPU's own
/// data: by a register (x86's `gs` base), by a thread-local variable, or in a `static`. Where several
/// machines of one type live in one program, what is found there says which machine the caller runs on.
///
/// Any of these may be called pinned or not, with locks held, and in an interrupt. None may call the memory
/// management.
pub trait Execution: 'static {
    /// Called in every spin loop, `attempt` counting up from 0. A platform pauses here, lets other threads
    /// run when the wait grows long, and serves shootdowns that other CPUs sent to this one: the waiter may
    /// hold interrupts off, and what it waits for may be held by the CPU that waits for its acknowledgement.
    fn relax(attempt: u32);

    /// A lock of `class` is about to be waited for. Debug builds check the order of classes here.
    #[inline]
    fn lock_taken(class: LockClass) {
        let _ = class;
    }

    /// A lock of `class` was released.
    #[inline]
    fn lock_dropped(class: LockClass) {
        let _ = class;
    }
}

/// A machine: RAM, CPUs, TLBs, time and a way to wait.
///
/// # Safety
///
/// Quire keeps its metadata in the platform's RAM, and relies on the platform's results when it frees memory.
/// An implementation guarantees that
/// - the ranges of [`for_each_ram`](Self::for_each_ram) are disjoint, page-granular, always the same, and
///   used by no other code while a `Memory` exists;
/// - [`ram_claim`](Self::ram_claim) is the same claim for all platforms whose ranges of RAM overlap, and for
///   one platform always the same;
/// - [`direct_map`](Self::direct_map) of a frame in RAM is page-aligned and valid for reads and writes of one
///   page, and consecutive frames are consecutive in memory, within a range and over the border of two
///   ranges of one node that touch (a `Memory` refuses to start if it finds them apart there);
/// - [`cpu_count`](Self::cpu_count) never changes, and the CPU of a [`Pin`] is below it;
/// - while a [`Pin`] lives, its CPU number belongs to no other thread of execution, and the thread stays on
///   it;
/// - [`shootdown`](Self::shootdown) returns only after no named CPU can use a translation that the flush
///   covers, unless it read it from the tables afterwards;
/// - [`init_root`](Self::init_root) writes no entry that leads to memory which a program must not reach and
///   could.
///
/// # What each function may assume
///
/// Every function may be called on any CPU, and on several at once, unless its text says otherwise. None may
/// call the memory management, and none may fail: one that cannot do its work stops the machine. *Pinned*
/// means between [`pin_enter`](Self::pin_enter) and [`pin_exit`](Self::pin_exit); *with locks held* means
/// spin locks, which are taken pinned only.
///
/// Interrupts: the memory management may be entered in an interrupt, or in what a kernel runs like one, by
/// functions that do not sleep: those of `Memory` and `Space` that take a [`Pin`], and
/// `Space::pin_page_fast`; and by what ends a request of a swap device (`Submitted`). A pin keeps interrupts
/// off, so such a call never meets a lock that its own CPU holds.
pub unsafe trait Platform: Execution + Sized + Send + Sync {
    /// The page-table format that the machine walks.
    type Paging: PagingFormat;

    /// Calls `visit` with every range of usable RAM.
    ///
    /// Called when a `Memory` is built and when it is audited; it may not take locks that `visit`'s caller
    /// could need, that is: none. The RAM may hold anything when the `Memory` is built. RAM that is in use by
    /// then, e.g. a kernel's image or its boot stack, must not be in these ranges.
    fn for_each_ram(&self, visit: &mut dyn FnMut(PfnRange));

    /// Which `Memory` has the RAM: one [`RamClaim`], kept beside what describes the RAM. Where several values
    /// of this type are handles of one machine (copies, clones, values of a type without fields) all show the
    /// same claim.
    ///
    /// Called when a `Memory` is built, which fails if another has the RAM, and when that is dropped. After
    /// that a new one may be built. The RAM then holds anything; CPUs may still have a root of the earlier
    /// one, and TLBs its translations, but no program runs on them, as after an exit.
    fn ram_claim(&self) -> &RamClaim;

    /// Number of NUMA nodes, at least 1; their numbers are 0 up to this.
    #[inline]
    fn node_count(&self) -> usize {
        1
    }

    /// The node of the range of RAM that begins at `start`. Frames of one page block belong to one node.
    /// Called when a `Memory` is built.
    #[inline]
    fn node_of_ram(&self, start: Pfn) -> NodeId {
        let _ = start;
        NodeId::FIRST
    }

    /// The node that `cpu` is near to; always the same. Called pinned, on every allocation.
    #[inline]
    fn node_of_cpu(&self, cpu: CpuId) -> NodeId {
        let _ = cpu;
        NodeId::FIRST
    }

    /// Where the first byte of frame `pfn` can be reached; always the same place, on every CPU and whatever
    /// space is current. Called for frames in RAM only, often, and anywhere: pinned or not, with locks held,
    /// in interrupts.
    fn direct_map(&self, pfn: Pfn) -> NonNull<u8>;

    /// Fills the block with zeros. Pinned or not.
    ///
    /// # Safety
    ///
    /// The block lies in RAM and the caller owns it.
    unsafe fn zero(&self, pfn: Pfn, order: Order) {
        // SAFETY: a block in RAM is contiguous in the direct map (contract of `Platform`) and the caller owns
        // it.
        unsafe { self.direct_map(pfn).as_ptr().write_bytes(0, order.bytes() as usize) };
    }

    /// Fills a block of a program's memory with zeros. A platform whose programs' memory has no contents may
    /// leave its bytes unchanged: the memory management asks [`knows_zeros`](Self::knows_zeros).
    ///
    /// # Safety
    ///
    /// As for [`zero`](Self::zero).
    #[inline]
    unsafe fn zero_user(&self, pfn: Pfn, order: Order) {
        // SAFETY: the caller's contract.
        unsafe { self.zero(pfn, order) };
    }

    /// Zeroes a block of a program's memory, most of which may not be accessed soon: a platform may bypass
    /// its caches. A reader that finds the block by a release store finds it filled.
    ///
    /// # Safety
    ///
    /// As for [`zero`](Self::zero).
    unsafe fn zero_ahead(&self, pfn: Pfn, order: Order) {
        // SAFETY: the caller's contract.
        unsafe { self.zero_user(pfn, order) };
    }

    /// The frame `pfn` will probably be zeroed soon: a platform may start to get its cache lines, so that
    /// zeroing does not wait for memory. It is free, and no other code looks at it.
    #[inline]
    fn expect_zero(&self, pfn: Pfn) {
        let _ = pfn;
    }

    /// Copies the block at `from` to the one at `to`. Pinned or not.
    ///
    /// # Safety
    ///
    /// Both blocks lie in RAM and do not overlap; the caller owns `to`, and `from` is written at most by a
    /// program that expects the race.
    unsafe fn copy(&self, from: Pfn, to: Pfn, order: Order) {
        let (from, to) = (self.direct_map(from).as_ptr(), self.direct_map(to).as_ptr());
        // SAFETY: both blocks are contiguous in the direct map and disjoint (caller).
        unsafe { to.copy_from_nonoverlapping(from, order.bytes() as usize) };
    }

    /// Copies a block of a program's memory, as [`copy`](Self::copy) does. A platform whose programs' memory
    /// has no contents may leave `to` unchanged.
    ///
    /// # Safety
    ///
    /// As for [`copy`](Self::copy).
    #[inline]
    unsafe fn copy_user(&self, from: Pfn, to: Pfn, order: Order) {
        // SAFETY: the caller's contract.
        unsafe { self.copy(from, to, order) };
    }

    /// A device is going to fill a block of a program's memory, which was neither zeroed nor copied to.
    ///
    /// # Safety
    ///
    /// As for [`zero`](Self::zero).
    #[inline]
    unsafe fn fill_user(&self, pfn: Pfn, order: Order) {
        let _ = (pfn, order);
    }

    /// Whether a block of a program's memory is all zeros, if that is known without its bytes. A platform
    /// whose programs' memory has no contents always knows: what a program wrote to is not zeros.
    #[inline]
    fn knows_zeros(&self, pfn: Pfn, order: Order) -> Option<bool> {
        let _ = (pfn, order);
        None
    }

    /// Number of CPUs, at least 1; their numbers are 0 up to this.
    fn cpu_count(&self) -> usize;

    /// Keeps the caller on its CPU, with preemption and interrupts off, until the guard is dropped. Nests.
    #[inline]
    fn pin(&self) -> Pin<'_, Self> {
        Pin { platform: self, cpu: self.pin_enter(), not_send: PhantomData }
    }

    /// The platform's part of [`pin`](Self::pin): starts a pinned section and returns the CPU. Sections nest;
    /// the innermost CPU number is the outermost one's. Called in interrupts too.
    fn pin_enter(&self) -> CpuId;

    /// Ends one pinned section.
    ///
    /// # Safety
    ///
    /// Balances one call of [`pin_enter`](Self::pin_enter) by the same thread of execution.
    unsafe fn pin_exit(&self);

    /// Drops translations from the calling CPU's TLB. Locks may be held.
    fn flush_local(&self, pin: &Pin<'_, Self>, flush: TlbFlush);

    /// Drops translations from the TLBs of `cpus` (the caller's own may be among them) and returns when every
    /// one has acknowledged. Always called pinned, and often with locks held, for which the named CPUs may be
    /// waiting with interrupts off; several CPUs may do it at once, to each other. So a platform serves the
    /// requests of other CPUs while it waits here and in [`Execution::relax`]. Only CPUs that have a space of
    /// that tag current, or had, are named; one that is idle or halted without a space
    /// ([`activate`](Self::activate) with `None`) is not.
    fn shootdown(&self, pin: &Pin<'_, Self>, cpus: &CpuMask, flush: TlbFlush);

    /// Makes the tables at `root` the calling CPU's current ones, under the tag `asid`. `None` leaves the CPU
    /// without tables that it could walk. Translations under other tags stay in the TLB and are not used; so
    /// do those under `asid`, and are, unless it is [`Asid::NONE`]: the caller has flushed what must not be.
    ///
    /// The frame of a root is freed only after the space has left every CPU, or has exited: see
    /// `Space::activate`.
    ///
    /// # Safety
    ///
    /// `root` is the root of page tables in this machine's RAM. Until the CPU has other tables or none, or
    /// its programs go there no more, neither tables nor pages that they lead to are freed before a shootdown
    /// that covers them has reached the CPU. What its TLB holds under `asid` is theirs.
    unsafe fn activate(&self, pin: &Pin<'_, Self>, root: Option<(Pfn, Asid)>);

    /// A new table `root` is to become the root of an address space: of a new one, or of a child of `fork`.
    /// The platform fills in the kernel's half, `kernel_half`: the entries of the root for addresses from
    /// [`USER_END`](PagingFormat::USER_END) on (on x86-64 those from 256 on), which are 0 now.
    ///
    /// The memory management does not look at these entries afterwards: it does not walk, count, audit or
    /// free what they lead to, and frees the root as it is when the space has exited. To change the kernel's
    /// half of all spaces at once, a kernel fills in the entries of the root once, before the first space,
    /// and changes only the tables that they lead to, which all spaces share.
    ///
    /// Pinned, without locks; `root` is current on no CPU yet.
    #[inline]
    fn init_root(&self, root: Pfn, kernel_half: &mut [u64]) {
        let _ = (root, kernel_half);
    }

    /// Number of address-space tags that the TLBs distinguish, [`Asid::NONE`] included; at least 1; always
    /// the same.
    fn asid_count(&self) -> u32;

    /// Time in nanoseconds, from any start. Monotonic on each CPU. The clocks of different CPUs may differ a
    /// little: it is used only for statistics and the length of waits. Called with locks held.
    fn now(&self) -> u64;

    /// Sleeps until [`unpark`](Self::unpark) is called for `key`, unless `still` returns false. `still` is
    /// called under the lock that `unpark` takes too, so that a wake-up between the check and the sleep is
    /// not lost. Spurious wake-ups are allowed. Never called while pinned or with locks held; other CPUs, or
    /// what completes requests of a swap device, call `unpark`. `still` is short: it reads a word, and calls
    /// nothing of the platform.
    fn park(&self, key: usize, still: &mut dyn FnMut() -> bool);

    /// As [`park`](Self::park), but for about `ns` nanoseconds at most. A platform without timers keeps this:
    /// the CPU looks again and again.
    fn park_for(&self, key: usize, ns: u64, still: &mut dyn FnMut() -> bool) {
        let _ = key;
        let began = self.now();
        let mut attempt = 0;
        while still() && self.now().saturating_sub(began) < ns {
            Self::relax(attempt);
            attempt = attempt.saturating_add(1);
        }
    }

    /// Wakes all that sleep on `key`. Called pinned or not, with locks held, and in interrupts; most often
    /// nothing sleeps there.
    fn unpark(&self, key: usize);

    /// Calls `visit` with every translation that any TLB holds, for the auditor. The machine is quiet.
    /// Hardware that cannot report them reports none.
    fn for_each_cached_translation(&self, visit: &mut dyn FnMut(CachedTranslation)) {
        let _ = visit;
    }
}

/// Proof that the holder stays on one CPU, undisturbed, while it lives. See [`Platform::pin`].
#[must_use = "the section ends when the guard is dropped"]
pub struct Pin<'p, P: Platform> {
    platform: &'p P,
    cpu: CpuId,
    not_send: PhantomData<*const ()>,
}

impl<'p, P: Platform> Pin<'p, P> {
    /// The CPU.
    #[inline]
    pub const fn cpu(&self) -> CpuId {
        self.cpu
    }

    /// The machine.
    #[inline]
    pub const fn platform(&self) -> &'p P {
        self.platform
    }
}

impl<P: Platform> Drop for Pin<'_, P> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: `Platform::pin` entered exactly one section for this guard, which cannot leave its thread.
        unsafe { self.platform.pin_exit() };
    }
}

impl<P: Platform> fmt::Debug for Pin<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pin").field(&self.cpu).finish()
    }
}

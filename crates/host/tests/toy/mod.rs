//! A small memory manager for the tests of the machine: frames from a stack, tables under one lock, a fault
//! handler that maps a window of addresses.

use quire_arch::{
    Access, Asid, Entry, Leaf, LeafFlags, Level, Order, PAGE_SIZE, PagingFormat, Pfn, Platform, TlbFlush,
    VirtAddr, VirtRange,
};
use quire_host::{HostConfig, HostPlatform, MachineId, ProgramSpace};
use quire_sync::AtomicCpuMask;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

pub(crate) const READ: LeafFlags = LeafFlags::READ;
pub(crate) const READ_WRITE: LeafFlags = LeafFlags::READ.union(LeafFlags::WRITE);
/// What a freed frame holds.
pub(crate) const POISON: u64 = 0xdead_dead_dead_dead;

/// The machine and its frames.
pub(crate) struct Toy<F: PagingFormat> {
    pub(crate) platform: HostPlatform<F>,
    free: Mutex<Vec<Pfn>>,
    is_free: Arc<Vec<AtomicBool>>,
}

impl<F: PagingFormat> Toy<F> {
    pub(crate) fn new(config: &HostConfig) -> Self {
        let platform = HostPlatform::new(config).unwrap();
        assert!(platform.ram_claim().take());
        let mut free = Vec::new();
        platform.for_each_ram(&mut |range| free.extend((range.start().0..range.end().0).rev().map(Pfn)));
        let end = free.iter().max().unwrap().0 + 1;
        let is_free: Arc<Vec<AtomicBool>> = Arc::new((0..end).map(|_| AtomicBool::new(true)).collect());
        let query = Arc::clone(&is_free);
        platform.set_frame_query(Some(Box::new(move |pfn| query[pfn.0 as usize].load(Ordering::SeqCst))));
        Self { platform, free: Mutex::new(free), is_free }
    }

    /// A zeroed frame.
    pub(crate) fn alloc(&self) -> Pfn {
        let pfn = self.free.lock().unwrap().pop().expect("the toy machine is large enough");
        self.is_free[pfn.0 as usize].store(false, Ordering::SeqCst);
        // SAFETY: the frame was on the free list, so it is the caller's.
        unsafe { self.platform.zero(pfn, Order::ZERO) };
        pfn
    }

    /// A zeroed, aligned block of frames, taken out of the middle of the free list.
    pub(crate) fn alloc_block(&self, frames: u64) -> Pfn {
        let mut free = self.free.lock().unwrap();
        let start = free.iter().copied().find(|pfn| {
            pfn.0 % frames == 0 && (pfn.0..pfn.0 + frames).all(|frame| free.contains(&Pfn(frame)))
        });
        let start = start.expect("an aligned block is free");
        free.retain(|pfn| pfn.0 < start.0 || pfn.0 >= start.0 + frames);
        for frame in start.0..start.0 + frames {
            self.is_free[frame as usize].store(false, Ordering::SeqCst);
            // SAFETY: the frame was on the free list.
            unsafe { self.platform.zero(Pfn(frame), Order::ZERO) };
        }
        start
    }

    /// Frees a frame and poisons it.
    pub(crate) fn free(&self, pfn: Pfn) {
        assert!(!self.is_free[pfn.0 as usize].swap(true, Ordering::SeqCst), "double free");
        self.word(pfn).store(POISON, Ordering::Relaxed);
        self.free.lock().unwrap().push(pfn);
    }

    /// The first word of a frame.
    pub(crate) fn word(&self, pfn: Pfn) -> &AtomicU64 {
        // SAFETY: frames are in RAM, which the platform keeps; words are accessed atomically only.
        unsafe { AtomicU64::from_ptr(self.platform.direct_map(pfn).cast().as_ptr()) }
    }
}

/// Why an access cannot be resolved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Segv;

/// An address space.
pub(crate) struct Space<'t, F: PagingFormat> {
    pub(crate) toy: &'t Toy<F>,
    pub(crate) root: Pfn,
    pub(crate) asid: Asid,
    pub(crate) cpus: AtomicCpuMask,
    /// Where faults map zeroed pages whose first word is the page number, readable and writable.
    pub(crate) window: VirtRange,
    /// Set to make the fault handler return success without a mapping.
    pub(crate) idle_handler: AtomicBool,
    lock: Mutex<()>,
}

impl<'t, F: PagingFormat> Space<'t, F> {
    pub(crate) fn new(toy: &'t Toy<F>, asid: u32, window: VirtRange) -> Self {
        Self {
            toy,
            root: toy.alloc(),
            asid: Asid(asid),
            cpus: AtomicCpuMask::new(),
            window,
            idle_handler: AtomicBool::new(false),
            lock: Mutex::new(()),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The entry for `addr` at `level`, with the tables above made as needed. Under the lock.
    pub(crate) fn entry(&self, addr: VirtAddr, level: Level) -> &AtomicU64 {
        let (mut table, mut at) = (self.root, F::root_level());
        loop {
            let first = self.toy.platform.direct_map(table).cast::<u64>();
            // SAFETY: a table is a frame, and the index is below its number of entries.
            let entry = unsafe { AtomicU64::from_ptr(first.add(F::index(addr, at)).as_ptr()) };
            if at == level {
                return entry;
            }
            table = match F::decode(entry.load(Ordering::Acquire), at) {
                Entry::Table(next) => next,
                Entry::None => {
                    let next = self.toy.alloc();
                    entry.store(F::encode(Entry::Table(next), at), Ordering::Release);
                    next
                }
                other => panic!("{other:?} on the way to {addr:?}"),
            };
            at = at.down().unwrap();
        }
    }

    pub(crate) fn map(&self, addr: VirtAddr, level: Level, pfn: Pfn, flags: LeafFlags) {
        let raw = F::encode(Entry::Leaf(Leaf { pfn, flags }), level);
        self.entry(addr, level).store(raw, Ordering::Release);
    }

    /// What the tables hold for the base page at `addr`.
    pub(crate) fn leaf(&self, addr: VirtAddr) -> Option<Leaf> {
        match F::decode(self.entry(addr, Level::PTE).load(Ordering::Acquire), Level::PTE) {
            Entry::Leaf(leaf) => Some(leaf),
            _ => None,
        }
    }

    /// Replaces the entry of the base page at `addr` and returns what it mapped. No flush.
    pub(crate) fn exchange(&self, addr: VirtAddr, new: Entry) -> Option<Leaf> {
        let old = self.entry(addr, Level::PTE).swap(F::encode(new, Level::PTE), Ordering::AcqRel);
        match F::decode(old, Level::PTE) {
            Entry::Leaf(leaf) => Some(leaf),
            _ => None,
        }
    }

    /// Flushes `pages` pages from `addr` on every CPU that the space is on.
    pub(crate) fn flush(&self, addr: VirtAddr, pages: u64) {
        let pin = self.toy.platform.pin();
        let range = VirtRange::from_len(addr, pages * PAGE_SIZE).unwrap();
        self.toy.platform.shootdown(&pin, &self.cpus.load(), TlbFlush::Range { asid: self.asid, range });
    }

    /// Unmaps the page at `addr`, with a flush.
    pub(crate) fn unmap(&self, addr: VirtAddr) -> bool {
        let _guard = self.lock();
        let Some(leaf) = self.exchange(addr, Entry::None) else { return false };
        self.flush(addr, 1);
        self.toy.free(leaf.pfn);
        true
    }
}

// SAFETY: tables are never freed, and pages after the flush that their removal calls for; tests that leave it
// out stop before they use the page.
unsafe impl<F: PagingFormat> ProgramSpace for Space<'_, F> {
    type Error = Segv;

    fn machine(&self) -> MachineId {
        self.toy.platform.id()
    }

    fn root(&self) -> Pfn {
        self.root
    }

    fn activate(&self) {
        let pin = self.toy.platform.pin();
        self.cpus.insert(pin.cpu());
        // SAFETY: as said of `ProgramSpace`.
        unsafe { self.toy.platform.activate(&pin, Some((self.root, self.asid))) };
    }

    fn fault(&self, addr: VirtAddr, access: Access) -> Result<(), Segv> {
        if self.idle_handler.load(Ordering::Relaxed) {
            return Ok(());
        }
        if !self.window.contains(addr) {
            return Err(Segv);
        }
        let _guard = self.lock();
        match self.leaf(addr) {
            Some(leaf) if leaf.flags.contains(access.needs()) => Ok(()),
            Some(_) => Err(Segv),
            None => {
                let pfn = self.toy.alloc();
                self.toy.word(pfn).store(page_number(addr), Ordering::Relaxed);
                self.map(addr, Level::PTE, pfn, READ_WRITE);
                Ok(())
            }
        }
    }
}

pub(crate) fn page_number(addr: VirtAddr) -> u64 {
    addr.0 / PAGE_SIZE
}

pub(crate) fn window(start: u64, pages: u64) -> VirtRange {
    VirtRange::from_len(VirtAddr(start), pages * PAGE_SIZE).unwrap()
}

/// Numbers that replay (xorshift64*).
pub(crate) struct Random(u64);

impl Random {
    /// A generator whose seed is printed, so that a failure can be repeated.
    pub(crate) fn new(seed: u64) -> Self {
        println!("seed {seed:#x}");
        Self(seed)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }
}

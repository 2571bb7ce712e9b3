//! A toy machine: one CPU without a TLB, and RAM in a static arena.

use core::cell::{Cell, UnsafeCell};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use quire_arch::paging::X86_64Level4;
use quire_arch::{
    Access, Asid, CpuId, CpuMask, Entry, Execution, PAGE_SIZE, PagingFormat, Pfn, PfnRange, Pin, Platform,
    TlbFlush, VirtAddr,
};
use quire_mm::{FaultError, Space};

/// 16 MiB.
const FRAMES: u64 = 4096;
/// Not 0, so that frame numbers and offsets in the arena are told apart.
const FIRST: Pfn = Pfn(256);

#[repr(align(4096))]
struct Arena(UnsafeCell<[u8; (FRAMES * PAGE_SIZE) as usize]>);

// SAFETY: the bytes are reached through `Toy` only, and there is one thread.
unsafe impl Sync for Arena {}

static ARENA: Arena = Arena(UnsafeCell::new([0; (FRAMES * PAGE_SIZE) as usize]));

/// The machine. At most one exists at a time.
pub(crate) struct Toy {
    pins: Cell<u32>,
    root: Cell<Option<Pfn>>,
    time: Cell<u64>,
}

// SAFETY: the program has one thread.
unsafe impl Sync for Toy {}
// SAFETY: as above.
unsafe impl Send for Toy {}

impl Toy {
    pub(crate) fn new() -> Self {
        Self { pins: Cell::new(0), root: Cell::new(None), time: Cell::new(0) }
    }

    /// The word at `addr` in the current tables, as a walk finds it for `access`.
    fn translate(&self, addr: VirtAddr, access: Access) -> Option<&AtomicU64> {
        let mut frame = self.root.get()?;
        let mut level = X86_64Level4::root_level();
        loop {
            let entry = self.word(frame, X86_64Level4::index(addr, level) as u64 * 8);
            let raw = entry.load(Ordering::Acquire);
            match X86_64Level4::decode(raw, level) {
                Entry::Table(next) => (frame, level) = (next, level.down()?),
                Entry::Leaf(leaf) if leaf.flags.contains(access.needs()) => {
                    let dirty = if access == Access::Write { X86_64Level4::DIRTY } else { 0 };
                    entry.fetch_or(X86_64Level4::ACCESSED | dirty, Ordering::AcqRel);
                    return Some(self.word(leaf.pfn, addr.page_offset()));
                }
                _ => return None,
            }
        }
    }

    fn word(&self, frame: Pfn, offset: u64) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < PAGE_SIZE);
        // SAFETY: an aligned word in RAM, which is accessed by atomics or from this one thread.
        unsafe { self.direct_map(frame).add(offset as usize).cast().as_ref() }
    }
}

/// The word of a program at `addr`, faulted in for `access`.
pub(crate) fn access<'s>(
    space: &'s Space<'_, Toy>,
    addr: VirtAddr,
    access: Access,
) -> Result<&'s AtomicU64, FaultError> {
    let toy = space.spaces().platform();
    space.activate(&toy.pin());
    loop {
        match toy.translate(addr, access) {
            Some(word) => return Ok(word),
            None => space.fault(addr, access)?,
        }
    }
}

impl Execution for Toy {
    fn relax(_attempt: u32) {
        panic!("one CPU waits for itself");
    }
}

// SAFETY: the one range is the arena, which has no other user; one CPU and one thread; without a TLB there is
// nothing to shoot down.
unsafe impl Platform for Toy {
    type Paging = X86_64Level4;

    fn for_each_ram(&self, visit: &mut dyn FnMut(PfnRange)) {
        visit(PfnRange::new(FIRST, FIRST.offset(FRAMES)));
    }

    fn direct_map(&self, pfn: Pfn) -> NonNull<u8> {
        let index = pfn.0.wrapping_sub(FIRST.0);
        assert!(index < FRAMES, "{pfn:?} is not in RAM");
        // SAFETY: within the arena, which is not null.
        unsafe { NonNull::new_unchecked(ARENA.0.get().cast::<u8>().add((index * PAGE_SIZE) as usize)) }
    }

    fn cpu_count(&self) -> usize {
        1
    }

    fn pin_enter(&self) -> CpuId {
        self.pins.set(self.pins.get() + 1);
        CpuId::default()
    }

    unsafe fn pin_exit(&self) {
        self.pins.set(self.pins.get() - 1);
    }

    fn flush_local(&self, _pin: &Pin<'_, Self>, _flush: TlbFlush) {}

    fn shootdown(&self, _pin: &Pin<'_, Self>, cpus: &CpuMask, _flush: TlbFlush) {
        assert!(cpus.iter().all(|cpu| cpu == CpuId::default()), "there is one CPU");
    }

    fn activate(&self, _pin: &Pin<'_, Self>, root: Option<(Pfn, Asid)>) {
        self.root.set(root.map(|(root, _)| root));
    }

    fn asid_count(&self) -> u32 {
        16
    }

    fn now(&self) -> u64 {
        self.time.set(self.time.get() + 1);
        self.time.get()
    }

    fn park(&self, _key: usize, still: &mut dyn FnMut() -> bool) {
        assert_eq!(self.pins.get(), 0, "parked while pinned");
        assert!(!still(), "one thread would sleep for ever");
    }

    fn unpark(&self, _key: usize) {}
}

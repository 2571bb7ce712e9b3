//! A toy machine: two CPUs with a TLB each, RAM in a static arena, and a kernel's half in each root.
//!
//! What a kernel of its own has to bring is here in its smallest form. A CPU is a thread of this process; it
//! finds its own data by the `fs` register. There are no interrupts, so a CPU looks for the requests of
//! others by itself: at each access of a program, and wherever it waits. There is no scheduler, so a CPU that
//! sleeps looks again and again.

use crate::runtime;
use core::arch::x86_64::_rdtsc;
use core::cell::{Cell, UnsafeCell};
use core::hint::spin_loop;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU64, Ordering};
use quire_mm::platform::{
    Access, Asid, CpuId, CpuMask, Entry, Execution, Leaf, PAGE_SHIFT, PAGE_SIZE, PagingFormat, Pfn, PfnRange,
    Pin, Platform, RamClaim, TlbFlush, VirtAddr, X86_64Level4,
};
use quire_mm::space::{FaultError, Space};

/// 16 MiB.
const FRAMES: u64 = 4096;
/// Not 0, so that frame numbers and offsets in the arena are told apart.
const FIRST: Pfn = Pfn(256);
const CPUS: usize = 2;
const TLB_ENTRIES: usize = 16;
/// The entry of the kernel's half that each root gets: a table out of the machine's RAM, which must never be
/// followed.
const KERNEL_INDEX: usize = 511;
const KERNEL_TABLE: Pfn = Pfn(0xbad);

#[repr(align(4096))]
struct Arena(UnsafeCell<[u8; (FRAMES * PAGE_SIZE) as usize]>);

// SAFETY: the bytes are reached through `Toy` only, by the rules of the memory management.
unsafe impl Sync for Arena {}

static ARENA: Arena = Arena(UnsafeCell::new([0; (FRAMES * PAGE_SIZE) as usize]));

/// Of the arena, which all values of [`Toy`] stand for.
static CLAIM: RamClaim = RamClaim::new();

/// A translation that a CPU keeps.
#[derive(Clone, Copy)]
struct Cached {
    root: Pfn,
    page: u64,
    leaf: Leaf,
}

/// One CPU. What is in cells only its own thread touches.
#[repr(C)]
struct Cpu {
    /// Of itself: `fs:0` reads it.
    this: Cell<*const Self>,
    number: Cell<usize>,
    pins: Cell<u32>,
    root: Cell<Option<Pfn>>,
    tlb: [Cell<Option<Cached>>; TLB_ENTRIES],
    /// Of a program that exits beside the next flush.
    leaving: Cell<Option<Space<'static, Toy>>>,
    /// Flushes that others asked for, and how many of them were done.
    wanted: AtomicU64,
    done: AtomicU64,
}

// SAFETY: the cells are used by the thread that is the CPU; the rest are atomics.
unsafe impl Sync for Cpu {}

impl Cpu {
    const fn new() -> Self {
        Self {
            this: Cell::new(ptr::null()),
            number: Cell::new(0),
            pins: Cell::new(0),
            root: Cell::new(None),
            tlb: [const { Cell::new(None) }; TLB_ENTRIES],
            leaving: Cell::new(None),
            wanted: AtomicU64::new(0),
            done: AtomicU64::new(0),
        }
    }

    /// The one that runs this code.
    fn current() -> &'static Self {
        // SAFETY: every thread called `become_cpu` first.
        unsafe { &*runtime::thread_pointer().cast::<Self>() }
    }

    /// Does what others have asked for.
    fn serve(&self) {
        let wanted = self.wanted.load(Ordering::Acquire);
        if self.done.load(Ordering::Relaxed) != wanted {
            self.flush();
            // Release: what this CPU read through the translations comes before.
            self.done.store(wanted, Ordering::Release);
        }
    }

    /// More than what was asked for may always be dropped.
    fn flush(&self) {
        self.tlb.iter().for_each(|entry| entry.set(None));
    }
}

/// Drops the handle at the next flush of this CPU, as another CPU could at that moment.
///
/// # Safety
///
/// There is such a flush while the memory lives, and at that moment something else has a handle to the space.
pub(crate) unsafe fn drop_at_next_flush(space: Space<'_, Toy>) {
    // SAFETY: dropped while the memory lives: the caller's promise.
    let space = unsafe { core::mem::transmute::<Space<'_, Toy>, Space<'static, Toy>>(space) };
    assert!(Cpu::current().leaving.replace(Some(space)).is_none(), "one at a time");
}

/// Whether the next flush drops a handle.
pub(crate) fn drops_at_next_flush() -> bool {
    let leaving = &Cpu::current().leaving;
    let space = leaving.take();
    let some = space.is_some();
    leaving.set(space);
    some
}

static CPU: [Cpu; CPUS] = [const { Cpu::new() }; CPUS];

/// Makes the calling thread the CPU `number` of the machine.
pub(crate) fn become_cpu(number: usize) {
    let cpu = &CPU[number];
    cpu.this.set(cpu);
    cpu.number.set(number);
    // SAFETY: the CPU is a static, and begins with a pointer to itself.
    unsafe { runtime::set_thread_pointer(ptr::from_ref(cpu).cast()) };
}

/// The machine.
pub(crate) struct Toy;

impl Toy {
    /// The word at `addr` in the current tables, as a walk or the TLB finds it for `access`.
    fn translate(&self, cpu: &Cpu, addr: VirtAddr, access: Access) -> Option<&AtomicU64> {
        let root = cpu.root.get()?;
        let page = addr.0 >> PAGE_SHIFT;
        let entry = &cpu.tlb[page as usize % TLB_ENTRIES];
        let hit = entry.get().filter(|cached| {
            (cached.root, cached.page) == (root, page) && cached.leaf.flags.contains(access.needs())
        });
        let leaf = match hit {
            Some(cached) => cached.leaf,
            None => {
                let leaf = self.walk(root, addr, access)?;
                entry.set(Some(Cached { root, page, leaf }));
                leaf
            }
        };
        Some(self.word(leaf.pfn, addr.page_offset()))
    }

    fn walk(&self, root: Pfn, addr: VirtAddr, access: Access) -> Option<Leaf> {
        let (mut frame, mut level) = (root, X86_64Level4::root_level());
        loop {
            let entry = self.word(frame, X86_64Level4::index(addr, level) as u64 * 8);
            let raw = entry.load(Ordering::Acquire);
            match X86_64Level4::decode(raw, level) {
                Entry::Table(next) => (frame, level) = (next, level.down()?),
                Entry::Leaf(leaf) if leaf.flags.contains(access.needs()) => {
                    let dirty = if access == Access::Write { X86_64Level4::DIRTY } else { 0 };
                    let used = raw | X86_64Level4::ACCESSED | dirty;
                    // Not with an entry that has changed since: hardware looks again too.
                    if entry.compare_exchange(raw, used, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                        let nth = if level.0 == 0 {
                            0
                        } else {
                            (addr.0 % X86_64Level4::entry_bytes(level)) >> PAGE_SHIFT
                        };
                        // A later write of a page that was only read walks again, to set the dirty bit.
                        let flags = if access == Access::Write { leaf.flags } else { access.needs() };
                        return Some(Leaf { pfn: leaf.pfn.offset(nth), flags });
                    }
                }
                _ => return None,
            }
        }
    }

    fn word(&self, frame: Pfn, offset: u64) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < PAGE_SIZE);
        // SAFETY: an aligned word in RAM, which is accessed by atomics, or by its only owner.
        unsafe { self.direct_map(frame).add(offset as usize).cast().as_ref() }
    }
}

/// Makes an access of a program: `use_it` gets the word at `addr`, faulted in for `access`.
pub(crate) fn access<R>(
    space: &Space<'_, Toy>,
    addr: VirtAddr,
    access: Access,
    use_it: impl FnOnce(&AtomicU64) -> R,
) -> Result<R, FaultError> {
    let toy = space.platform();
    space.activate(&toy.pin());
    let cpu = Cpu::current();
    loop {
        // Between accesses, where hardware would take an interrupt: what is found next is used before the
        // next look.
        cpu.serve();
        match toy.translate(cpu, addr, access) {
            Some(word) => return Ok(use_it(word)),
            None => space.fault(addr, access)?,
        }
    }
}

/// Whether the root of `space` has the kernel's half, and nothing beside it.
pub(crate) fn has_kernel_half(space: &Space<'_, Toy>) -> bool {
    (256..512).all(|index| {
        let raw = space.platform().word(space.root(), index as u64 * 8).load(Ordering::Relaxed);
        let wanted = if index == KERNEL_INDEX { Entry::Table(KERNEL_TABLE) } else { Entry::None };
        X86_64Level4::decode(raw, X86_64Level4::root_level()) == wanted
    })
}

impl Execution for Toy {
    fn relax(_attempt: u32) {
        Cpu::current().serve();
        // One of the host's CPUs may have to run both threads.
        runtime::yield_now();
    }
}

// SAFETY: the one range is the arena, which has no other user and one claim; a thread is one CPU and stays
// it; a shootdown waits until each CPU has emptied its TLB; the entry of the kernel's half is not reached by
// programs, which walk below 256.
unsafe impl Platform for Toy {
    type Paging = X86_64Level4;

    fn for_each_ram(&self, visit: &mut dyn FnMut(PfnRange)) {
        visit(PfnRange::new(FIRST, FIRST.offset(FRAMES)));
    }

    fn ram_claim(&self) -> &RamClaim {
        &CLAIM
    }

    fn direct_map(&self, pfn: Pfn) -> NonNull<u8> {
        let index = pfn.0.wrapping_sub(FIRST.0);
        assert!(index < FRAMES, "{pfn:?} is not in RAM");
        // SAFETY: within the arena, which is not null.
        unsafe { NonNull::new_unchecked(ARENA.0.get().cast::<u8>().add((index * PAGE_SIZE) as usize)) }
    }

    fn cpu_count(&self) -> usize {
        CPUS
    }

    fn pin_enter(&self) -> CpuId {
        let cpu = Cpu::current();
        cpu.pins.set(cpu.pins.get() + 1);
        CpuId::new(cpu.number.get()).unwrap_or_default()
    }

    unsafe fn pin_exit(&self) {
        let cpu = Cpu::current();
        cpu.pins.set(cpu.pins.get() - 1);
    }

    fn flush_local(&self, _pin: &Pin<'_, Self>, _flush: TlbFlush) {
        Cpu::current().flush();
        drop(Cpu::current().leaving.take());
    }

    fn shootdown(&self, pin: &Pin<'_, Self>, cpus: &CpuMask, _flush: TlbFlush) {
        let own = Cpu::current();
        own.flush();
        drop(own.leaving.take());
        for target in cpus.iter().filter(|&cpu| cpu != pin.cpu()) {
            let target = &CPU[target.index()];
            // Release: the CPU that sees the request sees the entries as they are now.
            let ticket = target.wanted.fetch_add(1, Ordering::AcqRel) + 1;
            while target.done.load(Ordering::Acquire) < ticket {
                // It may be waiting for this one.
                Self::relax(0);
            }
        }
    }

    unsafe fn activate(&self, _pin: &Pin<'_, Self>, root: Option<(Pfn, Asid)>) {
        // Translations are found by their root here, and a root may be used again.
        let cpu = Cpu::current();
        cpu.flush();
        cpu.root.set(root.map(|(root, _)| root));
    }

    fn init_root(&self, _root: Pfn, kernel_half: &mut [u64]) {
        let first = X86_64Level4::user_entries(X86_64Level4::root_level());
        kernel_half[KERNEL_INDEX - first] =
            X86_64Level4::encode(Entry::Table(KERNEL_TABLE), X86_64Level4::root_level());
    }

    fn asid_count(&self) -> u32 {
        1
    }

    fn now(&self) -> u64 {
        // SAFETY: every x86-64 has a time stamp counter. One tick is taken as a nanosecond.
        unsafe { _rdtsc() }
    }

    fn park(&self, _key: usize, still: &mut dyn FnMut() -> bool) {
        assert_eq!(Cpu::current().pins.get(), 0, "parked while pinned");
        if still() {
            // A wake-up without a cause: the caller looks again.
            Self::relax(0);
            spin_loop();
        }
    }

    fn unpark(&self, _key: usize) {}
}

//! Two CPUs run one space: one reads all the time, the other takes pages away under it and puts others there.

use crate::machine::{Toy, access, become_cpu};
use crate::runtime;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use quire_mm::Memory;
use quire_mm::frame::VmEvent;
use quire_mm::platform::{Access, Execution, PAGE_SIZE, Platform, VirtAddr};
use quire_mm::space::{Advice, MapRequest, Protection, Space};

const PAGES: u64 = 24;
const ROUNDS: u64 = 50;

/// What both CPUs work on.
struct Work<'s, 'm> {
    memory: &'m Memory<Toy>,
    space: &'s Space<'m, Toy>,
    base: VirtAddr,
}

/// What CPU 1 is to do, while it is to do it.
static WORK: AtomicPtr<Work<'static, 'static>> = AtomicPtr::new(ptr::null_mut());
/// Reads that CPU 1 made, and whether it has come to an end.
static READS: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);

impl Work<'_, '_> {
    fn page(&self, number: u64) -> VirtAddr {
        VirtAddr(self.base.0 + number * PAGE_SIZE)
    }
}

/// CPU 1: a page holds nothing, or what was written for it. Another page's contents would mean that a
/// translation was used after its page had gone.
extern "C" fn second_cpu() -> ! {
    become_cpu(1);
    let work = WORK.load(Ordering::Acquire);
    // SAFETY: CPU 0 keeps it until this CPU has ended.
    let Work { memory, space, .. } = unsafe { &*work };
    let mut number = 0;
    while !WORK.load(Ordering::Acquire).is_null() {
        // SAFETY: CPU 0 keeps it until this CPU has ended.
        let addr = unsafe { &*work }.page(number % PAGES);
        let found =
            access(space, addr, Access::Read, |word| word.load(Ordering::Relaxed)).expect("it stays mapped");
        assert!(found == 0 || found >> 32 == number % PAGES + 1, "page {number} holds {found:#x}");
        READS.fetch_add(1, Ordering::Relaxed);
        number += 1;
    }
    memory.deactivate(&memory.platform().pin());
    ENDED.store(1, Ordering::Release);
    runtime::exit_thread()
}

/// Returns after both CPUs have come to an end; CPU 1 is a new thread.
pub(crate) fn run(memory: &Memory<Toy>) {
    let space = memory.create_space().expect("a space");
    let request = MapRequest::anonymous(PAGES * PAGE_SIZE, Protection::READ | Protection::WRITE);
    let work = Work { memory, space: &space, base: space.mmap(&request).expect("mmap") };
    READS.store(0, Ordering::Relaxed);
    ENDED.store(0, Ordering::Relaxed);
    WORK.store(ptr::from_ref(&work).cast_mut().cast(), Ordering::Release);
    let shootdowns = memory.event(VmEvent::NrTlbRemoteFlush);
    runtime::spawn(second_cpu);
    let mut reads = 0;
    for round in 0..ROUNDS {
        for page in (0..PAGES).filter(|page| page % 3 == round % 3) {
            space.madvise(work.page(page), PAGE_SIZE, Advice::DontNeed).expect("madvise");
        }
        // The frame that came free last is the first to be given out, so most go to other pages than before.
        for page in (0..PAGES).filter(|page| page % 3 == round % 3) {
            access(&space, work.page(page), Access::Write, |word| {
                word.store((page + 1) << 32 | round, Ordering::Relaxed);
            })
            .expect("room for a page");
        }
        // CPU 1 gets its turn, however few CPUs the host has.
        while READS.load(Ordering::Relaxed) < reads + 2 * PAGES {
            Toy::relax(0);
        }
        reads = READS.load(Ordering::Relaxed);
    }
    assert!(memory.event(VmEvent::NrTlbRemoteFlush) > shootdowns, "no CPU was ever interrupted");
    WORK.store(ptr::null_mut(), Ordering::Release);
    while ENDED.load(Ordering::Acquire) == 0 {
        Toy::relax(0);
    }
}

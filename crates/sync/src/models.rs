//! Loom models of what is lock-free here. Every interleaving is tried.

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::epoch::{Epoch, EpochSlot};
use crate::per_cpu::PerCpu;
use crate::rw_sleep::RwSleepLock;
use crate::spin::SpinLock;
use crate::watched::Watched;
use loom::sync::Arc;
use loom::thread;
use quire_arch::paging::X86_64Level4;
use quire_arch::{
    Asid, CpuId, CpuMask, Execution, LockClass, Pfn, PfnRange, Pin, Platform, RamClaim, TlbFlush,
};
use std::boxed::Box;
use std::ptr::NonNull;
use std::vec::Vec;

struct Loom;

impl Execution for Loom {
    fn relax(_attempt: u32) {
        thread::yield_now();
    }
}

#[test]
fn loom_spin_lock_admits_one_at_a_time() {
    loom::model(|| {
        let lock = Arc::new(SpinLock::<u32, Loom>::new(LockClass::Zone, 0));
        let other = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || *lock.lock() += 1)
        };
        *lock.lock() += 1;
        other.join().unwrap();
        assert_eq!(*lock.lock(), 2);
        assert_eq!(lock.statistics().takes, 3);
    });
}

/// As much of a platform as a sleeping lock needs: a place to sleep.
struct Bed {
    lock: loom::sync::Mutex<()>,
    wake: loom::sync::Condvar,
}

impl Execution for Bed {
    fn relax(_attempt: u32) {
        thread::yield_now();
    }
}

// SAFETY: there is no RAM and there are no CPUs; a sleeping lock asks for neither.
unsafe impl Platform for Bed {
    type Paging = X86_64Level4;

    fn for_each_ram(&self, _visit: &mut dyn FnMut(PfnRange)) {}

    fn ram_claim(&self) -> &RamClaim {
        unreachable!("no RAM")
    }

    fn direct_map(&self, _pfn: Pfn) -> NonNull<u8> {
        unreachable!("no RAM")
    }

    fn cpu_count(&self) -> usize {
        1
    }

    fn pin_enter(&self) -> CpuId {
        unreachable!("no CPUs")
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

    fn park(&self, _key: usize, still: &mut dyn FnMut() -> bool) {
        let guard = self.lock.lock().unwrap();
        if still() {
            drop(self.wake.wait(guard).unwrap());
        }
    }

    fn unpark(&self, _key: usize) {
        let _guard = self.lock.lock().unwrap();
        self.wake.notify_all();
    }
}

struct Guarded {
    lock: RwSleepLock,
    bed: Bed,
    value: Watched<u32>,
}

impl Guarded {
    fn new() -> Self {
        let bed = Bed { lock: loom::sync::Mutex::new(()), wake: loom::sync::Condvar::new() };
        Self { lock: RwSleepLock::new(LockClass::Mmap), bed, value: Watched::new(0) }
    }

    fn write(&self) {
        let _guard = self.lock.write(&self.bed);
        self.value.set(self.value.get() + 1);
    }

    fn read(&self) -> u32 {
        let _guard = self.lock.read(&self.bed);
        self.value.get()
    }
}

/// No sleeper is forgotten: loom finds a deadlock where a wake-up is lost.
#[test]
fn loom_a_sleeping_lock_keeps_writers_apart_and_wakes_every_sleeper() {
    loom::model(|| {
        let guarded = Arc::new(Guarded::new());
        let other = {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || guarded.write())
        };
        guarded.write();
        assert!((1..=2).contains(&guarded.read()));
        other.join().unwrap();
        assert_eq!(guarded.read(), 2);
    });
}

/// A failed trylock leaves the lock to its holder.
#[test]
fn loom_a_try_in_vain_releases_nothing() {
    loom::model(|| {
        let guarded = Arc::new(Guarded::new());
        let other = {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || {
                drop(guarded.lock.try_read(&guarded.bed));
                drop(guarded.lock.try_write(&guarded.bed));
            })
        };
        guarded.write();
        assert_eq!(guarded.read(), 1);
        other.join().unwrap();
        guarded.write();
        assert_eq!(guarded.read(), 2);
        assert!(guarded.lock.try_write(&guarded.bed).is_some());
    });
}

#[test]
fn loom_readers_of_a_sleeping_lock_never_see_half_a_write() {
    let mut builder = loom::model::Builder::new();
    // Deeper by LOOM_MAX_PREEMPTIONS.
    builder.preemption_bound = builder.preemption_bound.max(Some(3));
    builder.check(|| {
        let guarded = Arc::new(Guarded::new());
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let guarded = Arc::clone(&guarded);
                thread::spawn(move || assert!(guarded.read() <= 1))
            })
            .collect();
        guarded.write();
        for reader in readers {
            reader.join().unwrap();
        }
        assert_eq!(guarded.read(), 1);
    });
}

fn slots(count: usize) -> PerCpu<EpochSlot> {
    let layout = std::alloc::Layout::from_size_align(PerCpu::<EpochSlot>::bytes(count), 128).unwrap();
    // SAFETY: the layout is not empty.
    let memory = NonNull::new(unsafe { std::alloc::alloc(layout) }).unwrap();
    // SAFETY: the block has the size and alignment that `init` asks for; it is leaked, so it is never freed.
    unsafe { PerCpu::init(memory, count, |_| EpochSlot::default()) }
}

/// A hazard of docs/hazards.md, "Every part": freeing while a lock-free reader looks. One object, `ALIVE`
/// while linked; the writer unlinks it, waits for the epoch and poisons it; the reader must never read
/// poison.
#[test]
fn loom_a_reader_never_sees_memory_that_was_reused() {
    const ALIVE: u32 = 7;
    const POISON: u32 = 13;
    loom::model(|| {
        let epoch = Box::leak(Box::new(Epoch::new(slots(2))));
        let linked = Arc::new(AtomicU64::new(1));
        let object = Arc::new(AtomicU32::new(ALIVE));
        let reader = {
            let (linked, object) = (Arc::clone(&linked), Arc::clone(&object));
            let epoch: &'static Epoch = epoch;
            thread::spawn(move || {
                let slot = epoch.slot(CpuId::new(0).unwrap());
                slot.enter(epoch.global());
                if linked.load(Ordering::Acquire) == 1 {
                    assert_eq!(object.load(Ordering::Relaxed), ALIVE);
                }
                slot.exit();
            })
        };
        linked.store(0, Ordering::Release);
        let stamp = epoch.stamp();
        for _ in 0..2 {
            if !epoch.advance() {
                break;
            }
        }
        if epoch.has_passed(stamp) {
            object.store(POISON, Ordering::Relaxed);
        }
        reader.join().unwrap();
    });
}

/// A hazard of docs/hazards.md, "The swap cache and slots": a switch is turned on beside a thread that looks
/// at it after it has made something. Either the thread finds it on, or what the thread made is found once
/// the sections that were open have closed.
#[test]
fn loom_of_a_switch_and_a_section_one_sees_the_other() {
    loom::model(|| {
        let epoch: &'static Epoch = Box::leak(Box::new(Epoch::new(slots(2))));
        let (switch, made) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let maker = {
            let (switch, made) = (Arc::clone(&switch), Arc::clone(&made));
            thread::spawn(move || {
                let slot = epoch.slot(CpuId::new(0).unwrap());
                slot.enter(epoch.global());
                made.store(1, Ordering::Relaxed);
                let on = switch.load(Ordering::Relaxed) == 1;
                slot.exit();
                on
            })
        };
        switch.store(1, Ordering::Relaxed);
        epoch.wait_for_sections::<Loom>();
        let found = made.load(Ordering::Relaxed) == 1;
        assert!(maker.join().unwrap() || found, "neither saw the other");
    });
}

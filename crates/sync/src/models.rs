//! Loom models of what is lock-free here. Every interleaving is tried.

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::epoch::{Epoch, EpochSlot};
use crate::per_cpu::PerCpu;
use crate::spin::SpinLock;
use loom::sync::Arc;
use loom::thread;
use quire_arch::{CpuId, Execution, LockClass};
use std::boxed::Box;
use std::ptr::NonNull;

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

fn slots(count: usize) -> PerCpu<EpochSlot> {
    let layout = std::alloc::Layout::from_size_align(PerCpu::<EpochSlot>::bytes(count), 128).unwrap();
    // SAFETY: the layout is not empty.
    let memory = NonNull::new(unsafe { std::alloc::alloc(layout) }).unwrap();
    // SAFETY: the block has the size and alignment that `init` asks for; it is leaked, so nobody frees it.
    unsafe { PerCpu::init(memory, count, |_| EpochSlot::default()) }
}

/// races.md, "every module": freeing while a lock-free reader looks. One object, `ALIVE` while linked; the
/// writer unlinks it, waits for the epoch and poisons it; the reader must never read poison.
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

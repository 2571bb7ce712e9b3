//! What reclaim has unmapped and locked while it waits for a device.

use crate::common::*;
use quire_frame::FrameFlags;
use quire_host::swap::{Completion, HostRam, SlowConfig, SlowDevice};
use quire_swap::{DeviceError, DeviceFlags, DeviceMemory, PageIo, Submitted, SwapDevice};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

type Slow = SlowDevice<HostRam>;

/// What a test does before completions are reaped for the nth time.
type Before = Box<dyn Fn(u64) + Send + Sync>;

/// A device that completes requests when completions are reaped, but not at the first time.
struct Reaped {
    slow: Slow,
    before: &'static OnceLock<Before>,
    reaps: AtomicU64,
}

impl SwapDevice<HostPlatform> for Reaped {
    fn kind(&self) -> &'static str {
        "reaped"
    }

    fn slots(&self) -> u64 {
        SwapDevice::<HostPlatform>::slots(&self.slow)
    }

    fn flags(&self) -> DeviceFlags {
        SwapDevice::<HostPlatform>::flags(&self.slow)
    }

    unsafe fn submit(&self, memory: DeviceMemory<'_, HostPlatform>, io: PageIo) -> Submitted {
        // SAFETY: the caller's promise.
        unsafe { self.slow.submit(memory, io) }
    }

    fn reap(
        &self,
        memory: DeviceMemory<'_, HostPlatform>,
        done: &mut dyn FnMut(PageIo, Result<(), DeviceError>),
    ) {
        if let Some(before) = self.before.get() {
            let nth = self.reaps.fetch_add(1, Ordering::Relaxed);
            before(nth);
            if nth > 0 {
                self.slow.complete(memory, usize::MAX);
            }
        }
        self.slow.reap(memory, done);
    }

    fn has_done(&self) -> bool {
        SwapDevice::<HostPlatform>::has_done(&self.slow)
    }

    fn wait_key(&self) -> usize {
        SwapDevice::<HostPlatform>::wait_key(&self.slow)
    }

    fn close(&self, memory: DeviceMemory<'_, HostPlatform>) {
        self.slow.close(memory);
    }
}

/// Hazard: reclaim that finds nothing to free waits for the device to write a page, and has others in hand by
/// then, unmapped and locked: their programs wait for that write, too.
#[test]
fn what_was_unmapped_is_written_before_reclaim_waits_for_another_write() {
    let machine: &'static Machine = Box::leak(Box::new(Setup::mib(16).build()));
    let (memory, frames) = (machine.memory(), machine.memory().frames());
    let before: &'static OnceLock<Before> = Box::leak(Box::default());
    let config =
        SlowConfig { completion: Completion::WhenTold, queue: 16, fail_read: None, fail_write: None };
    let slow = SlowDevice::new(HostRam::new(64).unwrap(), config);
    let device = Reaped { slow, before, reaps: AtomicU64::new(0) };
    memory.swapon(device, SwapOnOptions::default()).unwrap();
    let (cpu, space) = cpu_and_space(machine);
    let area = map_at(&space, GIB, 2 * PAGE, RW);
    fill(&cpu, &space, area, 0..2, 1);
    let kept = space.pin_page(area, Access::Read).unwrap().pfn();
    // They were not used. One cannot be paged out before all else was tried.
    space.madvise(area, 2 * PAGE, Advice::Cold).unwrap();
    frames.folios().try_lock_folio(kept).unwrap().leave_held();
    let in_hand: &'static AtomicBool = Box::leak(Box::default());
    let look = move |nth| {
        if nth == 0 {
            drop(frames.folios().adopt_folio_lock(kept));
        } else if frames.known(kept).word().flags().contains(FrameFlags::LOCKED) {
            in_hand.store(true, Ordering::Relaxed);
        }
    };
    assert!(before.set(Box::new(look)).is_ok());
    assert!(cpu.run(|| memory.reclaim(MemcgId::ROOT, 2)) > 0);
    assert!(!in_hand.load(Ordering::Relaxed), "a page is unmapped while it waits for another one");
    assert_eq!(space.figures().swapped, 2 * PAGE);
    assert_filled(&cpu, &space, area, 0..2, 1);
    assert_audit(machine);
}

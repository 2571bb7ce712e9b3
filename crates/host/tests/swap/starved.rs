//! What reclaim has unmapped and locked while it waits for a device.

use crate::common::*;
use crate::watched::{Calls, DeviceOf, Report, Watched};
use quire_frame::FrameFlags;
use quire_host::swap::{Completion, HostRam, SlowConfig, SlowDevice};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

type Slow = SlowDevice<HostRam>;

/// Completes requests when completions are reaped, but not at the first time.
struct Reaped {
    /// What a test does before completions are reaped for the nth time.
    before: OnceLock<Box<dyn Fn(u64) + Send + Sync>>,
    reaps: AtomicU64,
}

impl Calls<Slow> for Arc<Reaped> {
    fn reap(&self, slow: &Slow, memory: DeviceOf<'_>, _: usize, _: Report<'_>) {
        if let Some(before) = self.before.get() {
            let nth = self.reaps.fetch_add(1, Ordering::Relaxed);
            before(nth);
            if nth > 0 {
                slow.complete(memory, usize::MAX);
            }
        }
    }
}

/// Hazard: reclaim that finds nothing to free waits for the device to write a page, and has others in hand by
/// then, unmapped and locked: their programs wait for that write, too.
#[test]
fn what_was_unmapped_is_written_before_reclaim_waits_for_another_write() {
    let machine: &'static Machine = Box::leak(Box::new(Setup::mib(16).build()));
    let (memory, frames) = (machine.memory(), machine.memory().frames());
    let reaped = Arc::new(Reaped { before: OnceLock::new(), reaps: AtomicU64::new(0) });
    let config =
        SlowConfig { completion: Completion::WhenTold, queue: 16, fail_read: None, fail_write: None };
    let slow = SlowDevice::new(HostRam::new(64).unwrap(), config);
    swap_on(machine, Watched::in_front_of(slow, Arc::clone(&reaped)));
    let (cpu, space) = cpu_and_space(machine);
    let area = map_filled(&cpu, &space, GIB, 2, 1);
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
    assert!(reaped.before.set(Box::new(look)).is_ok());
    assert!(cpu.run(|| memory.reclaim(MemcgId::ROOT, 2)) > 0);
    assert!(!in_hand.load(Ordering::Relaxed), "a page is unmapped while it waits for another one");
    assert_eq!(space.figures().swapped, 2 * PAGE);
    assert_filled(&cpu, &space, area, 0..2, 1);
    assert_audit(machine);
}

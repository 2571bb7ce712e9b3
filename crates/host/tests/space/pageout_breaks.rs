//! A page-out that ends before all of a folio is unmapped, on a machine that calls the test between two
//! steps.

use crate::common::*;
use crate::short_pins::machine::{Machine, after_each_hold, run_on};
use crate::shortage::memory_of;
use quire_frame::FrameFlags;
use quire_host::swap::HostRam;
use quire_mm::Memory;
use std::thread;

/// Pages of a folio on the machine of [`with_folios`].
pub(crate) const FOLIO: u64 = 16;

/// The memory of a machine with so many CPUs, large folios and a swap device of 64 slots. This thread runs on
/// the first CPU.
pub(crate) fn with_folios(cpus: usize) -> &'static Memory<Machine> {
    let policy = HugePolicy::default().with_enabled(HugeEnabled::Never);
    let policy = policy.with_sizes(orders(&[4]), SizeEnabled::Always);
    let memory = memory_of(2048, cpus, |memory| memory.huge.policy = policy);
    memory.swapon(HostRam::new(64).unwrap(), SwapOnOptions::default()).unwrap();
    memory
}

/// Hazard: a part of a folio is mlocked when another part has swap entries already. When those are given up
/// the folio leaves the swap cache with the rest mapped, and nothing queues it.
#[test]
fn a_folio_that_a_lock_keeps_from_being_unmapped_in_full_waits_to_be_split() {
    const HALF: u64 = FOLIO / 2 * PAGE;
    let memory = with_folios(2);
    let space: &'static _ = Box::leak(Box::new(memory.create_space().unwrap()));
    let area = map_at(space, GIB, FOLIO * PAGE, RW);
    space.fault(area, Access::Write).unwrap();
    assert_eq!(space.figures().resident_anonymous, FOLIO * PAGE, "one folio");
    // Two mappings, which are unmapped one after the other.
    space.mprotect(area, HALF, READ, false).unwrap();
    let upper = page(area, FOLIO / 2);
    let head = space.pin_page_fast(upper, Access::Read).unwrap().pfn().block_start(Order::new(4).unwrap());
    let mut locks = true;
    let lock_the_rest = move || {
        // Its mappings were looked at for locks, and the next step is to unmap it.
        if memory.frames().known(head).word().flags().contains(FrameFlags::SWAP_CACHE)
            && core::mem::take(&mut locks)
        {
            // By another thread: this one holds locks.
            let lock = thread::spawn(move || {
                run_on(1);
                space.mlock(upper, HALF, true).unwrap();
            });
            lock.join().unwrap();
        }
    };
    after_each_hold(LockClass::SwapCluster, lock_the_rest, || {
        (0..4).for_each(|_| _ = memory.reclaim(MemcgId::ROOT, 64));
    });
    assert_eq!((space.figures().swapped, space.figures().locked), (HALF, HALF), "what is locked stays");
    space.madvise(area, HALF, Advice::DontNeed).unwrap();
    assert_eq!(memory.swap().devices().free_slots(), 64, "it is not in the swap cache");
    assert_eq!(memory.memcgs().splits().waiting(), 1, "pages that nothing needs stay charged");
    assert_eq!(memory.spaces().thp().split_deferred(u64::MAX), FOLIO / 2);
    assert_eq!(space.figures().resident_anonymous, HALF);
}

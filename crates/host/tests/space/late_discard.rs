//! A thread that needs memory while a device takes long to discard the last free slots.

use crate::common::*;
use crate::short_pins::machine::{
    Machine, ONE, at_the_next_wait, exhaust, frames_with_watermarks, let_time_fly, run_on,
};
use crate::shortage::{create, spaces_on};
use quire_host::swap::HostRam;
use quire_reclaim::Policy;
use quire_space::{Need, OomOutcome, Reclaim, Spaces};
use quire_swap::{DeviceFlags, DeviceMemory, PageIo, Submitted, SwapDevice};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

/// Slots of a cluster.
const CLUSTER: u64 = 512;

/// Whether a discard has begun, and whether it may end.
#[derive(Default)]
struct Discard {
    has_begun: AtomicBool,
    may_end: AtomicBool,
}

/// A device whose discard takes until the test ends it.
struct Slow {
    pages: HostRam,
    discard: Arc<Discard>,
}

impl SwapDevice<Machine> for Slow {
    fn kind(&self) -> &'static str {
        "slow"
    }

    fn slots(&self) -> u64 {
        SwapDevice::<Machine>::slots(&self.pages)
    }

    fn flags(&self) -> DeviceFlags {
        DeviceFlags::SYNCHRONOUS | DeviceFlags::DISCARD
    }

    unsafe fn submit(&self, memory: DeviceMemory<'_, Machine>, io: PageIo) -> Submitted {
        // SAFETY: the caller's promise.
        unsafe { self.pages.submit(memory, io) }
    }

    fn discard(&self, _: DeviceMemory<'_, Machine>, _: u64, _: u64) {
        self.discard.has_begun.store(true, Ordering::Relaxed);
        while !self.discard.may_end.load(Ordering::Relaxed) {
            thread::yield_now();
        }
    }
}

/// Linux's policy. The discard ends when a thread has found nothing to free, while it still reclaims or when
/// it waits; or when a program is to be killed.
#[derive(Default)]
struct Ending {
    discard: Arc<Discard>,
    while_it_reclaims: bool,
    spaces: OnceLock<&'static Spaces<Machine>>,
    looks: AtomicU64,
    kills: AtomicU64,
}

impl Reclaim<Machine> for Ending {
    fn make_room(&self, spaces: &Spaces<Machine>, need: Need) -> u64 {
        let freed = Policy.make_room(spaces, need);
        if self.looks.fetch_add(1, Ordering::Relaxed) == 0 {
            assert!(spaces.swap().discard().has_late_discard() && freed == 0);
            let (discard, spaces) = (Arc::clone(&self.discard), *self.spaces.get().unwrap());
            let end = move || {
                discard.may_end.store(true, Ordering::Relaxed);
                assert!(within_reason(|| !spaces.swap().discard().has_late_discard()));
            };
            if self.while_it_reclaims { end() } else { at_the_next_wait(end) }
        }
        freed
    }

    fn out_of_memory(&self, _: &Spaces<Machine>, _: Need) -> OomOutcome {
        self.kills.fetch_add(1, Ordering::Relaxed);
        self.discard.may_end.store(true, Ordering::Relaxed);
        OomOutcome::Nothing
    }

    fn page_out(&self, spaces: &Spaces<Machine>, folios: &mut dyn Iterator<Item = Pfn>) -> u64 {
        Policy.page_out(spaces, folios)
    }

    fn throttle(&self, _: &Spaces<Machine>, _: MemcgId) {}
}

/// Hazard: the last free slots are being discarded, and that takes long. A thread that needs memory waits for
/// a while, takes it that there is no slot, and a program is killed though slots come at once.
#[test]
fn no_program_is_killed_while_the_last_free_slots_are_discarded() {
    takes_slots_of_a_late_discard(false);
}

/// The same; the discard ends after the thread has asked for slots for the last time, and before it has found
/// out that there is nothing else.
#[test]
fn no_program_is_killed_where_the_discard_ends_during_the_reclaim() {
    takes_slots_of_a_late_discard(true);
}

fn takes_slots_of_a_late_discard(while_it_reclaims: bool) {
    // One frame less is a table of slots.
    const PAGES: u64 = 8;
    run_on(0);
    let ending: &'static Ending = Box::leak(Box::new(Ending { while_it_reclaims, ..Ending::default() }));
    let discard = &ending.discard;
    // Tables of slots are allocated from what is kept back.
    let frames = frames_with_watermarks(Machine::new(&[(0, 4096)], 2), 256);
    let spaces = spaces_on(Memcgs::new(frames).unwrap(), HugePolicy::default(), ending);
    assert!(ending.spaces.set(spaces).is_ok());
    let device = Slow { pages: HostRam::new(1024).unwrap(), discard: Arc::clone(discard) };
    let options = SwapOnOptions { discard: true, ..SwapOnOptions::default() };
    // A discard of the whole device.
    discard.may_end.store(true, Ordering::Relaxed);
    quire_space::swapon(spaces, device, options).unwrap();
    discard.may_end.store(false, Ordering::Relaxed);
    discard.has_begun.store(false, Ordering::Relaxed);
    let space = create(spaces);
    let map = |at: u64, pages: u64| map_at(space, at * GIB, pages * PAGE, RW);
    let write = |area, pages| (0..pages).for_each(|at| space.fault(page(area, at), Access::Write).unwrap());
    // All slots are in use, and then a cluster is free.
    let areas = [1, 2].map(|at| {
        let area = map(at, CLUSTER);
        write(area, CLUSTER);
        space.madvise(area, CLUSTER * PAGE, Advice::PageOut).unwrap();
        area
    });
    assert_eq!(space.figures().swapped, 2 * CLUSTER * PAGE);
    space.munmap(areas[0], CLUSTER * PAGE).unwrap();
    let pages = map(3, 1 + PAGES);
    write(pages, PAGES);
    exhaust(spaces.frames(), ONE);
    let discards = thread::spawn(|| {
        run_on(1);
        spaces.swap().discard().discard_free_clusters(1)
    });
    assert!(within_reason(|| discard.has_begun.load(Ordering::Relaxed)));
    let_time_fly();
    let written = space.fault(page(pages, PAGES), Access::Write);
    discard.may_end.store(true, Ordering::Relaxed);
    assert_eq!((written, discards.join().unwrap()), (Ok(()), 1));
    let counts = [&ending.looks, &ending.kills].map(|count| count.load(Ordering::Relaxed));
    assert_eq!(counts, [2, 0], "looks for memory, and for programs to kill");
    assert_eq!(space.figures().swapped, (CLUSTER + PAGES) * PAGE);
}

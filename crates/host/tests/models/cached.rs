//! A compressed cache that is always full, in front of a device: pages are written back while their slots are
//! freed, filled anew and written to past the cache.

use crate::late::{Behaviour, Late};
use crate::machines::*;
use quire_sync::atomic::as_one_step;
use shuttle::thread;

/// Pages with a slot each, and one slot more.
const PAGES: [VirtAddr; 3] = [ADDR, BEFORE, ELSEWHERE];
const SLOTS: u64 = 4;
/// The cache has room for one page that cannot be compressed.
const ROOM: u64 = PAGE;

/// Adds such a cache in front of `behind`.
fn cache_before(machine: &Machine, behind: impl SwapDevice<HostPlatform>) {
    let cache = machine.memory().create_compressed_cache(behind, ROOM).expect("there is memory enough");
    machine.memory().swapon(cache, SwapOnOptions::default()).expect("there is memory enough");
}

/// Fills the page, which is mapped, with what cannot be compressed; `value` comes first.
fn fill(machine: &Machine, cpu: usize, space: &HostSpace<'_>, addr: VirtAddr, value: u64) {
    write(machine, cpu, space, addr, value);
    as_one_step(|| {
        // Another thread may have paged it out again: then it is as good as any.
        let Some(pinned) = space.pin_page_fast(addr, Access::Write) else { return };
        let first = machine.memory().platform().direct_map(pinned.pfn()).cast::<u64>();
        for word in 1..PAGE / 8 {
            let mixed = (value << 32 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            // SAFETY: the page is pinned and has so many words.
            unsafe { first.add(word as usize).write_volatile(mixed ^ mixed >> 29) };
        }
    });
}

/// Fills the page and pages it out as often as `values` has members; each time what was written is read.
fn rounds(machine: &Machine, cpu: usize, space: &HostSpace<'_>, values: [u64; 2]) {
    for value in values {
        fill(machine, cpu, space, PAGES[cpu], value);
        on_cpu(machine, cpu, space, |_| page_out(space, PAGES[cpu], PAGE));
        assert_eq!(read(machine, cpu, space, PAGES[cpu]), value, "another page, or an older one");
    }
}

/// Frees the slot of the page, and lets it be used again at once.
fn rounds_with_reuse(machine: &Machine, cpu: usize, space: &HostSpace<'_>) {
    on_cpu(machine, cpu, space, |_| {
        space.madvise(PAGES[cpu], PAGE, Advice::DontNeed).expect("it is mapped");
    });
    rounds(machine, cpu, space, [11, 12]);
}

/// All pages are written and out; the first is the oldest of the cache.
fn all_out(machine: &Machine, space: &HostSpace<'_>) {
    as_one_step(|| {
        for (nth, addr) in PAGES.into_iter().enumerate() {
            map_at(space, addr.0, PAGE, RW);
            fill(machine, 0, space, addr, 1 + nth as u64);
            page_out(space, addr, PAGE);
            machine.memory().swap().io().reap();
        }
    });
}

/// The device completes at once, on the CPU that writes back: a thread that waits for that on another CPU is
/// woken, and no page that came meanwhile is dropped.
#[test]
fn shuttle_a_writeback_against_the_reuse_of_its_slot() {
    with_swap(3).mib(4).slots(0).check(SOME, |machine, space| {
        as_one_step(|| {
            let disk = RamDisk::new(machine.memory().frames(), SLOTS).expect("there is memory enough");
            cache_before(machine, disk);
        });
        all_out(machine, space);
        thread::scope(|scope| {
            scope.spawn(|| rounds_with_reuse(machine, 0, space));
            scope.spawn(|| rounds(machine, 1, space, [21, 22]));
            scope.spawn(|| rounds(machine, 2, space, [31, 32]));
        });
        let seen = as_one_step(|| PAGES.map(|addr| read(machine, 0, space, addr)));
        assert_eq!(seen, [12, 22, 32]);
    });
}

/// The device completes later, takes one request at a time, and whichever thread reaps finds the completions
/// of all: the others go on.
#[test]
fn shuttle_a_late_writeback_against_the_reuse_of_its_slot() {
    for most in [1, 0] {
        with_swap(3).mib(4).slots(0).check(SOME, move |machine, space| {
            let late = as_one_step(|| {
                let late = Late::new(machine, SLOTS, Behaviour { most, ..Behaviour::default() });
                cache_before(machine, late.clone());
                late
            });
            all_out(machine, space);
            late.run(
                machine,
                vec![
                    Box::new(|| rounds_with_reuse(machine, 0, space)),
                    Box::new(|| rounds(machine, 1, space, [21, 22])),
                    Box::new(|| rounds(machine, 2, space, [31, 32])),
                ],
            );
            as_one_step(|| {
                machine.memory().swap().io().reap();
                assert_eq!(PAGES.map(|addr| read(machine, 0, space, addr)), [12, 22, 32]);
            });
        });
    }
}

//! Calls that find no memory once they have changed something, and what another thread does meanwhile.

use crate::common::*;
use crate::short_pins::machine::{Machine, at_the_next_wait, let_time_fly, run_on};
use crate::shortage::{Looks, create, spaces_of};
use quire_space::Space;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

const PAGES: u64 = 8;
const OTHERS: u64 = 4;
const FROM: VirtAddr = VirtAddr(1 << 30);
/// Where no table is.
const FAR: VirtAddr = VirtAddr(1 << 40);

/// As [`try_beside`], for a call that looks for memory.
fn beside<T: Send + 'static>(
    space: &'static Space<'static, Machine>,
    looks: &'static Looks,
    others: impl Fn(&Space<'static, Machine>) -> T + Copy + Send + Sync + 'static,
    call: impl FnOnce(),
) -> T {
    try_beside(space, looks, others, call).expect("memory was looked for")
}

/// Makes `call` on a machine without a free frame. While it looks for memory, another thread does `others`,
/// and has done it, or waits for the lock of the mappings, when memory is there. Returns what it returned, if
/// memory was looked for.
fn try_beside<T: Send + 'static>(
    space: &'static Space<'static, Machine>,
    looks: &'static Looks,
    others: impl Fn(&Space<'static, Machine>) -> T + Copy + Send + Sync + 'static,
    call: impl FnOnce(),
) -> Option<T> {
    let spaces = space.spaces();
    let other: &'static Mutex<Option<(JoinHandle<T>, bool)>> = Box::leak(Box::default());
    let look = move |_| {
        let freed = looks.give_back(spaces);
        let mut other = other.lock().unwrap();
        if other.is_none() {
            let through: &'static AtomicBool = Box::leak(Box::default());
            let thread = thread::spawn(move || {
                run_on(1);
                at_the_next_wait(|| through.store(true, Ordering::Relaxed));
                let done = others(space);
                through.store(true, Ordering::Relaxed);
                done
            });
            let is_beside = within_reason(|| through.load(Ordering::Relaxed));
            *other = Some((thread, is_beside));
        }
        freed
    };
    looks.at_each(look);
    looks.take_all(spaces);
    call();
    let (thread, is_beside) = other.lock().unwrap().take()?;
    assert!(is_beside, "the other thread did not get so far");
    Some(thread.join().unwrap())
}

/// A space with `PAGES` pages at `at`, the first of which is there.
fn space_with(at: VirtAddr) -> (&'static Space<'static, Machine>, &'static Looks) {
    let_time_fly();
    let (spaces, looks) = spaces_of(2048, 2, HugePolicy::default());
    let space = create(spaces);
    map_at(space, at.0, PAGES * PAGE, RW);
    space.fault(at, Access::Write).unwrap();
    (space, looks)
}

/// Moves the mapping at `FROM` to `FAR`, of which `pages` pages are kept, while another thread maps some
/// pages, at `hint` if nothing is there. Both then have theirs. `before` is done first.
fn move_beside_a_mapping(pages: u64, hint: VirtAddr, before: impl FnOnce(&Space<'static, Machine>)) {
    let (space, looks) = space_with(FROM);
    before(space);
    let others = move |space: &Space<'static, Machine>| {
        let request = MapRequest::anonymous(OTHERS * PAGE, RW).at(hint, MapFlags::empty());
        space.mmap(&request).unwrap()
    };
    let area = beside(space, looks, others, || {
        assert_eq!(space.mremap(FROM, PAGES * PAGE, pages * PAGE, MOVE, FAR), Ok(FAR));
    });
    assert_eq!(space.figures().mapped, (pages + OTHERS) * PAGE, "a mapping is lost");
    for mapped in [FAR, page(FAR, pages - 1), area, page(area, OTHERS - 1)] {
        assert_eq!(space.fault(mapped, Access::Write), Ok(()), "{mapped:?}");
    }
}

/// Hazard: a move that unmaps its target, finds no memory and is made again after a reclaim unmaps what
/// another thread has mapped there in between.
#[test]
fn what_another_thread_maps_at_the_target_of_a_move_stays() {
    move_beside_a_mapping(PAGES, FAR, |space| {
        map_at(space, FAR.0, PAGES * PAGE, NONE);
    });
}

/// Hazard: the same where a move cuts off the end of the mapping.
#[test]
fn what_another_thread_maps_where_a_move_has_cut_a_mapping_stays() {
    move_beside_a_mapping(PAGES - OTHERS, page(FROM, PAGES - OTHERS), |_| ());
}

/// Hazard: guards are installed in one mapping, the next one finds no memory, and all is made again after a
/// reclaim: what another thread wrote to a page whose guard it had removed in between is dropped.
#[test]
fn a_page_whose_guard_another_thread_has_removed_is_not_guarded_again() {
    const AT: VirtAddr = VirtAddr(FAR.0 - PAGES * PAGE);
    let (space, looks) = space_with(AT);
    // Another mapping, since it is of other flags, in other tables.
    map_at(space, FAR.0, PAGES * PAGE, READ);
    let others = |space: &Space<'static, Machine>| {
        space.madvise(page(AT, 1), PAGE, Advice::GuardRemove).unwrap();
        space.fault(page(AT, 1), Access::Write)
    };
    let written = beside(space, looks, others, || {
        assert_eq!(space.madvise(AT, 2 * PAGES * PAGE, Advice::GuardInstall), Ok(()));
    });
    assert_eq!(written, Ok(()));
    assert_eq!(space.fault(page(AT, 1), Access::Write), Ok(()), "guarded again");
    for guarded in [AT, page(AT, 2), FAR] {
        assert_eq!(space.fault(guarded, Access::Read), Err(FaultError::NotMapped), "{guarded:?}");
    }
}

/// Hazard: a lock of several mappings that is made again from its first after a shortage locks what another
/// thread has unlocked in between.
#[test]
fn what_another_thread_unlocks_is_not_locked_again() {
    let mut looked = 0;
    for others in 0..80 {
        let (space, looks) = space_with(FROM);
        let tail = page(FROM, PAGES);
        map_at(space, tail.0, PAGES * PAGE, READ);
        for nth in 0..others {
            let at = VirtAddr(FAR.0 + nth * 2 * PAGE);
            map_at(space, at.0, PAGE, READ);
        }
        // The second mapping is split, which takes a VMA. Only as pages are faulted in, so no page is needed.
        let unlock = |space: &Space<'static, Machine>| space.munlock(FROM, PAGES * PAGE).unwrap();
        let lock = || assert_eq!(space.mlock(FROM, (PAGES + 2) * PAGE, true), Ok(()));
        if try_beside(space, looks, unlock, lock).is_none() {
            continue;
        }
        looked += 1;
        assert_eq!(space.figures().locked, 2 * PAGE, "{others}: the first mapping is locked again");
    }
    assert!(looked > 0, "no call looked for memory in its second mapping");
}

/// Hazard: each turn of a move that cuts off the end of its mapping counts that as a step, and so has all
/// attempts again. Where others take all that is freed it never gives up, with the mmap lock held.
#[test]
fn a_move_for_which_there_is_no_memory_gives_up() {
    for (pages, reserved) in [(PAGES, false), (PAGES, true), (PAGES - OTHERS, false), (PAGES - OTHERS, true)]
    {
        let (space, looks) = space_with(FROM);
        if reserved {
            map_at(space, FAR.0, PAGES * PAGE, NONE);
        }
        let spaces = space.spaces();
        let look = move |nth| {
            if nth >= 1000 {
                looks.give_back(spaces);
            }
            // Others have taken that, too.
            1 << 20
        };
        looks.at_each(look);
        looks.take_all(spaces);
        let moved = space.mremap(FROM, PAGES * PAGE, pages * PAGE, MOVE, FAR);
        assert!(moved.is_err() && looks.counts()[0] <= 100, "{moved:?} after {:?}", looks.counts());
    }
}

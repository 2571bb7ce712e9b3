//! How often a thread that needs memory looks for it beside others, and what it has let go by then.

use crate::common::*;
use crate::kill_lets_go::is_locked;
use crate::short_pins::machine::{Machine, let_time_fly};
use crate::shortage::{Looks, create, create_owned, spaces_of};
use quire_space::{Space, Spaces};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

fn spaces() -> (&'static Spaces<Machine>, &'static Looks) {
    let_time_fly();
    spaces_of(2048, 1, HugePolicy::default())
}

/// A program with a page to touch, and all tables for it.
fn program(spaces: &'static Spaces<Machine>) -> (&'static Space<'static, Machine>, VirtAddr) {
    let space = create(spaces);
    let area = map_at(space, GIB, 2 * PAGE, RW);
    space.fault(page(area, 1), Access::Write).unwrap();
    (space, area)
}

/// So many programs that have been killed, and have not exited.
fn killed(spaces: &'static Spaces<Machine>, programs: usize) -> Mutex<Vec<Space<'static, Machine>>> {
    let killed = || {
        let space = create_owned(spaces);
        space.oom().kill();
        space
    };
    Mutex::new((0..programs).map(|_| killed()).collect())
}

/// Hazard: a program that was killed exits beside a thread that has just found nothing to free. What it
/// leaves is not free yet, but can be freed now. The thread has another program killed.
#[test]
fn what_an_exit_leaves_is_reclaimed_before_a_program_is_killed() {
    let (spaces, looks) = spaces();
    let (space, area) = program(spaces);
    let killed = killed(spaces, 1);
    let look = move |nth| {
        if nth > 0 {
            return looks.give_back(spaces);
        }
        drop(killed.lock().unwrap().pop());
        looks.take_all(spaces);
        0
    };
    looks.at_each(look);
    looks.take_all(spaces);
    assert_eq!(space.fault(area, Access::Write), Ok(()));
    assert_eq!(looks.counts(), [2, 0], "looks for memory, and for programs to kill");
}

/// Hazard: others are under way as long as a thread looks, and a program that was killed exits when it has
/// reclaimed for the last time.
#[test]
fn what_an_exit_leaves_at_the_end_is_reclaimed_too() {
    const LAST: u64 = 9;
    let (spaces, looks) = spaces();
    let (space, area) = program(spaces);
    let killed = killed(spaces, 1);
    let look = move |nth| {
        if nth > LAST {
            return looks.give_back(spaces);
        }
        if nth == LAST {
            drop(killed.lock().unwrap().pop());
            looks.take_all(spaces);
        }
        0
    };
    looks.at_each(look);
    looks.take_all(spaces);
    let _others = spaces.begin_reclaim();
    assert_eq!(space.fault(area, Access::Write), Ok(()));
    assert_eq!(looks.counts(), [LAST + 2, 0], "looks for memory, and for programs to kill");
}

/// Hazard: frames that others have freed wait for readers that are gone by now. A thread that needs one does
/// not look there, and waits for those that reclaim beside it.
#[test]
fn frames_that_wait_for_readers_are_room() {
    let (spaces, looks) = spaces();
    let (space, area) = program(spaces);
    let look = move |nth| {
        if nth == 0 {
            let pin = spaces.platform().pin();
            let _reader = spaces.frames().epoch().enter(&pin);
            for pfn in looks.taken.lock().unwrap().drain(..8) {
                spaces.frames().limbo().retire(&pin, pfn, Order::ZERO).unwrap();
            }
        }
        0
    };
    looks.at_each(look);
    looks.take_all(spaces);
    let _others = spaces.begin_reclaim();
    let began = spaces.platform().now();
    assert_eq!(space.fault(area, Access::Write), Ok(()));
    let took = spaces.platform().now() - began;
    assert!(took < 50_000_000, "{took} ns");
    assert_eq!(looks.counts(), [1, 0], "looks for memory, and for programs to kill");
}

/// Hazard: a fault keeps the lock of the folio that it has swapped in while one program after another is
/// killed elsewhere: threads that want the folio wait as long as memory is short. Or it lets it go each time,
/// and there is no end of that.
#[test]
fn a_folio_is_let_go_for_some_programs_that_others_kill() {
    const PROGRAMS: u64 = 20;
    let (spaces, looks) = spaces();
    let (parent, area) = program(spaces);
    parent.fault(area, Access::Write).unwrap();
    parent.madvise(area, PAGE, Advice::PageOut).unwrap();
    let _child = parent.fork().unwrap();
    let killed = killed(spaces, PROGRAMS as usize);
    // How often it was locked before a program exits, and after that.
    let locked: &'static [AtomicU64; 2] = Box::leak(Box::default());
    let look = move |nth| {
        let now = is_locked(spaces);
        locked[(nth % 2) as usize].fetch_add(u64::from(now), Ordering::Relaxed);
        if nth % 2 > 0 {
            if nth / 2 + 1 == PROGRAMS {
                return looks.give_back(spaces);
            }
            // It is all that can be freed, and has to be swapped in again.
            parent.madvise(area, PAGE, Advice::PageOut).unwrap();
            return 1;
        }
        drop(killed.lock().unwrap().pop());
        looks.take_all(spaces);
        0
    };
    looks.at_each(look);
    // One frame is left for the page, and none for the copy.
    looks.take_all(spaces);
    looks.give_one_back(spaces);
    assert_eq!(parent.fault(area, Access::Write), Ok(()));
    assert_eq!(looks.counts(), [2 * PROGRAMS, 0]);
    assert_eq!(locked.each_ref().map(|count| count.load(Ordering::Relaxed)), [PROGRAMS, PROGRAMS - 16]);
}

/// Hazard: others put back what can be freed now, and are done. A thread that has reclaimed once beside them
/// sleeps for as long as if they were still at it.
#[test]
fn what_others_put_back_is_reclaimed_soon() {
    const LOOKS: usize = 10;
    let (spaces, looks) = spaces();
    let (space, area) = program(spaces);
    let times: &'static Mutex<Vec<u64>> = Box::leak(Box::default());
    let look = move |_| {
        times.lock().unwrap().push(spaces.platform().now());
        // Others have freed something meanwhile, and have taken it.
        spaces.note_reclaimed(1);
        0
    };
    looks.at_each(look);
    looks.take_all(spaces);
    assert_eq!(space.fault(area, Access::Write), Ok(()));
    let times = times.lock().unwrap();
    let longest = times.windows(2).take(LOOKS).map(|pair| pair[1] - pair[0]).max();
    assert!(longest.is_some_and(|ns| ns < 100_000_000), "{times:?}");
    assert!(times.len() <= 32 && looks.counts()[1] == 1, "{times:?}");
}

//! What a thread that needs memory holds while it looks for some, and when a program is killed for it.

use crate::common::*;
use crate::short_pins::machine::{Machine, let_time_fly};
use crate::shortage::{create, create_owned, spaces_of};
use quire_frame::Kind;
use quire_space::{Space, Spaces};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

/// Whether any page of a program is locked.
pub(crate) fn is_locked(spaces: &Spaces<Machine>) -> bool {
    let mut locked = false;
    let frames = spaces.frames();
    frames.audit().for_each_frame(|pfn, frame| {
        locked |= frame.kind() == Kind::Anonymous && frames.folios().try_lock_folio(pfn).is_none();
    });
    locked
}

/// Hazard: a fault lets the folio go that it swapped in, and reclaims it while it waits for others. It swaps
/// it in again for ever: no program is killed for the copy that it needs. Or it keeps it locked while a
/// program is killed, which may be waiting for it.
#[test]
fn a_folio_is_let_go_when_a_program_is_killed_and_not_before() {
    let_time_fly();
    let (spaces, looks) = spaces_of(2048, 1, HugePolicy::default());
    // Looks for memory during which the only page was locked, and those during which it was not; and whether
    // it was when a program was to be killed.
    let locked: &'static [AtomicU64; 2] = Box::leak(Box::default());
    let at_the_kill: &'static OnceLock<bool> = Box::leak(Box::default());
    looks.at_each(move |_| {
        locked[usize::from(!is_locked(spaces))].fetch_add(1, Ordering::Relaxed);
        // Others free something all the time.
        spaces.note_reclaimed(1);
        0
    });
    looks.before_a_kill(move || at_the_kill.set(is_locked(spaces)).unwrap());
    let parent = create(spaces);
    let area = map_at(parent, GIB, PAGE, RW);
    parent.fault(area, Access::Write).unwrap();
    parent.madvise(area, PAGE, Advice::PageOut).unwrap();
    assert_eq!(parent.figures().swapped, PAGE);
    let child = parent.fork().unwrap();
    // One frame is left for the page, and none for the copy.
    looks.take_all(spaces);
    looks.give_one_back(spaces);
    parent.fault(area, Access::Write).unwrap();
    assert_eq!(at_the_kill.get(), Some(&false), "the page is locked");
    let looks = locked.each_ref().map(|looks| looks.load(Ordering::Relaxed));
    // Others free something all the time: it looks whether there is room more often than it reclaims itself.
    assert!((2..=32).contains(&looks[0]) && looks[1] == 0, "{looks:?}");
    assert_eq!((parent.figures().resident_anonymous, child.figures().swapped), (PAGE, PAGE));
}

/// Hazard: a program that is killed looks for memory for a second and more, as long as others reclaim, and
/// what it has is not free until then. Or another one is killed for it.
#[test]
fn a_killed_program_looks_for_no_memory_beside_others() {
    for others in [true, false] {
        let_time_fly();
        let (spaces, looks) = spaces_of(2048, 1, HugePolicy::default());
        let space = create(spaces);
        let area = map_at(space, GIB, PAGE, RW);
        // There is nothing to free. Another program kills the one that looks for memory.
        looks.at_each(move |_| {
            space.oom().kill();
            0
        });
        looks.take_all(spaces);
        let _others = others.then(|| spaces.begin_reclaim());
        assert_eq!(space.fault(area, Access::Write), Err(FaultError::Killed));
        assert_eq!(looks.counts(), [1, 0], "looks for memory, and for programs to kill");
    }
}

/// Hazard: programs that others have killed exit beside a fault without memory. It takes each for a reason to
/// begin anew, and gets no page, nor is a program killed for it, for as long as there are such.
#[test]
fn exits_of_killed_programs_do_not_keep_a_fault_from_its_end() {
    const PROGRAMS: usize = 400;
    let_time_fly();
    let (spaces, looks) = spaces_of(1 << 13, 1, HugePolicy::default());
    let killed: &'static Mutex<Vec<Space<'static, Machine>>> = Box::leak(Box::default());
    // How many have not exited when one is to be killed here.
    let left: &'static OnceLock<usize> = Box::leak(Box::default());
    // Each time a program that was killed exits, and others take what that frees.
    looks.at_each(move |_| {
        drop(killed.lock().unwrap().pop());
        looks.take_all(spaces);
        spaces.note_reclaimed(1);
        0
    });
    looks.before_a_kill(move || _ = left.set(killed.lock().unwrap().len()));
    let space = create(spaces);
    let area = map_at(space, GIB, PAGE, RW);
    for _ in 0..PROGRAMS {
        let program = create_owned(spaces);
        program.oom().kill();
        killed.lock().unwrap().push(program);
    }
    looks.take_all(spaces);
    assert_eq!(space.fault(area, Access::Write), Ok(()));
    assert!(left.get().is_some_and(|&left| left > 0), "{left:?} of them are left");
}

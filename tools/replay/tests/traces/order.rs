//! Replays of calls that overlap with calls of other threads.

use crate::header;
use quire_replay::{ProcessReport, Replay, ReplayOptions};
use quire_trace::event::{
    Access, Call, CallDetail, CloneFacts, Denial, Event, EventKind, ExecImage, ExitStatus, Fault, Lost,
    LostCause, Mapping, Mode, Outcome, Privileges, TaskId, Window,
};
use quire_trace::format::TraceWriter;
use std::collections::HashMap;
use std::fs::File;
use tempfile::NamedTempFile;

const START: u64 = 0x10_0000;
const PAGES: u64 = 64;
const EINVAL: i64 = -(libc::EINVAL as i64);
const ENOMEM: i64 = -(libc::ENOMEM as i64);
/// The thread that changes mappings, and the one that drops pages.
const CHANGER: u32 = 0;
const DROPPER: u32 = 1;

/// One more thread that changes mappings.
const OTHER: u32 = 2;

/// A call of a thread: its window if it overlaps, its number, its range in pages, a third argument and its
/// result. Or a touch, at the start of its window.
pub(crate) struct Made(
    pub(crate) u32,
    pub(crate) Option<(u64, u64)>,
    pub(crate) i64,
    pub(crate) (u64, u64),
    pub(crate) u64,
    pub(crate) i64,
);

/// Where a page is.
pub(crate) fn at(page: u64) -> i64 {
    (START + (page << 12)) as i64
}

fn lock(window: (u64, u64)) -> Made {
    Made(CHANGER, Some(window), libc::SYS_mlock, (0, 32), 0, 0)
}

/// A new mapping of these pages, wherever they lay before.
fn map(task: u32, window: (u64, u64), pages: (u64, u64)) -> Made {
    Made(task, Some(window), libc::SYS_mmap, pages, (libc::PROT_READ | libc::PROT_WRITE) as u64, at(pages.0))
}

/// No call but a touch.
const TOUCH: i64 = -1;
/// No call: some were lost here.
const LOSS: i64 = -2;
const ALLOWED: i64 = 0;
pub(crate) const NOT_MAPPED: i64 = -(libc::EFAULT as i64);

/// A thread's write to a page, and what became of it.
pub(crate) fn touch(task: u32, time_ns: u64, page: u64, result: i64) -> Made {
    Made(task, Some((time_ns, time_ns)), TOUCH, (page, 1), 0, result)
}

fn write_to(addr: u64, result: i64) -> EventKind {
    let outcome = if result == NOT_MAPPED { Outcome::Denied(Denial::NotMapped) } else { Outcome::Minor };
    EventKind::Fault(Fault { addr, access: Access::Write, mode: Mode::User, outcome, inferred: false })
}

fn drop_page(window: Option<(u64, u64)>, page: u64, result: i64) -> Made {
    Made(DROPPER, window, libc::SYS_madvise, (page, 1), libc::MADV_DONTNEED as u64, result)
}

/// A program that may lock all, with pages mapped from [`START`] on.
pub(crate) fn image() -> ExecImage {
    let mapping =
        Mapping { start: START, end: START + (PAGES << 12), read: true, write: true, ..Mapping::default() };
    ExecImage {
        pid: 1,
        mappings: vec![mapping],
        max_map_count: 1000,
        privileges: Privileges { ipc_lock: true, sys_rawio: true },
        ..ExecImage::default()
    }
}

/// Replays these calls of threads of a process.
#[track_caller]
fn replay(calls: &[Made]) -> ProcessReport {
    replay_in(image(), calls)
}

/// Replays these calls of threads of a process that begins with `image`.
#[track_caller]
pub(crate) fn replay_in(image: ExecImage, calls: &[Made]) -> ProcessReport {
    let clone = |child| {
        let (child, child_tid) = (TaskId(child), child + 1);
        let facts =
            CloneFacts { child, child_tid, child_pid: 1, flags: 0, shares_memory: true, same_process: true };
        (CHANGER, EventKind::Clone(facts))
    };
    let first = write_to(image.mappings[0].start, ALLOWED);
    let mut events =
        vec![(CHANGER, EventKind::Exec(Box::new(image))), clone(DROPPER), clone(OTHER), (CHANGER, first)];
    let mut times = HashMap::new();
    for &Made(task, window, number, (page, pages), third, result) in calls {
        if number == LOSS {
            events.push((task, EventKind::Lost(Lost { count: 1, cause: LostCause::RingFull })));
            continue;
        }
        if number == TOUCH {
            times.extend(window.map(|(time_ns, _)| (events.len(), time_ns)));
            events.push((task, write_to(at(page) as u64, result)));
            continue;
        }
        let window = window.map(|(start_ns, end_ns)| (task, EventKind::Window(Window { start_ns, end_ns })));
        let mut args = [START + (page << 12), pages << 12, third, 0, 0, 0];
        if number == libc::SYS_mmap {
            let placed = if page == 0 && pages > PAGES { 0 } else { libc::MAP_FIXED };
            args[3] = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | placed) as u64;
        }
        let call = Call { number: number as u32, args, result, detail: CallDetail::None };
        events.extend(window.into_iter().chain([(task, EventKind::Call(call))]));
    }
    events.extend([OTHER, DROPPER, CHANGER].map(|task| (task, EventKind::Exit(ExitStatus::Code(0)))));
    let file = NamedTempFile::new().unwrap();
    let mut writer = TraceWriter::new(File::create(file.path()).unwrap(), &header(), 3).unwrap();
    let mut time_ns = 0;
    for (number, (task, kind)) in events.into_iter().enumerate() {
        time_ns = times.get(&number).copied().unwrap_or(time_ns);
        writer.push(&Event { time_ns, task: TaskId(task), cpu: task, kind }).unwrap();
    }
    writer.finish(0, 0).unwrap();
    let options = ReplayOptions { paranoid: true, ..ReplayOptions::default() };
    let report = Replay::open(file.path(), options).unwrap().run(&mut |_, _| {}).unwrap();
    let [process] = report.processes.try_into().unwrap();
    assert!(process.audit.is_empty(), "{process:#?}");
    let of = |kind| calls.iter().filter(|Made(_, _, number, ..)| *number == kind).count() as u64;
    let (touches, losses) = (of(TOUCH), of(LOSS));
    assert_eq!((process.calls, process.faults), (calls.len() as u64 - touches - losses, 1 + touches));
    process
}

/// What differs, and how many calls have their results in another order.
fn found(calls: &[Made]) -> (u64, u64) {
    let process = replay(calls);
    (process.mismatches, process.reordered)
}

/// mlock has its effect when it begins, and stands where it ends.
#[test]
fn a_call_is_refused_because_of_a_change_that_stands_later() {
    let dropped = |number| drop_page(Some((10 + number, 10 + number)), number, EINVAL);
    let mut calls: Vec<Made> = (0..32).map(dropped).collect();
    calls.push(lock((5, 100)));
    calls.push(drop_page(None, 3, EINVAL));
    let process = replay(&calls);
    // The others found it done.
    assert_eq!((process.mismatches, process.reordered), (0, 1), "{process:#?}");
    assert_eq!(process.quire.peak_resident, 32 << 12);
    // Without windows the order is as it stands.
    for Made(_, window, ..) in &mut calls {
        *window = None;
    }
    assert_eq!(found(&calls), (32, 0));
}

#[test]
fn a_call_succeeds_because_it_was_before_a_change_that_stands_earlier() {
    assert_eq!(found(&[lock((5, 100)), drop_page(Some((2, 7)), 3, 0)]), (0, 1));
    let unlock = Made(CHANGER, Some((20, 30)), libc::SYS_munlock, (0, 32), 0, 0);
    assert_eq!(found(&[lock((5, 8)), unlock, drop_page(Some((15, 25)), 3, EINVAL)]), (0, 1));
    // Before two of them, of which the first locks.
    let unlock = Made(CHANGER, Some((20, 30)), libc::SYS_munlock, (8, 32), 0, 0);
    assert_eq!(found(&[lock((5, 19)), unlock, drop_page(Some((2, 25)), 3, 0)]), (0, 1));
    let unmap = Made(CHANGER, Some((5, 9)), libc::SYS_munmap, (0, 8), 0, 0);
    assert_eq!(found(&[unmap, drop_page(Some((2, 7)), 3, 0)]), (0, 1));
}

#[test]
fn a_call_finds_nothing_because_of_an_unmapping_that_stands_later() {
    let unmap = || Made(CHANGER, Some((5, 9)), libc::SYS_munmap, (0, 8), 0, 0);
    assert_eq!(found(&[drop_page(Some((2, 7)), 3, ENOMEM), unmap()]), (0, 1));
    assert_eq!(found(&[drop_page(Some((2, 7)), 3, 0), unmap()]), (0, 0), "as it stands");
}

/// No order explains these results, so they are differences.
#[test]
fn a_wrong_result_in_a_window_is_still_found() {
    // Of another kind.
    assert_eq!(found(&[drop_page(Some((7, 9)), 3, ENOMEM), lock((5, 100))]), (1, 0));
    assert_eq!(found(&[lock((5, 100)), drop_page(Some((2, 7)), 3, ENOMEM)]), (1, 0));
    // Of memory that the other call does not change.
    assert_eq!(found(&[drop_page(Some((7, 9)), 40, EINVAL), lock((5, 100))]), (1, 0));
    // Where the windows do not overlap, on either side.
    assert_eq!(found(&[drop_page(Some((2, 4)), 3, EINVAL), lock((5, 100))]), (1, 0));
    assert_eq!(found(&[lock((5, 100)), drop_page(Some((101, 104)), 3, 0)]), (1, 0));
    // Of the thread itself.
    let own = Made(CHANGER, Some((7, 9)), libc::SYS_madvise, (3, 1), libc::MADV_DONTNEED as u64, EINVAL);
    assert_eq!(found(&[own, lock((5, 100))]), (1, 0));
    // The change itself is wrong.
    let wrong = Made(CHANGER, Some((5, 100)), libc::SYS_mlock, (0, 32), 0, ENOMEM);
    assert_eq!(found(&[drop_page(Some((7, 9)), 3, 0), wrong]), (1, 0));
}

/// A range is whole only after two changes, of one thread or of two.
#[test]
fn a_call_is_tried_after_several_changes_that_stand_later() {
    for second in [CHANGER, OTHER] {
        let unmap = Made(CHANGER, None, libc::SYS_munmap, (0, 16), 0, 0);
        let protect = Made(DROPPER, Some((10, 40)), libc::SYS_mprotect, (0, 16), 1, 0);
        let calls = [unmap, protect, map(CHANGER, (20, 25), (0, 8)), map(second, (26, 30), (8, 8))];
        assert_eq!(found(&calls), (0, 1), "{second}");
    }
    // The second one is too late.
    let unmap = Made(CHANGER, None, libc::SYS_munmap, (0, 16), 0, 0);
    let protect = Made(DROPPER, Some((10, 24)), libc::SYS_mprotect, (0, 16), 1, 0);
    assert_eq!(
        found(&[unmap, protect, map(CHANGER, (20, 24), (0, 8)), map(CHANGER, (26, 30), (8, 8))]),
        (1, 0)
    );
}

/// Each of two threads made changes that the call was before, and after. That is possible only where the one
/// that it was after began before the other one ended.
#[test]
fn a_call_is_tried_between_changes_of_two_threads() {
    for (end, expected) in [(22, (0, 1)), (9, (1, 0))] {
        let unmap = Made(CHANGER, Some((5, end)), libc::SYS_munmap, (0, 8), 0, 0);
        let protect = Made(DROPPER, Some((2, 24)), libc::SYS_mprotect, (0, 20), 1, 0);
        let hole = Made(CHANGER, None, libc::SYS_munmap, (16, 4), 0, 0);
        assert_eq!(found(&[hole, unmap, protect, map(OTHER, (20, 24), (16, 4))]), expected, "{end}");
    }
}

/// A change that ended before another one began was before it, whichever threads made them.
#[test]
fn a_call_is_not_tried_after_a_change_without_those_that_ended_before_it() {
    let hole = || Made(CHANGER, None, libc::SYS_munmap, (0, 8), 0, 0);
    let protect = || Made(DROPPER, Some((9, 30)), libc::SYS_mprotect, (0, 16), 1, 0);
    let unmap = |window| Made(OTHER, window, libc::SYS_munmap, (8, 8), 0, 0);
    let fill = || map(CHANGER, (20, 22), (0, 8));
    assert_eq!(found(&[hole(), protect(), unmap(Some((10, 25))), fill()]), (0, 1));
    assert_eq!(found(&[hole(), protect(), unmap(Some((10, 12))), fill()]), (1, 0));
    // Without a window it overlaps with none.
    assert_eq!(found(&[hole(), protect(), unmap(None), fill()]), (1, 0));
    // And a call is not before a change without one that began after its end.
    let unlock = |window| Made(OTHER, window, libc::SYS_munlock, (8, 8), 0, 0);
    let drop = || drop_page(Some((2, 27)), 3, 0);
    assert_eq!(found(&[lock((5, 12)), unlock(Some((10, 20))), drop()]), (0, 1));
    assert_eq!(found(&[lock((5, 12)), unlock(None), drop()]), (1, 0));
}

/// Only without its thread's own unmapping would the new mapping be enough.
#[test]
fn a_call_is_not_tried_after_the_second_change_of_a_thread_without_the_first() {
    let hole = Made(CHANGER, None, libc::SYS_munmap, (0, 8), 0, 0);
    let drop = Made(DROPPER, Some((10, 40)), libc::SYS_madvise, (0, 16), libc::MADV_DONTNEED as u64, 0);
    let unmap = Made(CHANGER, Some((20, 25)), libc::SYS_munmap, (8, 8), 0, 0);
    assert_eq!(found(&[hole, drop, unmap, map(CHANGER, (26, 30), (0, 8))]), (1, 0));
}

/// What other threads changed before is undone, and what the thread itself changed is not.
#[test]
fn a_call_is_not_tried_before_its_own_threads_changes() {
    let protect = || Made(CHANGER, Some((5, 30)), libc::SYS_mprotect, (0, 32), 1, 0);
    let own = Made(DROPPER, Some((10, 12)), libc::SYS_mlock, (0, 32), 0, 0);
    assert_eq!(found(&[protect(), own, drop_page(Some((14, 16)), 3, 0)]), (1, 0));
    let own = Made(DROPPER, Some((10, 12)), libc::SYS_mlock, (8, 8), 0, 0);
    assert_eq!(found(&[lock((5, 30)), own, drop_page(Some((14, 16)), 3, 0)]), (0, 1));
}

/// The calls of a thread keep their order, so what an earlier one found holds for a later one.
#[test]
fn a_call_is_not_before_a_change_that_its_threads_earlier_result_needs() {
    let drop = |window, page, result| drop_page(Some(window), page, result);
    assert_eq!(found(&[lock((5, 30)), drop((14, 16), 3, EINVAL), drop((18, 20), 3, 0)]), (1, 0));
    assert_eq!(found(&[lock((5, 30)), drop((14, 16), 40, 0), drop((18, 20), 3, 0)]), (0, 1));
    assert_eq!(found(&[lock((5, 30)), drop((14, 16), 3, 0), drop((18, 20), 3, 0)]), (0, 2));
    assert_eq!(found(&[lock((5, 30)), drop((14, 16), 3, ENOMEM), drop((18, 20), 3, 0)]), (1, 1));
    // Of another thread it says nothing.
    let other = Made(OTHER, Some((14, 16)), libc::SYS_madvise, (3, 1), libc::MADV_DONTNEED as u64, EINVAL);
    assert_eq!(found(&[lock((5, 30)), other, drop((18, 20), 3, 0)]), (0, 1));
}

#[test]
fn a_call_is_not_before_a_change_that_an_earlier_call_of_its_thread_was_after() {
    let calls = [drop_page(Some((7, 9)), 3, EINVAL), drop_page(Some((10, 12)), 4, 0), lock((5, 100))];
    assert_eq!(found(&calls), (1, 1));
}

/// What was refused to a touch is a result like that of a call: an order that allows it is none.
#[test]
fn a_call_is_not_before_a_change_that_a_refused_touch_of_its_thread_was_after() {
    let unmap = || Made(CHANGER, Some((5, 30)), libc::SYS_munmap, (0, 8), 0, 0);
    let drop = |page| drop_page(Some((18, 20)), page, 0);
    assert_eq!(found(&[unmap(), drop(3)]), (0, 1));
    assert_eq!(found(&[unmap(), touch(DROPPER, 15, 4, NOT_MAPPED), drop(3)]), (1, 0));
    // It says nothing of where another thread's call was, or one of other memory.
    assert_eq!(found(&[unmap(), touch(OTHER, 15, 4, NOT_MAPPED), drop(3)]), (0, 1));
    assert_eq!(found(&[unmap(), touch(DROPPER, 15, 40, ALLOWED), drop(3)]), (0, 1));
}

#[test]
fn a_refused_touch_that_a_call_passes_is_refused_there() {
    // The thread maps, touches what is not mapped, and maps that, too.
    let calls = |refused| {
        let hole = Made(CHANGER, None, libc::SYS_munmap, (0, 16), 0, 0);
        let protect = Made(DROPPER, Some((10, 40)), libc::SYS_mprotect, (0, 16), 1, 0);
        let maps = |window, first| map(CHANGER, window, (first, 8));
        [hole, protect, maps((20, 25), 0), touch(CHANGER, 26, refused, NOT_MAPPED), maps((27, 30), 8)]
    };
    assert_eq!(found(&calls(12)), (0, 1));
    // What is mapped already cannot have been refused: no order with it is one.
    let process = replay(&calls(4));
    assert!(process.mismatches >= 1 && process.reordered == 0, "{process:#?}");
}

#[test]
fn a_touch_is_refused_because_of_an_unmapping_that_stands_later() {
    let unmap = |window| Made(CHANGER, Some(window), libc::SYS_munmap, (0, 8), 0, 0);
    assert_eq!(found(&[touch(DROPPER, 10, 4, NOT_MAPPED), unmap((5, 30))]), (0, 1));
    // And one that stands after a mapping that it was before.
    let hole = || Made(CHANGER, None, libc::SYS_munmap, (0, 8), 0, 0);
    let fill = || map(CHANGER, (5, 30), (0, 8));
    assert_eq!(found(&[hole(), fill(), touch(DROPPER, 10, 4, NOT_MAPPED)]), (0, 1));
    // Where the moment is in no window, or the memory is other memory, it is a difference.
    assert_eq!(found(&[touch(DROPPER, 3, 4, NOT_MAPPED), unmap((5, 30))]), (1, 0));
    assert_eq!(found(&[touch(DROPPER, 10, 40, NOT_MAPPED), unmap((5, 30))]), (1, 0));
    assert_eq!(found(&[touch(CHANGER, 10, 4, NOT_MAPPED), unmap((5, 30))]), (1, 0));
}

/// A window is that of the next call only, also where that call was made before.
#[test]
fn a_window_is_used_once() {
    let wrong = Made(CHANGER, None, libc::SYS_madvise, (40, 1), libc::MADV_DONTNEED as u64, EINVAL);
    let later = Made(DROPPER, Some((90, 100)), libc::SYS_mlock, (40, 4), 0, 0);
    let calls = [drop_page(Some((7, 9)), 3, EINVAL), lock((5, 100)), wrong, later];
    assert_eq!(found(&calls), (1, 1));
}

/// It unlocked what lies before the hole.
#[test]
fn a_call_that_is_refused_in_part_is_a_change_too() {
    let unmap = Made(CHANGER, None, libc::SYS_munmap, (16, 1), 0, 0);
    let locked = Made(CHANGER, None, libc::SYS_mlock, (0, 16), 0, 0);
    let unlock = Made(CHANGER, Some((5, 30)), libc::SYS_munlock, (0, 32), 0, ENOMEM);
    assert_eq!(found(&[unmap, locked, drop_page(Some((10, 12)), 3, 0), unlock]), (0, 1));
}

#[test]
fn no_mapping_is_made_at_another_address_for_the_sake_of_an_order() {
    let unmap = || Made(CHANGER, Some((5, 9)), libc::SYS_munmap, (0, 8), 0, 0);
    let moved = Made(DROPPER, Some((2, 7)), libc::SYS_mmap, (0, 8), 3, at(8));
    assert_eq!(found(&[moved, unmap()]), (1, 0));
    let moved = Made(DROPPER, Some((2, 7)), libc::SYS_mremap, (8, 4), 8 << 12, at(0));
    assert_eq!(found(&[moved, unmap()]), (1, 0));
}

/// Not all orders of these calls are tried, so the replay does not say that none explains them.
#[test]
fn a_difference_counts_as_untried_where_an_order_was_left_out() {
    let untried = |image: ExecImage, calls: &[Made]| {
        let process = replay_in(image, calls);
        (process.mismatches, process.reordered, process.untried)
    };
    assert_eq!(untried(image(), &[drop_page(Some((7, 9)), 40, EINVAL), lock((5, 100))]), (1, 0, 0));
    // It would bring in much.
    let advice = libc::MADV_POPULATE_WRITE as u64;
    let populate = Made(DROPPER, Some((7, 9)), libc::SYS_madvise, (0, 1 << 11), advice, EINVAL);
    assert_eq!(untried(image(), &[populate, lock((5, 100))]), (1, 0, 1));
    // More changes stand later, and earlier, than are tried.
    let locks = || (0..70).map(|_| lock((5, 100)));
    let first: Vec<Made> = [drop_page(Some((7, 9)), 40, EINVAL)].into_iter().chain(locks()).collect();
    assert_eq!(untried(image(), &first), (1, 0, 1));
    let last: Vec<Made> = locks().chain([drop_page(Some((7, 9)), 40, EINVAL)]).collect();
    assert_eq!(untried(image(), &last), (1, 0, 1));
    // What was mapped before the change is too much to be kept.
    let page = |number: u64| {
        let start = at(2 * number) as u64;
        Mapping { start, end: start + 4096, read: true, write: true, ..Mapping::default() }
    };
    let many = ExecImage { mappings: (0..2000).map(page).collect(), max_map_count: 4000, ..image() };
    let lock_all = Made(CHANGER, Some((5, 100)), libc::SYS_mlock, (0, 4000), 0, ENOMEM);
    let drop = |window| drop_page(Some(window), 0, ENOMEM);
    assert_eq!(untried(many.clone(), &[lock_all, drop((2, 7)), drop((101, 104))]), (2, 0, 1));
}

/// A recording names one thread where events were lost, and that thread has not ended its call for that.
#[test]
fn a_change_refuses_what_is_before_its_end_though_events_were_lost() {
    let loss = Made(CHANGER, None, LOSS, (0, 0), 0, 0);
    assert_eq!(found(&[drop_page(Some((7, 9)), 0, EINVAL), loss, lock((5, 100))]), (0, 1));
}

/// A large mlock locks when it begins, and ends when all is populated. What other threads did meanwhile can
/// be any number of events. What a look ahead does not come to is known from looking the recording through.
#[test]
fn a_change_that_ends_long_after_it_began_refuses_what_is_before_its_end() {
    let ends_after = |events: u64| {
        let mut calls = vec![drop_page(Some((1000, 1001)), 0, EINVAL)];
        calls.extend((0..events).map(|number| touch(DROPPER, 2000 + number, 40, ALLOWED)));
        calls.push(lock((500, 3000 + events)));
        let process = replay(&calls);
        (process.mismatches, process.reordered, process.untried)
    };
    assert_eq!(ends_after(100_000), (0, 1, 0));
    assert_eq!(ends_after(300_000), (0, 1, 0));
    // It is one of too many of that kind to be kept.
    let locks = || (0..1024).map(|_| lock((500, 1_000_000)));
    let touches = (0..300_000).map(|number| touch(DROPPER, 2000 + number, 40, ALLOWED));
    let refused = drop_page(Some((1000, 1001)), 0, EINVAL);
    let unlocks = (0..1024).map(|_| Made(OTHER, Some((1100, 1_000_000)), libc::SYS_munlock, (40, 1), 0, 0));
    let calls: Vec<Made> = [refused].into_iter().chain(touches).chain(unlocks).chain(locks()).collect();
    let process = replay(&calls);
    assert_eq!((process.mismatches, process.reordered, process.untried), (1, 0, 1));
}

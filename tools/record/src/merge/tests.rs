//! The order of calls and faults, on made-up samples.

use super::*;
use crate::calls::Effect;
use crate::perf::SampleKind;
use quire_trace::event::{Access, Mode};
use quire_trace::event::{Call, CallDetail};

const SPACE: SpaceId = SpaceId(1);

/// Two threads, 10 and 11, of one address space.
fn merger() -> Merger {
    let mut merger = Merger::new(0);
    merger.identify(10, 0, TaskId(0), SPACE);
    merger.identify(11, 0, TaskId(1), SPACE);
    merger
}

fn begin(tid: u32, time: u64, addr: u64) -> PerfSample {
    let what = SampleKind::Begin { addr, mode: Mode::User, access: Access::Write, inferred: false };
    PerfSample { time, tid, cpu: 0, what }
}

fn end(tid: u32, time: u64, addr: u64) -> PerfSample {
    PerfSample { time, tid, cpu: 0, what: SampleKind::End { addr, major: false } }
}

fn call(start: u64, end: u64, effect: Effect) -> Record {
    let call = Call { number: 9, args: [0; 6], result: 0, detail: CallDetail::None };
    let kinds = vec![EventKind::Call(call)];
    Record { start, end, tid: 10, task: TaskId(0), space: SPACE, cpu: 0, rule: Rule::Call(effect), kinds }
}

fn settle(merger: &mut Merger, drained: u64, all: bool) -> Vec<Event> {
    merger.settle(drained, all)
}

/// The events as letters: a call, a fault that was resolved, refused, unresolved.
fn letters(events: &[Event]) -> String {
    let letter = |event: &Event| match &event.kind {
        EventKind::Call(_) => 'c',
        EventKind::Fault(fault) => match fault.outcome {
            Outcome::Minor | Outcome::Major => 'f',
            Outcome::Denied(_) => 'd',
            Outcome::Unresolved | Outcome::Unknown => 'u',
        },
        _ => '?',
    };
    events.iter().map(letter).collect()
}

#[test]
fn faults_of_the_caller_keep_their_side() {
    let mut merger = merger();
    // Rings of two CPUs give their samples one after the other.
    let samples = [begin(10, 90, 1), end(10, 95, 1), begin(10, 210, 3), end(10, 220, 3)];
    merger.samples().extend(samples);
    merger.record(call(100, 200, Effect::Creates { start: 0, end: 10 }));
    assert_eq!(letters(&settle(&mut merger, 0, true)), "fcf");
}

#[test]
fn touches_by_others_lie_where_they_are_possible() {
    let window = |effect, addr, resolved| {
        let mut merger = merger();
        merger.samples().push(begin(11, 150, addr));
        if resolved {
            merger.samples().push(end(11, 160, addr));
        } else {
            merger.denied(11, 170, addr, Denial::NotMapped);
        }
        merger.record(call(100, 200, effect));
        letters(&settle(&mut merger, 0, true))
    };
    let (start, end) = (0x1000, 0x2000);
    assert_eq!(window(Effect::Creates { start, end }, 0x1800, true), "cf", "it was there");
    assert_eq!(window(Effect::Creates { start, end }, 0x1800, false), "dc", "it was not there yet");
    assert_eq!(window(Effect::Removes { start, end }, 0x1800, true), "fc", "it was still there");
    assert_eq!(window(Effect::Removes { start, end }, 0x1800, false), "cd", "it was gone");
    assert_eq!(window(Effect::Removes { start, end }, 0x2800, false), "dc", "another place tells nothing");
}

/// A file that was seen to have another length got it between two looks: accesses past its end tell when.
#[test]
fn a_length_that_was_seen_stands_where_refused_accesses_allow_it() {
    let window = |grew, denial: Option<Denial>| {
        let mut merger = merger();
        merger.samples().push(begin(11, 150, 0x1000));
        match denial {
            Some(denial) => merger.denied(11, 170, 0x1000, denial),
            None => merger.samples().push(end(11, 160, 0x1000)),
        }
        let kinds = vec![EventKind::Exit(quire_trace::event::ExitStatus::Code(0))];
        merger.file((100, 200), TaskId(0), Rule::Resized { grew }, kinds);
        letters(&settle(&mut merger, 0, true))
    };
    assert_eq!(window(true, None), "?f", "it may need the new length");
    assert_eq!(window(true, Some(Denial::NoBacking)), "d?", "it was not so long yet");
    assert_eq!(window(true, Some(Denial::NotMapped)), "?d", "that says nothing of a file");
    assert_eq!(window(false, None), "f?", "it may need the old length");
    assert_eq!(window(false, Some(Denial::NoBacking)), "?d", "it was as short already");
}

#[test]
fn a_new_thread_comes_after_its_birth() {
    let mut merger = merger();
    merger.identify(12, 100, TaskId(2), SPACE);
    merger.samples().extend([begin(12, 150, 1), end(12, 155, 1)]);
    let kinds =
        vec![EventKind::Call(Call { number: 56, args: [0; 6], result: 12, detail: CallDetail::None })];
    let rule = Rule::Clone { child: 12 };
    merger.record(Record { rule, kinds, ..call(100, 200, Effect::Neutral) });
    assert_eq!(letters(&settle(&mut merger, 0, true)), "cf");
}

#[test]
fn what_is_not_settled_waits() {
    const MS: u64 = 1_000_000;
    let mut merger = merger();
    merger.begin(10, 100 * MS);
    merger.samples().extend([
        begin(11, 50 * MS, 1),
        end(11, 51 * MS, 1),
        begin(11, 120 * MS, 2),
        end(11, 121 * MS, 2),
    ]);
    assert_eq!(letters(&settle(&mut merger, 200 * MS, false)), "f", "the call under way holds up the second");
    merger.record(call(100 * MS, 210 * MS, Effect::Removes { start: 0, end: 10 }));
    assert_eq!(letters(&settle(&mut merger, 300 * MS, false)), "fc");
    // A fault whose outcome is not known yet holds up what follows, until its thread is seen to be stopped.
    merger.samples().push(begin(11, 400 * MS, 3));
    merger.record(call(410 * MS, 420 * MS, Effect::Neutral));
    assert_eq!(letters(&settle(&mut merger, 500 * MS, false)), "");
    merger.stopped(11, 510 * MS);
    assert_eq!(letters(&settle(&mut merger, 600 * MS, false)), "uc");
}

/// A handler mends what was refused, and the thread faults again before the refusal is settled.
#[test]
fn the_fault_after_a_refused_one_keeps_its_end() {
    const MS: u64 = 1_000_000;
    let mut merger = merger();
    merger.samples().push(begin(11, 100 * MS, 1));
    merger.denied(11, 101 * MS, 1, Denial::NotAllowed);
    merger.samples().push(begin(11, 102 * MS, 2));
    // Samples up to 110 ms are taken in here; the end of the second fault is not among them.
    assert_eq!(letters(&settle(&mut merger, 140 * MS, false)), "d");
    merger.samples().push(end(11, 111 * MS, 2));
    assert_eq!(letters(&settle(&mut merger, 0, true)), "f");
}

#[test]
fn a_reused_id_is_another_thread() {
    let mut merger = merger();
    merger.ended(11, 300);
    merger.identify(11, 250, TaskId(7), SPACE);
    merger.samples().extend([begin(11, 280, 1), end(11, 290, 1), begin(11, 310, 2), end(11, 320, 2)]);
    merger.samples().extend([begin(99, 330, 1)]);
    let tasks: Vec<u32> = settle(&mut merger, 0, true).iter().map(|event| event.task.0).collect();
    assert_eq!(tasks, [1, 7]);
    assert_eq!(merger.stray_faults(), 1);
}

/// The kernel's own write, as which it builds a new program's memory.
fn kernel_write(tid: u32, time: u64, addr: u64) -> [PerfSample; 2] {
    let what = SampleKind::Begin { addr, mode: Mode::Kernel, access: Access::Write, inferred: false };
    [PerfSample { time, tid, cpu: 0, what }, end(tid, time + 1, addr)]
}

#[test]
fn a_new_program_whose_thread_is_killed_is_left_out() {
    let mut merger = merger();
    // The second thread calls exec and takes the place of the first, 10, which has left.
    merger.begin_exec(11, 100);
    merger.samples().extend([begin(11, 90, 1), end(11, 95, 1)]);
    for (tid, time) in [(11, 110), (10, 120), (10, 130)] {
        merger.samples().extend(kernel_write(tid, time, 7));
    }
    merger.samples().extend(kernel_write(11, 210, 2));
    let rule = Rule::KilledExec { pid: 10 };
    merger.record(Record { tid: 11, rule, kinds: Vec::new(), ..call(100, 200, Effect::Neutral) });
    assert_eq!(
        letters(&settle(&mut merger, 0, true)),
        "ff",
        "what came before, and what it wrote at its end"
    );
}

#[test]
fn a_new_program_is_left_out_while_its_exec_takes_long() {
    const MS: u64 = 1_000_000;
    let mut merger = merger();
    merger.begin_exec(11, 100 * MS);
    merger.samples().extend(kernel_write(11, 150 * MS, 7));
    merger.samples().extend([begin(10, 160 * MS, 1), end(10, 161 * MS, 1)]);
    assert_eq!(letters(&settle(&mut merger, 1000 * MS, false)), "");
    assert_eq!(letters(&settle(&mut merger, 5000 * MS, false)), "f", "the other thread goes on");
    // It fails, and the thread goes on in its old program.
    merger.cancel(11, 100 * MS);
    merger.samples().extend(kernel_write(11, 6000 * MS, 7));
    assert_eq!(letters(&settle(&mut merger, 0, true)), "f");
}

/// A call that was not stopped: its beginning, the lock if it took it, and its end.
fn unstopped(tid: u32, number: i64, result: i64, start: u64, lock: Option<u64>, end: u64) -> Vec<PerfSample> {
    let number = number as u64;
    let args = if number == libc::SYS_mmap as u64 {
        [0, 0x1000, 3, 0x22, 0, 0]
    } else {
        [0x1000, 0x1000, 0, 0, 0, 0]
    };
    let begun = BegunCall { number, args, instruction: 5, on_stack: 6 };
    let sample = |time, what| PerfSample { time, tid, cpu: 0, what };
    let mut samples = vec![sample(start, SampleKind::Call(Box::new(begun)))];
    samples.extend(lock.map(|time| sample(time, SampleKind::Lock { mm: 7 })));
    samples.push(sample(end, SampleKind::Return { number, result }));
    samples
}

/// The numbers of calls, and the threads that made them.
fn made(events: &[Event]) -> Vec<(i64, u32)> {
    let made = events.iter().filter_map(|event| match &event.kind {
        EventKind::Call(call) => Some((i64::from(call.number), event.task.0)),
        _ => None,
    });
    made.collect()
}

const MAP: i64 = libc::SYS_mmap;
const UNMAP: i64 = libc::SYS_munmap;

#[test]
fn calls_are_in_the_order_in_which_they_got_the_lock() {
    let (reused, taken_away) = ([(UNMAP, 0), (MAP, 1)], [(MAP, 1), (UNMAP, 0)]);
    for (locks, order, all) in [([110, 120], reused, "ccf"), ([120, 110], taken_away, "cfc")] {
        let mut merger = merger();
        // One takes away what the other gets, and comes out later.
        merger.samples().extend(unstopped(10, UNMAP, 0, 100, Some(locks[0]), 150));
        merger.samples().extend(unstopped(11, MAP, 0x1000, 105, Some(locks[1]), 130));
        // It is touched while the first call has not come out yet.
        merger.samples().extend([begin(11, 140, 0x1800), end(11, 141, 0x1800)]);
        let events = settle(&mut merger, 0, true);
        assert_eq!(made(&events), order);
        assert_eq!(letters(&events), all);
    }
}

#[test]
fn a_call_that_stops_has_its_place_among_those_that_do_not() {
    for (lock, order) in [(110, [(9, 0), (UNMAP, 1)]), (130, [(UNMAP, 1), (9, 0)])] {
        let mut merger = merger();
        merger.record(call(100, 200, Effect::Creates { start: 0x1000, end: 0x2000 }));
        merger.samples().push(PerfSample { time: lock, tid: 10, cpu: 0, what: SampleKind::Lock { mm: 7 } });
        merger.samples().extend(unstopped(11, UNMAP, 0, 115, Some(120), 190));
        assert_eq!(made(&settle(&mut merger, 0, true)), order);
    }
}

/// The windows of calls that are given, by thread.
fn windows(events: &[Event]) -> Vec<(u32, u64, u64)> {
    let windows = events.iter().filter_map(|event| match event.kind {
        EventKind::Window(Window { start_ns, end_ns }) => Some((event.task.0, start_ns, end_ns)),
        _ => None,
    });
    windows.collect()
}

/// A lock of memory, which brings it in after it has given the lock back, beside calls that drop pages.
#[test]
fn calls_that_overlap_say_when_they_took_effect() {
    let mut merger = merger();
    merger.record(stopped(LOCK, 100, 200));
    merger.samples().push(PerfSample { time: 110, tid: 10, cpu: 0, what: SampleKind::Lock { mm: 7 } });
    for (start, end) in [(102, 108), (109, 120), (130, 140), (190, 210), (220, 230)] {
        merger.samples().extend(unstopped(11, ADVISE, 0, start, None, end));
    }
    let events = settle(&mut merger, 0, true);
    let order = [(ADVISE, 1), (ADVISE, 1), (ADVISE, 1), (LOCK, 0), (ADVISE, 1), (ADVISE, 1)];
    assert_eq!(made(&events), order);
    assert_eq!(windows(&events), [(1, 109, 120), (1, 130, 140), (0, 110, 200), (1, 190, 210)]);
    // Each stands right before its call.
    for pair in events.windows(2).filter(|pair| matches!(pair[0].kind, EventKind::Window(_))) {
        assert!(matches!(pair[1].kind, EventKind::Call(_)) && pair[0].task == pair[1].task, "{pair:?}");
    }
}

#[test]
fn a_copy_is_made_under_the_lock() {
    for (locks, is_before) in [([110, 120], false), ([140, 120], true)] {
        let mut merger = merger();
        merger.identify(12, 100, TaskId(2), SpaceId(2));
        let kinds = vec![EventKind::Limit(quire_trace::event::Limit {
            target: TaskId(0),
            kind: quire_trace::event::LimitKind::Data,
            soft: 0,
            hard: 0,
        })];
        let rule = Rule::Clone { child: 12 };
        merger.record(Record { rule, kinds, ..call(100, 200, Effect::Neutral) });
        let lock = |time, mm| PerfSample { time, tid: 10, cpu: 0, what: SampleKind::Lock { mm } };
        // That of the copy comes after it.
        merger.samples().extend([lock(locks[0], 7), lock(locks[0] + 1, 8)]);
        merger.samples().extend(unstopped(11, UNMAP, 0, 115, Some(locks[1]), 190));
        let first = letters(&settle(&mut merger, 0, true));
        assert_eq!(first, if is_before { "c?" } else { "?c" });
    }
}

#[test]
fn what_was_not_made_by_the_program_is_no_call_of_it() {
    let mut merger = merger();
    // The thread was killed while it waited for the lock; the recorder asked where memory is placed.
    merger.samples().extend(unstopped(10, UNMAP, -4, 100, None, 110));
    merger.samples().extend(unstopped(11, MAP, 0x1000, 130, Some(131), 132));
    merger.samples().extend(unstopped(11, UNMAP, 0, 210, Some(211), 212));
    let rule = Rule::Exec { pid: 11, switched: 120 };
    let exec = Record { tid: 11, rule, kinds: Vec::new(), ..call(90, 200, Effect::Neutral) };
    merger.record(exec);
    assert_eq!(made(&settle(&mut merger, 0, true)), [(UNMAP, 1)]);
}

#[test]
fn calls_of_which_a_part_is_lost_hold_up_nothing() {
    const MS: u64 = 1_000_000;
    let mut merger = merger();
    let whole = |at| unstopped(10, MAP, 0x1000, at * MS, Some(at * MS + 1), at * MS + 2);
    // The end of the first, the beginning of the second.
    merger.samples().extend(whole(100).into_iter().take(2));
    merger.samples().extend(unstopped(10, UNMAP, 0, 110 * MS, Some(110 * MS + 1), 110 * MS + 2).split_off(1));
    merger.lost(2, LostCause::RingFull, 115 * MS);
    merger.samples().extend(whole(120));
    let events = settle(&mut merger, 200 * MS, false);
    assert_eq!(made(&events), [(MAP, 0)]);
    assert!(events.iter().any(|event| matches!(event.kind, EventKind::Lost(Lost { count: 2, .. }))));
    // One that is under way does.
    merger.samples().extend(whole(300).into_iter().take(2));
    merger.record(call(310 * MS, 320 * MS, Effect::Neutral));
    assert_eq!(settle(&mut merger, 400 * MS, false), []);
    merger.samples().extend(whole(300).into_iter().skip(2));
    assert_eq!(made(&settle(&mut merger, 500 * MS, false)), [(MAP, 0), (9, 0)]);
}

/// The arguments of one and the result of another would be a call that was never made.
#[test]
fn a_call_does_not_end_as_one_that_began_when_samples_were_lost() {
    let mut merger = merger();
    merger.samples().extend(unstopped(10, MAP, 0x1000, 100, Some(101), 102).into_iter().take(2));
    merger.lost(3, LostCause::RingFull, 101);
    merger.samples().extend(unstopped(10, MAP, 0x2000, 110, Some(111), 112).split_off(2));
    merger.samples().extend(unstopped(10, UNMAP, 0, 120, Some(121), 122));
    let events = settle(&mut merger, 0, true);
    assert_eq!(made(&events), [(UNMAP, 0)]);
    assert_eq!(letters(&events), "?c", "the loss comes first");
}

const LOCK: i64 = libc::SYS_mlock;
const ADVISE: i64 = libc::SYS_madvise;

/// A call that stops, of thread 10.
fn stopped(number: i64, start: u64, end: u64) -> Record {
    let call = Call { number: number as u32, args: [0; 6], result: 0, detail: CallDetail::None };
    Record { kinds: vec![EventKind::Call(call)], ..self::call(start, end, Effect::Neutral) }
}

/// A lock of memory that takes longer than others wait for: what overlaps with it has its place long before.
#[test]
fn a_call_that_is_open_for_long_keeps_its_window_and_those_that_overlap_with_it() {
    const MS: u64 = 1_000_000;
    let lock = |time| PerfSample { time, tid: 10, cpu: 0, what: SampleKind::Lock { mm: 7 } };
    let mut merger = merger();
    merger.begin(10, 100 * MS);
    merger.samples().push(lock(110 * MS));
    // One before it has the lock, one after that; one much later; one of another address space.
    merger.identify(12, 0, TaskId(2), SpaceId(2));
    for (tid, start) in [(11, 102), (11, 120), (11, 4000), (12, 130)] {
        merger.samples().extend(unstopped(tid, ADVISE, 0, start * MS, None, (start + 2) * MS));
    }
    assert_eq!(settle(&mut merger, 1000 * MS, false), []);
    let passed = settle(&mut merger, 5000 * MS, false);
    assert_eq!(made(&passed), [(ADVISE, 1), (ADVISE, 1), (ADVISE, 2), (ADVISE, 1)]);
    assert_eq!(windows(&passed), [(1, 120 * MS, 122 * MS), (1, 4000 * MS, 4002 * MS)]);
    merger.record(stopped(LOCK, 100 * MS, 9000 * MS));
    merger.samples().extend(unstopped(11, ADVISE, 0, 9100 * MS, None, 9102 * MS));
    let late = settle(&mut merger, 0, true);
    assert_eq!(made(&late), [(LOCK, 0), (ADVISE, 1)]);
    assert_eq!(windows(&late), [(0, 110 * MS, 9000 * MS)]);
}

/// Another thread gets the lock meanwhile: all that it does to mappings is after the call.
#[test]
fn the_window_of_a_call_that_is_open_for_long_ends_where_another_thread_has_the_lock() {
    const MS: u64 = 1_000_000;
    for stops in [true, false] {
        let mut merger = merger();
        // Populates what it maps.
        let mut whole = unstopped(10, MAP, 0x1000, 100 * MS, Some(110 * MS), 9000 * MS);
        if stops {
            merger.begin(10, 100 * MS);
            whole = whole.split_off(1);
        }
        let end = whole.pop();
        merger.samples().extend(whole);
        merger.samples().extend(unstopped(11, ADVISE, 0, 150 * MS, None, 152 * MS));
        merger.samples().extend(unstopped(11, UNMAP, 0, 200 * MS, Some(201 * MS), 205 * MS));
        merger.samples().extend(unstopped(11, ADVISE, 0, 300 * MS, None, 305 * MS));
        let passed = settle(&mut merger, 5000 * MS, false);
        assert_eq!(windows(&passed), [(1, 150 * MS, 152 * MS)], "stops: {stops}");
        if stops {
            merger.record(stopped(MAP, 100 * MS, 9000 * MS));
        } else {
            merger.samples().extend(end);
        }
        let late = settle(&mut merger, 0, true);
        assert_eq!(windows(&late), [(0, 110 * MS, 201 * MS - 1)], "stops: {stops}");
    }
}

/// What a call that never ends makes the merger keep does not grow with what other threads do.
#[test]
fn few_locks_are_kept_for_a_call_that_is_open_for_long() {
    const MS: u64 = 1_000_000;
    let mut merger = merger();
    merger.samples().extend(unstopped(10, ADVISE, 0, 100 * MS, Some(101 * MS), 102 * MS).into_iter().take(2));
    for at in (200..60_000).step_by(10) {
        merger.samples().extend(unstopped(11, UNMAP, 0, at * MS, Some(at * MS + 1), at * MS + 2));
        if at % 1000 == 0 {
            settle(&mut merger, at * MS, false);
        }
    }
    assert!(merger.calls.locks_kept() < 400, "{}", merger.calls.locks_kept());
}

/// The last samples of a thread are taken out of the ring buffers when it has ended, and its id may have
/// become that of another one.
#[test]
fn a_thread_that_has_ended_was_in_its_space() {
    let mut merger = merger();
    merger.identify(12, 100, TaskId(2), SpaceId(2));
    merger.ended(12, 200);
    assert_eq!(merger.space_of(12, 150), Some(SpaceId(2)));
    assert_eq!(
        (merger.space_of(12, 99), merger.space_of(12, 201), merger.space_of(13, 150)),
        (None, None, None)
    );
    merger.identify(12, 300, TaskId(3), SpaceId(3));
    merger.leave_out(10, 500, SpaceId(4));
    let of = |tid, time| merger.space_of(tid, time);
    assert_eq!((of(12, 150), of(12, 350)), (Some(SpaceId(2)), Some(SpaceId(3))));
    assert_eq!((of(10, 400), of(10, 600)), (Some(SPACE), None), "no memory of it is in the trace");
}

//! Programs that only root may look into: their page faults are recorded, or counted as missing.

use crate::recording::{PROGRAMS, Recording, Scratch};
use crate::shared::{HIDDEN_PAGES, NOT_PERMITTED, PAGE, TOUCHING_THREADS};
use quire_record::{CallChoice, FaultChoice, RecordOptions};
use quire_trace::event::{Event, EventKind, ExitStatus, Lost, LostCause};
use quire_trace::format::{FaultSource, TraceReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

/// Memory that is written by the program, its child, itself again, a thread, and a program that it starts.
fn assert_all_is_there(recorded: &Recording) {
    assert_eq!((recorded.summary.unheard_programs, recorded.summary.totals.lost_samples), (0, 0));
    assert_eq!(recorded.summary.status, ExitStatus::Code(6));
    let faults = recorded.faults().count();
    assert!(faults > 5 * HIDDEN_PAGES, "{faults}");
    recorded.file.assert_replays();
}

fn is_permitted(recorded: &Recording) -> bool {
    let is = recorded.summary.status != ExitStatus::Code(NOT_PERMITTED as u8);
    if !is {
        eprintln!("skipped: only root may change its group");
    }
    is
}

#[test]
fn programs_that_change_their_group_are_recorded_whole() {
    let ways: [fn(&mut RecordOptions); 3] = [
        |options| options.calls = CallChoice::Tracepoints,
        |options| options.calls = CallChoice::Stops,
        |options| options.faults = FaultChoice::Only(FaultSource::Software),
    ];
    for way in ways {
        let Some(recorded) = Recording::with("executes_what_is_hidden", way) else { continue };
        if is_permitted(&recorded) {
            assert_all_is_there(&recorded);
        }
    }
}

/// The first program already.
#[test]
fn setgid_programs_are_recorded_whole() {
    let file = Scratch::new("setgid");
    // By another process: one that this one makes meanwhile would have the file open for writing, and Linux
    // executes no such file.
    assert!(Command::new("cp").arg(PROGRAMS).arg(file.path()).status().unwrap().success());
    if let Err(error) = chown(file.path(), None, Some(1)) {
        return eprintln!("skipped: chown: {error}");
    }
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o2755)).unwrap();
    let command = [file.path().to_str().unwrap(), "touches_with_others"];
    let Some(recorded) = Recording::of_command(&command, |_| {}) else { return };
    if is_permitted(&recorded) {
        assert_all_is_there(&recorded);
    }
}

/// Linux cannot be asked in the program whether it removed the events: a filter of its own fails the call.
#[test]
fn programs_that_cannot_be_asked_are_recorded_whole() {
    for way in [CallChoice::Tracepoints, CallChoice::Stops] {
        let with = |program| Recording::with(program, |options| options.calls = way);
        let Some(recorded) = with("executes_what_is_hidden_under_a_filter") else { continue };
        if is_permitted(&recorded) {
            assert_all_is_there(&recorded);
        }
        // Linux kept its events, and each fault is there once.
        let Some(recorded) = with("touches_under_a_filter") else { continue };
        assert_eq!(recorded.summary.status, ExitStatus::Code(0), "the question did not kill it");
        let mut places: Vec<u64> = recorded.faults().map(|fault| fault.addr).collect();
        places.sort_unstable();
        let is_run = |run: &[u64]| run.windows(2).all(|pair| pair[1] == pair[0] + PAGE as u64);
        let runs = places.windows(HIDDEN_PAGES).filter(|run| is_run(run)).count();
        assert!(runs >= 1, "{places:x?}");
        recorded.file.assert_replays();
    }
}

/// Such a program has two sets of events, also when a thread of it has ended: each fault is there once.
#[test]
fn threads_that_cannot_be_asked_are_heard_once_to_their_end() {
    let Some(recorded) = Recording::with("touches_in_threads_under_a_filter", |_| {}) else { return };
    assert_eq!(recorded.summary.status, ExitStatus::Code(0));
    let bytes = (TOUCHING_THREADS * HIDDEN_PAGES * PAGE) as u64;
    let start = recorded.calls(libc::SYS_mmap).find(|call| call.args[1] == bytes).unwrap().result as u64;
    let mut places: Vec<u64> = recorded.faults().map(|fault| fault.addr).collect();
    places.retain(|addr| (start..start + bytes).contains(addr));
    let all = places.len();
    places.sort_unstable();
    places.dedup();
    assert_eq!((all, recorded.summary.stray_faults), (places.len(), 0));
    assert_eq!(all, TOUCHING_THREADS * HIDDEN_PAGES);
    recorded.file.assert_replays();
}

/// A recorder without descriptors, in a process of its own: how many faults each event says are missing, and
/// why. `None` where that is not permitted.
fn unheard(name: &str, code: i32) -> Option<Vec<Lost>> {
    let file = Scratch::new("unheard");
    let recorder = Command::new(PROGRAMS).args(["record", name]).arg(file.path()).output().unwrap();
    if recorder.status.code() == Some(NOT_PERMITTED) {
        return None;
    }
    assert_eq!(recorder.status.code(), Some(code), "{recorder:?}");
    let mut reader = TraceReader::open(file.path()).unwrap();
    let lost = |event: Result<_, _>| match event {
        Ok(Event { kind: EventKind::Lost(lost), .. }) => Some(lost),
        _ => None,
    };
    Some((&mut reader).filter_map(lost).collect())
}

/// Linux counts the faults that are not recorded.
#[test]
fn page_faults_of_programs_that_cannot_be_listened_to_are_counted() {
    let Some(lost) = unheard("leaves_its_recorder_no_descriptors", 6) else { return };
    assert_eq!(lost[0].count, 0, "it is told before what is missing: {lost:?}");
    assert!(lost.len() >= 3, "the program and its child: {lost:?}");
    assert!(lost.iter().map(|lost| lost.count).sum::<u64>() > 4 * HIDDEN_PAGES as u64, "{lost:?}");
    assert!(lost.iter().all(|lost| lost.cause == LostCause::Unheard), "no ring was full: {lost:?}");
}

#[test]
fn page_faults_before_a_failed_exec_are_counted_once() {
    let Some(lost) = unheard("fails_to_execute_in_between", 0) else { return };
    let count: u64 = lost.iter().map(|lost| lost.count).sum();
    // Those of its start, too.
    assert!((HIDDEN_PAGES as u64..3 * HIDDEN_PAGES as u64).contains(&count), "{lost:?}");
}

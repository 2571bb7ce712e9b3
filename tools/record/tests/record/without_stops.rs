//! Calls that tracepoints tell of: programs make them without a stop.

use crate::common::Model;
use crate::recording::{Recording, Scratch};
use crate::shared::{FILE_ROUNDS, GO, MAPS, PAGE, PID, ROUNDS, counts};
use crate::stay::{recorder, until};
use quire_record::{CallChoice, FaultChoice, RecordError, RecordOptions, record};
use quire_replay::ReplayOptions;
use quire_trace::event::{Call, CallDetail, EventKind, ExitStatus, Lost, LostCause};
use quire_trace::format::TraceReader;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Records a program without stops; `None`, with a message, where tracepoints are not permitted.
fn recorded(program: &str) -> Option<Recording> {
    let recorded = Recording::with(program, |options| options.calls = CallChoice::Tracepoints)?;
    assert!(recorded.summary.without_stops);
    Some(recorded)
}

fn all_calls(recorded: &Recording) -> impl Iterator<Item = &Call> {
    recorded.events.iter().filter_map(|event| match &event.kind {
        EventKind::Call(call) => Some(call),
        _ => None,
    })
}

#[test]
fn a_program_with_one_thread_replays() {
    let Some(without) = recorded("maps_alone") else { return };
    assert_eq!(without.summary.status, ExitStatus::Code(0));
    without.file.assert_replays();
    let Some(with) = Recording::with("maps_alone", |options| options.calls = CallChoice::Stops) else {
        return;
    };
    with.file.assert_replays();
    // 200 rounds of 13 calls, of which none stops.
    let (few, many) = (without.summary.stops, with.summary.stops);
    assert!(few + 2 * 200 * 13 < many, "{few} and {many} stops");
    // Addresses are random, and with them the places at which the heap and what is moved goes on.
    let made = |recorded: &Recording| -> Vec<(u32, Option<i32>)> {
        all_calls(recorded).map(|call| (call.number, call.errno())).collect()
    };
    assert_eq!(made(&without), made(&with));
}

/// A mapping of a file has one stop, at which the file is looked at, and the file that it is of.
#[test]
fn a_mapping_of_a_file_stops_once() {
    let Some(without) = recorded("maps_files_again_and_again") else { return };
    let Some(with) =
        Recording::with("maps_files_again_and_again", |options| options.calls = CallChoice::Stops)
    else {
        return;
    };
    // Of each file in each way: how often, and with which errno. Which thread opens a file first is chance,
    // and with it the number of the descriptor.
    let mapped = |recorded: &Recording| -> BTreeMap<String, usize> {
        assert_eq!(recorded.summary.status, ExitStatus::Code(0));
        recorded.file.assert_replays();
        let mut found = BTreeMap::new();
        for call in recorded.calls(libc::SYS_mmap).filter(|call| call.args[3] & 0x20 == 0) {
            let file = call.file().expect("the file is known");
            *found.entry(format!("{:?} {:x?} {file:?}", call.errno(), &call.args[2..4])).or_default() += 1;
        }
        found
    };
    assert_eq!(mapped(&without), mapped(&with));
    // Three threads map in two ways in each round; the munmaps do not stop.
    let maps = 3 * 2 * FILE_ROUNDS as u64;
    let (once, twice) = (without.summary.stops, with.summary.stops);
    assert!(once < maps + 300 && twice >= 2 * maps, "{once} and {twice} stops");
}

#[test]
fn threads_that_hand_memory_on_replay() {
    let Some(recorded) = recorded("hands_memory_from_thread_to_thread") else { return };
    assert_eq!(recorded.summary.status, ExitStatus::Code(0));
    let model = Model::play(&recorded.events);
    assert!(model.placed >= 4 * 1500, "{}", model.placed);
    model.check();
    recorded.file.assert_replays();
}

#[test]
fn copies_of_memory_that_changes_replay() {
    let Some(recorded) = recorded("forks_while_a_thread_maps") else { return };
    assert_eq!(recorded.summary.status, ExitStatus::Code(0));
    Model::play(&recorded.events).check();
    recorded.file.assert_replays();
}

/// The end of a call is told before its thread sees that it is killed.
#[test]
fn the_calls_of_what_is_killed_are_recorded() {
    let Some(recorded) = recorded("kills_what_maps") else { return };
    assert_eq!(recorded.summary.status, ExitStatus::Code(0));
    assert_eq!(recorded.count(|kind| matches!(kind, EventKind::Exit(ExitStatus::Signal(9)))), 40);
    recorded.assert_each_thread_ends_once();
    recorded.file.assert_replays();
}

/// Where code lies: in the images and in the files that are mapped to be executed.
fn code(recorded: &Recording) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    for event in &recorded.events {
        match &event.kind {
            EventKind::Exec(image) => {
                let mappings = image.mappings.iter().filter(|mapping| mapping.execute);
                found.extend(mappings.map(|mapping| mapping.start..mapping.end));
            }
            EventKind::Call(call) if call.file().is_some() && call.args[2] & 4 != 0 => {
                found.push(call.result as u64..call.result as u64 + call.args[1]);
            }
            _ => {}
        }
    }
    found
}

#[test]
fn anonymous_memory_has_the_place_of_its_call() {
    for calls in [CallChoice::Tracepoints, CallChoice::Stops] {
        let Some(recorded) = Recording::with("maps_alone", |options| options.calls = calls) else { continue };
        let code = code(&recorded);
        let is_code = |addr: u64| code.iter().any(|range| range.contains(&addr));
        let sites = all_calls(&recorded).filter_map(|call| match call.detail {
            CallDetail::Site { instruction, on_stack } => Some((instruction, on_stack)),
            _ => None,
        });
        let sites: Vec<(u64, u64)> = sites.collect();
        assert!(sites.len() >= 400, "{calls:?}: {}", sites.len());
        assert!(sites.iter().all(|(instruction, _)| is_code(*instruction)), "{calls:?}: {sites:x?}");
        // What maps memory is called by the program.
        let called = sites.iter().filter(|(_, on_stack)| is_code(*on_stack)).count();
        assert!(called >= 400, "{calls:?}: {sites:x?}");
    }
}

/// Calls of the i386 ABI whose numbers are those of other calls here.
#[test]
fn calls_of_another_abi_are_told_from_these() {
    let Some(recorded) = recorded("foreign") else { return };
    let no_memory_call = |call: &Call| call.errno() != Some(libc::EFAULT);
    assert!(recorded.calls(libc::SYS_mmap).all(no_memory_call));
}

/// The recorder stands still while the program fills its ring: one of 16 MiB has the samples of 25 000
/// rounds.
#[test]
fn calls_that_are_lost_are_counted() {
    if recorded("nothing").is_none() {
        return;
    }
    let (file, shared) = (Scratch::new("lost"), Scratch::new("lost-counts"));
    let counts = counts(shared.path());
    let mut recorder = recorder("makes_calls_that_are_not_read", &file, &shared);
    let reaches = |what: usize, count| until(|| counts[what].load(Ordering::Relaxed) >= count);
    let begun = reaches(PID, 1);
    // SAFETY: signals a child of ours that was not waited for.
    let signal = |signal| unsafe { libc::kill(recorder.id() as i32, signal) };
    signal(libc::SIGSTOP);
    counts[GO].store(1, Ordering::Relaxed);
    let done = reaches(MAPS, ROUNDS as u64 / 3);
    signal(libc::SIGCONT);
    let status = recorder.wait().unwrap();
    assert!(begun && done && status.success(), "{begun} {done} {status}");
    let (mut lost, mut unmapped) = (0, 0);
    // The number of the next round, if none is missing; and what is lost is told before it is missed.
    let (mut next, mut told) = (0, false);
    let has_number = |call: &Call| {
        let is_anonymous = call.args[3] & libc::MAP_ANONYMOUS as u64 != 0;
        i64::from(call.number) == libc::SYS_mmap && is_anonymous && call.args[5] != 0
    };
    let mut reader = TraceReader::open(file.path()).unwrap();
    for event in reader.by_ref() {
        match event.unwrap().kind {
            EventKind::Lost(Lost { count, cause: LostCause::RingFull }) => {
                lost += count;
                told = true;
            }
            EventKind::Call(call) if i64::from(call.number) == libc::SYS_munmap => unmapped += 1,
            EventKind::Call(call) if has_number(&call) => {
                let round = call.args[5] / PAGE as u64 - 1;
                assert!(
                    round == next || told,
                    "round {round} follows {next}, and nothing is said to be lost"
                );
                (next, told) = (round + 1, false);
            }
            _ => {}
        }
    }
    assert!(lost > 0 && unmapped < ROUNDS, "{lost} {unmapped}");
    assert_eq!(reader.trailer().unwrap().lost_samples, lost);
    assert_eq!(file.replay(ReplayOptions::default()).lost, lost);
}

#[test]
fn what_cannot_be_told_is_refused() {
    let file = Scratch::new("refused");
    let mut options = RecordOptions::new(vec!["/bin/true".into()], file.path().to_path_buf());
    options.calls = CallChoice::Tracepoints;
    options.faults = FaultChoice::Only(quire_trace::format::FaultSource::Software);
    match record(&options) {
        Err(error @ RecordError::Ptrace { .. }) => eprintln!("skipped: {error}"),
        Err(error @ RecordError::Calls { .. }) => {
            assert!(error.to_string().contains("--calls auto"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert!(!file.path().exists());
    assert_eq!("stops".parse(), Ok(CallChoice::Stops));
    assert!("stop".parse::<CallChoice>().is_err());
}

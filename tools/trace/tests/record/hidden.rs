//! Programs that only root may look into: their page faults are recorded, or counted as missing.

use crate::recording::{PROGRAMS, Recording, Scratch};
use crate::shared::{HIDDEN_PAGES, NOT_PERMITTED};
use quire_trace::event::{EventKind, ExitStatus};
use quire_trace::format::{FaultSource, TraceReader};
use quire_trace::record::{CallChoice, FaultChoice, RecordOptions};
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
    std::fs::copy(PROGRAMS, file.path()).unwrap();
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

/// Linux counts the faults that are not recorded.
#[test]
fn page_faults_of_programs_that_cannot_be_listened_to_are_counted() {
    let file = Scratch::new("unheard");
    let name = "leaves_its_recorder_no_descriptors";
    let recorder = Command::new(PROGRAMS).args(["record", name]).arg(file.path()).output().unwrap();
    if recorder.status.code() == Some(NOT_PERMITTED) {
        return;
    }
    assert_eq!(recorder.status.code(), Some(6), "{recorder:?}");
    let mut reader = TraceReader::open(file.path()).unwrap();
    let lost = |event: Result<_, _>| match event {
        Ok(quire_trace::event::Event { kind: EventKind::Lost(lost), .. }) => Some(lost.count),
        _ => None,
    };
    let lost: Vec<u64> = (&mut reader).filter_map(lost).collect();
    assert!(lost.len() >= 2, "the program and its child: {lost:?}");
    assert!(lost.iter().sum::<u64>() > 4 * HIDDEN_PAGES as u64, "{lost:?}");
}

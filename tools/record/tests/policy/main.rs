//! What a program may do is recorded as it changes, and a replay of the recording has the same results.

#![allow(clippy::unwrap_used, reason = "a step that fails is a test that fails")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[path = "../common/recording.rs"]
mod recording;

use quire_trace::event::{Call, EventKind, ExecGain, ExecImage, Privileges};
use recording::Recording;

/// Records one of the programs, checks that its replay has the same results, and returns what was recorded.
/// `None`, with a message, where this machine lets us follow no program.
fn record_and_replay(program: &str) -> Option<Recording> {
    let recorded = Recording::of(program)?;
    let report = recorded.file.assert_replays();
    let differences: Vec<_> = report.processes.iter().flat_map(|process| &process.first_mismatches).collect();
    assert!(differences.is_empty(), "{differences:#?}");
    Some(recorded)
}

fn failed(recorded: &Recording, number: i64, errno: i32) -> usize {
    recorded.calls(number).filter(|call| call.errno() == Some(errno)).count()
}

fn images(recorded: &Recording) -> Vec<&ExecImage> {
    let images = recorded
        .events
        .iter()
        .map(|event| if let EventKind::Exec(image) = &event.kind { Some(&**image) } else { None });
    images.flatten().collect()
}

fn changes(recorded: &Recording) -> Vec<Privileges> {
    let changes = recorded.events.iter().map(|event| match event.kind {
        EventKind::Privileges(privileges) => Some(privileges),
        _ => None,
    });
    changes.flatten().collect()
}

/// Without the capability there is nothing to give up: such a run shows less.
fn is_privileged(recorded: &Recording) -> bool {
    let privileged = images(recorded)[0].privileges == Privileges::ALL;
    if !privileged {
        eprintln!("run without capabilities: what giving them up does was not seen");
    }
    privileged
}

#[test]
fn locking_follows_privileges_and_limits() {
    let Some(recorded) = record_and_replay("locks") else { return };
    if !is_privileged(&recorded) {
        return;
    }
    // Each refusal that there is, and success, are in the recording.
    for (call, errnos) in [
        (libc::SYS_mlock, &[libc::EPERM, libc::ENOMEM][..]),
        (libc::SYS_mlock2, &[libc::EPERM, libc::ENOMEM]),
        (libc::SYS_mlockall, &[libc::EPERM, libc::ENOMEM]),
        (libc::SYS_mmap, &[libc::EPERM, libc::EAGAIN]),
        (libc::SYS_mremap, &[libc::EAGAIN]),
    ] {
        for errno in errnos {
            assert!(failed(&recorded, call, *errno) > 0, "call {call} never failed with {errno}");
        }
        assert!(recorded.calls(call).any(|call| call.errno().is_none()), "call {call} never succeeded");
    }
    let changes = changes(&recorded);
    assert!(changes.contains(&Privileges::ALL) && changes.contains(&Privileges::default()), "{changes:?}");
    // The last image is another user's.
    assert_eq!(images(&recorded).last().unwrap().privileges, Privileges::default());
}

#[test]
fn two_threads_have_privileges_of_their_own() {
    let Some(recorded) = record_and_replay("threads_differ") else { return };
    if is_privileged(&recorded) {
        let refused = failed(&recorded, libc::SYS_mlock, libc::EPERM);
        assert!(refused > 0 && recorded.calls(libc::SYS_mlock).any(|call| call.errno().is_none()));
    }
}

#[test]
fn a_child_that_shares_memory_has_limits_of_its_own() {
    let Some(recorded) = record_and_replay("shares_memory") else { return };
    // In the child the limit is nothing; its maker may still lock.
    assert!(failed(&recorded, libc::SYS_mlock, libc::EPERM) > 0);
    let last = recorded.calls(libc::SYS_mlock).filter(|call| call.args[1] == 2 * 4096).last().unwrap();
    assert_eq!(last.result, 0, "{last:?}");
}

#[test]
fn low_addresses_are_as_the_host_allows() {
    let Some(recorded) = record_and_replay("maps_low") else { return };
    let image = images(&recorded)[0];
    assert!(image.lowest_placed >= image.mmap_min_addr.max(4096), "{:#x}", image.lowest_placed);
    let hint = |call: &&Call| call.args[0] == 0x1000 && call.args[3] & libc::MAP_FIXED as u64 == 0;
    let hinted =
        recorded.calls(libc::SYS_mmap).filter(hint).find(|call| call.args[3] & 0x10_0000 == 0).unwrap();
    assert_eq!(hinted.result, image.lowest_placed as i64);
    if is_privileged(&recorded) && image.mmap_min_addr > 0 {
        assert!(failed(&recorded, libc::SYS_mmap, libc::EPERM) > 0);
    }
}

#[test]
fn memory_that_may_not_become_executable() {
    let Some(recorded) = record_and_replay("mdwe") else { return };
    let set = recorded.calls(libc::SYS_prctl).filter(|call| call.args[0] == libc::PR_SET_MDWE as u64);
    if !set.clone().any(|call| call.result == 0) {
        eprintln!("skipped: this kernel does not know PR_SET_MDWE");
        return;
    }
    for errno in [libc::EINVAL, libc::EPERM] {
        assert!(set.clone().any(|call| call.errno() == Some(errno)), "never {errno}");
    }
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        assert!(failed(&recorded, call, libc::EACCES) > 0);
    }
    // With the first bit alone two images inherit it; with both bits none does.
    let refused = images(&recorded).iter().filter(|image| image.exec_gain == ExecGain::Refused).count();
    assert_eq!((images(&recorded).len(), refused), (5, 2));
}

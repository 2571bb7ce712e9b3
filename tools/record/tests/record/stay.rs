//! Programs that go on after the recorder has let them go.

use crate::recording::{PROGRAMS, Scratch};
use crate::shared::{EXECS, FAILURES, FORKS, MAPS, NAPS, NOT_PERMITTED, PID, SIGNALS, counts};
use quire_trace::format::TraceReader;
use std::process::{Child, Command};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Waits until `is` is true; returns whether it was before half a minute.
pub(crate) fn until(mut is: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(30);
    while !is() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// A recorder of `program` in a process of its own, which counts in `shared`.
pub(crate) fn recorder(program: &str, file: &Scratch, shared: &Scratch) -> Child {
    let mut recorder = Command::new(PROGRAMS);
    recorder.args(["record", program]).arg(file.path()).env("QUIRE_COUNTS", shared.path());
    recorder.spawn().unwrap()
}

/// What the process `pid` is traced by; 0 if by none, `None` if it is gone.
fn tracer(pid: u64) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim().parse().ok()
}

/// A second signal ends the recorder. What the program counts goes on, without a failure, and what serves its
/// calls ends when it has ended.
fn assert_goes_on(program: &str, working: &[usize]) {
    let (file, shared) = (Scratch::new("stay"), Scratch::new("stay-counts"));
    let counts = counts(shared.path());
    let mut recorder = recorder(program, &file, &shared);
    let mut status = None;
    // Until each has been done a few times.
    let at_work = until(|| {
        status = recorder.try_wait().unwrap();
        status.is_some() || working.iter().all(|what| counts[*what].load(Ordering::Relaxed) > 3)
    });
    let ended = until(|| {
        // SAFETY: signals a child of ours that was not waited for.
        unsafe { libc::kill(recorder.id() as i32, libc::SIGTERM) };
        // Each is later than the one before by more than belongs together.
        std::thread::sleep(Duration::from_millis(300));
        status = status.or(recorder.try_wait().unwrap());
        status.is_some()
    });
    let before = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    let pid = before[PID];
    let tracer_now = tracer(pid);
    let goes_on = |what: &usize| {
        until(|| {
            counts[*what].load(Ordering::Relaxed) > before[*what] + 10
                || counts[FAILURES].load(Ordering::Relaxed) > 0
        })
    };
    let go_on: Vec<bool> = working.iter().map(goes_on).collect();
    let failures = counts[FAILURES].load(Ordering::Relaxed);
    // SAFETY: the recorded program, which was let go, or nothing that ever was.
    unsafe { libc::kill(i32::try_from(pid).ok().filter(|pid| *pid > 0).unwrap_or(i32::MAX), libc::SIGKILL) };
    let tracer_ends = until(|| tracer_now.is_none_or(|pid| pid == 0 || tracer(pid).is_none()));
    assert!(at_work && ended);
    if status.and_then(|status| status.code()) == Some(NOT_PERMITTED) {
        return;
    }
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    if tracer_now == Some(0) && scope.is_ok_and(|scope| scope.trim() != "0") {
        eprintln!("skipped: only descendants may be traced");
        return;
    }
    assert_eq!(failures, 0, "{before:?}");
    assert_eq!(go_on, vec![true; working.len()]);
    assert!(tracer_ends);
}

#[test]
fn programs_that_were_let_go_can_make_calls() {
    assert_goes_on("makes_calls_for_ever", &[FORKS, MAPS, EXECS, NAPS, SIGNALS]);
}

/// Neither the recorder nor what stays behind is the tracer that the program's filter means.
#[test]
fn calls_that_a_filter_leaves_to_a_tracer_fail_when_their_program_was_let_go() {
    assert_goes_on("asks_a_tracer_for_ever", &[FORKS, MAPS]);
}

/// The program has ended, and what it left behind has not. A signal to the recorder ends the recording, not
/// the daemon.
#[test]
fn a_daemon_outlives_the_signal_that_ends_the_recording() {
    let (file, shared) = (Scratch::new("daemon"), Scratch::new("daemon-counts"));
    let counts = counts(shared.path());
    let mut recorder = recorder("leaves_a_daemon", &file, &shared);
    let mut status = None;
    let at_work = until(|| {
        status = recorder.try_wait().unwrap();
        status.is_some() || counts[MAPS].load(Ordering::Relaxed) > 3
    });
    // The first one, unless the recorder learns only now that the program has ended.
    let ended = until(|| {
        std::thread::sleep(Duration::from_secs(1));
        // SAFETY: signals a child of ours that was not waited for.
        unsafe { libc::kill(recorder.id() as i32, libc::SIGINT) };
        std::thread::sleep(Duration::from_secs(1));
        status = status.or(recorder.try_wait().unwrap());
        status.is_some()
    });
    let before = counts[MAPS].load(Ordering::Relaxed);
    let goes_on = until(|| counts[MAPS].load(Ordering::Relaxed) > before + 10);
    let pid = counts[PID].load(Ordering::Relaxed);
    // SAFETY: the daemon, or nothing that ever was.
    unsafe { libc::kill(i32::try_from(pid).ok().filter(|pid| *pid > 0).unwrap_or(i32::MAX), libc::SIGKILL) };
    assert!(at_work && ended);
    let status = status.and_then(|status| status.code());
    if status == Some(NOT_PERMITTED) {
        return;
    }
    assert!(goes_on, "{before}");
    assert_eq!(counts[FAILURES].load(Ordering::Relaxed), 0);
    assert_eq!(status, Some(3), "that of the program");
    let mut reader = TraceReader::open(file.path()).unwrap();
    assert!(reader.all(|event| event.is_ok()));
    assert!(reader.trailer().unwrap().ended_early);
    file.assert_replays();
}

//! Programs that end in the middle of something, and programs that are refused memory.

use crate::recording::{PROGRAMS, Recording, Scratch};
use crate::shared::NOT_PERMITTED;
use quire_record::CallChoice;
use quire_trace::event::{EventKind, ExitStatus};
use quire_trace::format::{FaultSource, TraceReader};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A thread is killed between making a child and telling the recorder of it.
#[test]
fn a_child_whose_maker_is_killed_is_followed() {
    for recorded in Recording::in_both_ways("exits_while_it_forks") {
        assert_eq!(recorded.summary.status, ExitStatus::Code(4));
        assert_eq!(recorded.summary.orphans, 0, "each maker's end tells of its child");
        recorded.assert_each_thread_ends_once();
        recorded.file.assert_replays();
    }
}

/// A thread that is not the first is killed in exec, some of them when they have taken the place of the first
/// already.
#[test]
fn a_thread_that_is_killed_in_exec_ends_once() {
    for recorded in Recording::in_both_ways("kills_what_executes") {
        assert_eq!(recorded.summary.status, ExitStatus::Code(5));
        recorded.assert_each_thread_ends_once();
        recorded.file.assert_replays();
    }
}

/// The handler returns to the instruction, which faults again: once refused and once not.
#[test]
fn a_refused_fault_that_a_handler_mends_is_refused_once() {
    for recorded in Recording::in_both_ways("mends_what_was_refused") {
        if recorded.summary.faults != FaultSource::Tracepoint {
            return eprintln!("skipped: page faults are not told exactly here");
        }
        recorded.file.assert_replays();
    }
}

/// Linux brings an untouched page in before it refuses to execute it: two faults.
#[test]
fn a_page_that_is_not_executable_is_brought_in_and_refused() {
    let Some(recorded) = Recording::of("executes_what_is_not_executable") else { return };
    if recorded.summary.faults == FaultSource::Tracepoint {
        recorded.file.assert_replays();
    }
}

/// A signal to the recorder's process is noted before the program's end is: the thread that called `record`
/// does not take it. The program's own mask is as it was.
#[test]
fn a_signal_is_for_the_thread_that_waits_for_the_program() {
    fn blocked(status: &str) -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    }
    let own = "/proc/thread-self/status";
    let before = blocked(&std::fs::read_to_string(own).unwrap());
    let caller = std::fs::canonicalize("/proc/thread-self").unwrap().join("status");
    let masks = Scratch::new("masks");
    let script =
        format!("grep -h SigBlk {} /proc/self/status > {}", caller.display(), masks.path().display());
    if Recording::of_command(&["sh", "-c", &script], |_| {}).is_none() {
        return;
    }
    let found = std::fs::read_to_string(masks.path()).unwrap();
    let found: Vec<u64> = found.lines().map(blocked).collect();
    let noted = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].map(|signal| 1 << (signal - 1));
    assert!(noted.iter().all(|bit| found[0] & bit != 0), "of the calling thread: {:#x}", found[0]);
    assert_eq!(found[1], before, "of the program");
    assert_eq!(blocked(&std::fs::read_to_string(own).unwrap()), before, "of the calling thread, afterwards");
}

/// The processes of this program that a recorder with this output has made, with their states. Others may run
/// the same test.
fn alive(output: &Path) -> Vec<(i32, char)> {
    let numbers = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mark = [b"QUIRE_OUTPUT=", output.as_os_str().as_bytes()].concat();
    let has = |path: String, wanted: &[u8]| {
        std::fs::read(path).is_ok_and(|words| words.split(|byte| *byte == 0).any(|word| word == wanted))
    };
    let state = |pid: i32| {
        let own = has(format!("/proc/{pid}/environ"), &mark)
            && has(format!("/proc/{pid}/cmdline"), b"ends_only_when_killed");
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let state = stat.rsplit(") ").next()?.chars().next()?;
        own.then_some((pid, state))
    };
    pids.filter_map(state).collect()
}

/// The first signal is the program's, which ignores it; at the second the recorder lets all go and ends.
#[test]
fn a_second_signal_ends_the_recording_and_not_the_program() {
    let file = Scratch::new("released");
    let mut recorder = Command::new(PROGRAMS);
    recorder.args(["record", "ends_only_when_killed"]).arg(file.path()).env("QUIRE_OUTPUT", file.path());
    let mut recorder = recorder.spawn().unwrap();
    let alive = || alive(file.path());
    let until = Instant::now() + Duration::from_secs(30);
    while alive().len() < 3 && Instant::now() < until && recorder.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut status = None;
    while status.is_none() && Instant::now() < until {
        // Each is later than the one before by more than belongs together.
        // SAFETY: signals a child of ours that was not waited for.
        unsafe { libc::kill(recorder.id() as i32, libc::SIGTERM) };
        std::thread::sleep(Duration::from_millis(300));
        status = recorder.try_wait().unwrap();
    }
    let left = alive();
    // Processes that live for a moment are stopped by the one that stays behind, and let go at once.
    let is_stopped = |(_, state): &&(i32, char)| "tT".contains(*state);
    let mut stopped: Vec<(i32, char)> = left.iter().filter(is_stopped).copied().collect();
    let until = Instant::now() + Duration::from_secs(5);
    while !stopped.is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
        let now = alive();
        stopped.retain(|one| now.contains(one));
    }
    for (pid, _) in &left {
        // SAFETY: the recorded program's processes, which were let go.
        unsafe { libc::kill(*pid, libc::SIGKILL) };
    }
    let status = status.expect("the recorder ends");
    if status.code() == Some(NOT_PERMITTED) {
        return;
    }
    assert_eq!(status.code(), Some(128 + libc::SIGTERM));
    assert!(left.len() >= 3, "the program goes on: {left:?}");
    assert_eq!(stopped, [], "nothing is left stopped");
    let mut reader = TraceReader::open(file.path()).unwrap();
    assert!(reader.all(|event| event.is_ok()));
    assert!(reader.trailer().unwrap().ended_early);
    file.assert_replays();
}

/// Builds the stress program; `None` if there is no C compiler.
fn stress() -> Option<(TempDir, PathBuf)> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stress.c");
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("stress");
    let built = Command::new("cc")
        .args(["-O1", "-pthread", "-o"])
        .args([&program, &source])
        .status()
        .inspect_err(|error| eprintln!("skipped: cc: {error}"));
    assert!(built.ok()?.success());
    Some((folder, program))
}

/// Processes that begin and end in every way. `QUIRE_STRESS` says how many (300 if it is not set).
#[test]
fn processes_that_end_in_every_way_are_followed() {
    let Some((_folder, program)) = stress() else { return };
    let wanted = std::env::var("QUIRE_STRESS").unwrap_or_else(|_| "300".to_owned());
    for seed in 1..=3 {
        eprintln!("stress {seed} {wanted}");
        let words = [program.to_str().unwrap(), &seed.to_string(), &wanted];
        let way = if seed % 2 == 1 { CallChoice::Auto } else { CallChoice::Stops };
        let Some(recorded) = Recording::of_command(&words, |options| options.calls = way) else { break };
        assert_eq!(recorded.summary.status, ExitStatus::Code(0));
        recorded.assert_each_thread_ends_once();
        recorded.file.assert_replays();
    }
}

/// The recorder waits for all that it follows, also for what is not in its own process group.
#[test]
fn processes_in_groups_of_their_own_are_followed() {
    let Some(recorded) = Recording::of("leaves_its_group") else { return };
    assert_eq!(recorded.summary.status, ExitStatus::Code(0));
    let left = recorded.count(|kind| *kind == EventKind::Exit(ExitStatus::Code(12)));
    assert_eq!((left, recorded.summary.processes), (2, 3));
    recorded.file.assert_replays();
}

/// The recorder itself ignores these signals.
#[test]
fn signals_of_the_terminal_do_to_the_program_what_they_did_before() {
    let Some(recorded) = Recording::of("is_stopped_by_the_terminal") else { return };
    assert_eq!(recorded.summary.status, ExitStatus::Code(0));
}

#[test]
fn a_program_that_traces_gets_a_message() {
    static NOTICES: AtomicUsize = AtomicUsize::new(0);
    fn notify(line: &str) {
        NOTICES.fetch_add(usize::from(line.contains("ptrace")), Ordering::Relaxed);
    }
    let Some(recorded) = Recording::with("traces", |options| options.notify = notify) else { return };
    assert_eq!(recorded.summary.status, ExitStatus::Code(9));
    assert_eq!(NOTICES.load(Ordering::Relaxed), 1);
    recorded.file.assert_replays();
}

/// Linux keeps these from the recorder, which takes the flag out.
#[test]
fn children_that_are_to_be_untraced_are_followed() {
    assert_follows_untraced("makes_untraced_children", 3);
}

#[test]
fn children_that_32_bit_calls_make_untraced_are_followed() {
    // And the one that looks whether there are such calls.
    assert_follows_untraced("makes_untraced_children_in_32_bit", 4);
}

fn assert_follows_untraced(program: &str, processes: u32) {
    for recorded in Recording::in_both_ways(program) {
        if recorded.summary.status == ExitStatus::Code(9) {
            return eprintln!("skipped: the kernel has no i386 calls");
        }
        assert_eq!(recorded.summary.status, ExitStatus::Code(8));
        assert_eq!((recorded.summary.processes, recorded.summary.stray_faults), (processes, 0));
        recorded.assert_each_thread_ends_once();
        recorded.file.assert_replays();
    }
}

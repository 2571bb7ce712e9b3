//! Programs that end in the middle of something, and programs that are refused memory.

use crate::children::{PAGE, leave, map};
use crate::{assert_replays, count, is_permitted, output};
use quire_trace::event::{EventKind, ExitStatus};
use quire_trace::format::{FaultSource, TraceReader};
use quire_trace::record::{RecordOptions, RecordSummary, record};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Records a child of this file; the recording is left behind.
fn record_child(child: &str) -> Option<(RecordSummary, PathBuf)> {
    let program = std::env::current_exe().unwrap().into_os_string();
    let name = format!("ends::{child}");
    let words = [&name, "--exact", "--ignored", "--nocapture", "--quiet", "--test-threads=1"];
    let command = std::iter::once(program).chain(words.map(OsString::from)).collect();
    let path = output(child);
    let result = record(&RecordOptions::new(command, path.clone()));
    is_permitted(&result).then(|| (result.unwrap_or_else(|error| panic!("{error}")), path))
}

#[test]
#[ignore = "a program that tests record"]
fn child_exits_while_it_forks() {
    extern "C" fn forks(_argument: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: the child of the fork ends at once.
        unsafe {
            if libc::fork() == 0 {
                libc::_exit(0);
            }
        }
        std::ptr::null_mut()
    }
    let mut seed = 1_u32;
    for _ in 0..300 {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // SAFETY: the child makes a thread, sleeps and ends; the pointers are to live locals.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let mut thread = 0;
                libc::pthread_create(&raw mut thread, std::ptr::null(), forks, std::ptr::null_mut());
                let pause = libc::timespec { tv_sec: 0, tv_nsec: i64::from(seed >> 8) % 100_000 };
                libc::nanosleep(&raw const pause, std::ptr::null_mut());
                libc::syscall(libc::SYS_exit_group, 0);
            }
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
    }
    leave(4);
}

/// A thread is killed between making a child and telling the recorder of it.
#[test]
fn a_child_whose_maker_is_killed_is_followed() {
    let Some((summary, path)) = record_child("child_exits_while_it_forks") else { return };
    assert_eq!(summary.status, ExitStatus::Code(4));
    assert_eq!(summary.orphans, 0, "each maker's end tells of its child");
    let events: Vec<_> = TraceReader::open(&path).unwrap().map(Result::unwrap).collect();
    let born = count(&events, |kind| matches!(kind, EventKind::Clone(_)));
    let ended = count(&events, |kind| matches!(kind, EventKind::Exit(_)));
    assert_eq!(ended, born + 1, "each thread ends once, and the first was not born");
    assert_replays(&path);
}

static GUARDED: AtomicUsize = AtomicUsize::new(0);

#[test]
#[ignore = "a program that tests record"]
fn child_kills_what_executes() {
    extern "C" fn executes(_argument: *mut libc::c_void) -> *mut libc::c_void {
        let program = c"/bin/true".as_ptr();
        // SAFETY: the words are a list that ends with null.
        unsafe { libc::execv(program, [program, std::ptr::null()].as_ptr()) };
        std::ptr::null_mut()
    }
    let mut seed = 1_u32;
    for _ in 0..300 {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // SAFETY: the child makes a thread and waits to be killed or replaced; the pointers are to live
        // locals.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let mut thread = 0;
                libc::pthread_create(&raw mut thread, std::ptr::null(), executes, std::ptr::null_mut());
                loop {
                    libc::pause();
                }
            }
            let pause = libc::timespec { tv_sec: 0, tv_nsec: i64::from(seed >> 8) % 2_000_000 };
            libc::nanosleep(&raw const pause, std::ptr::null_mut());
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
    }
    leave(5);
}

/// A thread that is not the first is killed in exec, some of them when they have taken the place of the first
/// already.
#[test]
fn a_thread_that_is_killed_in_exec_ends_once() {
    let Some((summary, path)) = record_child("child_kills_what_executes") else { return };
    assert_eq!(summary.status, ExitStatus::Code(5));
    let events: Vec<_> = TraceReader::open(&path).unwrap().map(Result::unwrap).collect();
    let born = count(&events, |kind| matches!(kind, EventKind::Clone(_)));
    let ended = count(&events, |kind| matches!(kind, EventKind::Exit(_)));
    assert_eq!(ended, born + 1, "each thread ends once, and the first was not born");
    assert_replays(&path);
}

extern "C" fn mend(_signal: i32) {
    // SAFETY: the address is that of the child's own mapping.
    unsafe {
        let page = std::ptr::with_exposed_provenance_mut(GUARDED.load(Ordering::Relaxed));
        libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE);
    }
}

#[test]
#[ignore = "a program that tests record"]
fn child_mends_what_was_refused() {
    const ROUNDS: usize = 1000;
    let guards = map(ROUNDS * PAGE, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the handler makes one system call; each address is inside the mapping.
    unsafe {
        libc::signal(libc::SIGSEGV, mend as extern "C" fn(i32) as libc::sighandler_t);
        for round in 0..ROUNDS {
            let page = guards.add(round * PAGE);
            GUARDED.store(page.expose_provenance(), Ordering::Relaxed);
            page.write_volatile(1);
        }
    }
    leave(0);
}

/// The handler returns to the instruction, which faults again: once refused and once not.
#[test]
fn a_refused_fault_that_a_handler_mends_is_refused_once() {
    let Some((summary, path)) = record_child("child_mends_what_was_refused") else { return };
    if summary.faults != FaultSource::Tracepoint {
        return eprintln!("skipped: page faults are not told exactly here");
    }
    assert_replays(&path);
}

#[test]
#[ignore = "a program that tests record"]
fn child_executes_what_is_not_executable() {
    const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
    let shared = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    for (prot, flags) in [(RW, private), (libc::PROT_READ, private), (RW, shared), (libc::PROT_NONE, private)]
    {
        for is_touched in [false, true] {
            let page = map(PAGE, prot, flags);
            if is_touched && prot == RW {
                // SAFETY: the page was just mapped for writing.
                unsafe { page.write_volatile(1) };
            }
            // SAFETY: the jump ends the child, which has made nothing but system calls before it.
            let status = unsafe {
                let child = libc::fork();
                if child == 0 {
                    libc::signal(libc::SIGSEGV, libc::SIG_DFL);
                    std::mem::transmute::<*mut u8, extern "C" fn()>(page)();
                    libc::_exit(0);
                }
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                status
            };
            assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV);
        }
    }
    leave(0);
}

/// Linux brings an untouched page in before it refuses to execute it: two faults.
#[test]
fn a_page_that_is_not_executable_is_brought_in_and_refused() {
    let Some((summary, path)) = record_child("child_executes_what_is_not_executable") else { return };
    if summary.faults == FaultSource::Tracepoint {
        assert_replays(&path);
    }
}

#[test]
#[ignore = "a program that tests record"]
fn child_ends_only_when_killed() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: ignoring signals has no memory preconditions.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // Other processes and threads: one that waits, one that computes, one that makes processes.
    // SAFETY: the children sleep or compute; they are killed in the end.
    unsafe {
        if libc::fork() == 0 {
            loop {
                libc::pause();
            }
        }
        if libc::fork() == 0 {
            loop {
                std::hint::spin_loop();
            }
        }
    }
    std::thread::spawn(|| {
        loop {
            // SAFETY: the child of the fork ends at once.
            unsafe {
                if libc::fork() == 0 {
                    libc::_exit(0);
                }
                libc::wait(std::ptr::null_mut());
            }
        }
    });
    loop {
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
}

/// The processes whose command line names this child, with their states.
fn alive() -> Vec<(i32, char)> {
    let numbers = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let state = |pid: i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let own = line.split(|byte| *byte == 0).any(|word| word == b"ends::child_ends_only_when_killed");
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let state = stat.rsplit(") ").next()?.chars().next()?;
        own.then_some((pid, state))
    };
    pids.filter_map(state).collect()
}

#[test]
#[ignore = "a recorder that tests send signals to"]
fn recorder_of_a_child_that_goes_on() {
    let path = std::env::var_os("QUIRE_OUTPUT").unwrap();
    let program = std::env::current_exe().unwrap().into_os_string();
    let words = ["ends::child_ends_only_when_killed", "--exact", "--ignored", "--nocapture", "--quiet"];
    let command = std::iter::once(program).chain(words.map(OsString::from)).collect();
    match record(&RecordOptions::new(command, PathBuf::from(path))) {
        Err(error @ quire_trace::record::RecordError::Ptrace { .. }) => eprintln!("skipped: {error}"),
        result => leave(i32::from(result.unwrap().exit_code())),
    }
    leave(77);
}

/// The first signal is the program's, which ignores it; at the second the recorder lets all go and ends.
#[test]
fn a_second_signal_ends_the_recording_and_not_the_program() {
    use std::time::{Duration, Instant};
    let path = output("released");
    let mut recorder = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["ends::recorder_of_a_child_that_goes_on", "--exact", "--ignored", "--nocapture", "--quiet"])
        .env("QUIRE_OUTPUT", &path)
        .spawn()
        .unwrap();
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
    for (pid, _) in &left {
        // SAFETY: the recorded program's processes, which were let go.
        unsafe { libc::kill(*pid, libc::SIGKILL) };
    }
    let status = status.expect("the recorder ends");
    if status.code() == Some(77) {
        return;
    }
    assert_eq!(status.code(), Some(128 + libc::SIGTERM));
    assert!(left.len() >= 3, "the program goes on: {left:?}");
    assert!(left.iter().all(|(_, state)| !"tT".contains(*state)), "nothing is left stopped: {left:?}");
    let mut reader = TraceReader::open(&path).unwrap();
    assert!(reader.all(|event| event.is_ok()));
    assert!(reader.trailer().unwrap().ended_early);
    assert_replays(&path);
}

/// Builds the stress program; `None` if there is no C compiler.
fn stress() -> Option<PathBuf> {
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stress.c");
    let program = std::env::temp_dir().join(format!("quire-stress-{}", std::process::id()));
    let built = std::process::Command::new("cc")
        .args(["-O1", "-pthread", "-o"])
        .args([&program, &source])
        .status()
        .inspect_err(|error| eprintln!("skipped: cc: {error}"));
    assert!(built.ok()?.success());
    Some(program)
}

/// Processes that begin and end in every way. `QUIRE_STRESS` says how many (300 if it is not set).
#[test]
fn processes_that_end_in_every_way_are_followed() {
    let Some(program) = stress() else { return };
    let wanted = std::env::var("QUIRE_STRESS").unwrap_or_else(|_| "300".to_owned());
    for seed in 1..=3 {
        eprintln!("stress {seed} {wanted}");
        let words = [program.clone().into_os_string(), seed.to_string().into(), wanted.clone().into()];
        let path = output("stress");
        let result = record(&RecordOptions::new(words.into(), path.clone()));
        if !is_permitted(&result) {
            break;
        }
        let summary = result.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(summary.status, ExitStatus::Code(0));
        let events: Vec<_> = TraceReader::open(&path).unwrap().map(Result::unwrap).collect();
        let born = count(&events, |kind| matches!(kind, EventKind::Clone(_)));
        let ended = count(&events, |kind| matches!(kind, EventKind::Exit(_)));
        assert_eq!(ended, born + 1, "each thread ends once, and the first was not born");
        assert_replays(&path);
    }
    std::fs::remove_file(program).unwrap();
}

#[test]
#[ignore = "a program that tests record"]
fn child_traces() {
    // SAFETY: asks to be traced, which is refused: it is traced already.
    let result = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
    let refused = std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM);
    leave(if result == -1 && refused { 9 } else { 1 });
}

#[test]
fn a_program_that_traces_gets_a_message() {
    static NOTICES: AtomicUsize = AtomicUsize::new(0);
    fn notify(line: &str) {
        NOTICES.fetch_add(usize::from(line.contains("ptrace")), Ordering::Relaxed);
    }
    let program = std::env::current_exe().unwrap().into_os_string();
    let words = ["ends::child_traces", "--exact", "--ignored", "--nocapture", "--quiet"];
    let command = std::iter::once(program).chain(words.map(OsString::from)).collect();
    let path = output("traces");
    let result = record(&RecordOptions { notify, ..RecordOptions::new(command, path.clone()) });
    if !is_permitted(&result) {
        return;
    }
    assert_eq!(result.unwrap().status, ExitStatus::Code(9));
    assert_eq!(NOTICES.load(Ordering::Relaxed), 1);
    assert_replays(&path);
}

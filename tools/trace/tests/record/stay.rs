//! Programs that go on after the recorder has let them go.

use crate::children::leave;
use crate::{is_permitted, output};
use quire_trace::record::{RecordOptions, record};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What the program counts, in a file that it shares with the test.
const FORKS: usize = 0;
const MAPS: usize = 1;
const EXECS: usize = 2;
const NAPS: usize = 3;
const SIGNALS: usize = 4;
const FAILURES: usize = 5;
const PID: usize = 6;
type Counts = [AtomicU64; 7];

fn counts(path: &Path) -> &'static Counts {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    file.set_len(4096).unwrap();
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of a file that has the length; it stays mapped.
    let addr = unsafe { libc::mmap(std::ptr::null_mut(), 4096, prot, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    assert_ne!(addr, libc::MAP_FAILED);
    // SAFETY: the mapping holds the counters, which are atomic for all that share it.
    unsafe { &*addr.cast::<Counts>() }
}

/// Counts a success or a failure.
fn count(counts: &Counts, what: usize, success: bool) {
    counts[if success { what } else { FAILURES }].fetch_add(1, Ordering::Relaxed);
}

/// Makes a process that runs `body` and returns whether it ended with code 0.
fn child(body: impl FnOnce()) -> bool {
    // SAFETY: the bodies make system calls only.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            body();
            libc::_exit(0);
        }
        let mut status = 0;
        let waited = libc::waitpid(child, &raw mut status, 0);
        child > 0 && waited == child && status == 0
    }
}

#[test]
#[ignore = "a program that tests record"]
fn child_makes_calls_for_ever() {
    static SIGNALS_SEEN: AtomicU64 = AtomicU64::new(0);
    extern "C" fn on_signal(_signal: i32) {
        SIGNALS_SEEN.fetch_add(1, Ordering::Relaxed);
    }
    let counts = counts(&PathBuf::from(std::env::var_os("QUIRE_COUNTS").unwrap()));
    // SAFETY: ignoring signals has no memory preconditions; the handler adds to an atomic number only.
    unsafe {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::signal(libc::SIGUSR1, on_signal as extern "C" fn(i32) as libc::sighandler_t);
    }
    counts[PID].store(u64::from(std::process::id()), Ordering::Relaxed);
    std::thread::spawn(|| {
        loop {
            count(counts, FORKS, child(|| {}));
        }
    });
    std::thread::spawn(|| {
        loop {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: new memory, which is written and taken away.
            unsafe {
                let addr = libc::mmap(std::ptr::null_mut(), 4096, prot, flags, -1, 0);
                if addr != libc::MAP_FAILED {
                    addr.cast::<u8>().write_volatile(1);
                }
                count(counts, MAPS, addr != libc::MAP_FAILED && libc::munmap(addr, 4096) == 0);
            }
        }
    });
    std::thread::spawn(|| {
        loop {
            count(
                counts,
                EXECS,
                child(|| {
                    let program = c"/bin/true".as_ptr();
                    // SAFETY: the words are a list that ends with null.
                    unsafe { libc::execv(program, [program, std::ptr::null()].as_ptr()) };
                    // SAFETY: ends the child, which did not become the program.
                    unsafe { libc::_exit(1) };
                }),
            );
        }
    });
    // A wait that is made to go on where it was.
    std::thread::spawn(|| {
        loop {
            let begun = Instant::now();
            let nap = libc::timespec { tv_sec: 0, tv_nsec: 50_000_000 };
            // SAFETY: the pointer is to a live local.
            let result = unsafe { libc::nanosleep(&raw const nap, std::ptr::null_mut()) };
            count(counts, NAPS, result == 0 && begun.elapsed() >= Duration::from_millis(50));
        }
    });
    // A thread that gets a signal all the time.
    loop {
        let before = SIGNALS_SEEN.load(Ordering::Relaxed);
        // SAFETY: a signal to this thread, which handles it.
        let sent = unsafe { libc::raise(libc::SIGUSR1) } == 0;
        count(counts, SIGNALS, sent && SIGNALS_SEEN.load(Ordering::Relaxed) == before + 1);
    }
}

#[test]
#[ignore = "a recorder that tests send signals to"]
fn recorder_of_calls_for_ever() {
    let path = std::env::var_os("QUIRE_OUTPUT").unwrap();
    let program = std::env::current_exe().unwrap().into_os_string();
    let words = ["stay::child_makes_calls_for_ever", "--exact", "--ignored", "--nocapture", "--quiet"];
    let command = std::iter::once(program).chain(words.map(OsString::from)).collect();
    let result = record(&RecordOptions::new(command, PathBuf::from(path)));
    if !is_permitted(&result) {
        leave(77);
    }
    leave(i32::from(result.unwrap().exit_code()));
}

/// Waits until `is` is true; returns whether it was before half a minute.
fn until(mut is: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(30);
    while !is() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// What the process `pid` is traced by; 0 if by none, `None` if it is gone.
fn tracer(pid: u64) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim().parse().ok()
}

/// A second signal ends the recorder. The programs' calls go on, and what serves them ends when they have
/// ended.
#[test]
fn programs_that_were_let_go_can_make_calls() {
    let (path, shared) = (output("stay"), output("stay-counts"));
    let counts = counts(&shared);
    let mut recorder = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["stay::recorder_of_calls_for_ever", "--exact", "--ignored", "--nocapture", "--quiet"])
        .env("QUIRE_OUTPUT", &path)
        .env("QUIRE_COUNTS", &shared)
        .spawn()
        .unwrap();
    let working = [FORKS, MAPS, EXECS, NAPS, SIGNALS];
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
    for file in [&path, &shared] {
        drop(std::fs::remove_file(file));
    }
    assert!(at_work && ended);
    if status.and_then(|status| status.code()) == Some(77) {
        return;
    }
    if tracer_now == Some(0) {
        eprintln!("skipped: only descendants may be traced");
        return;
    }
    assert_eq!(failures, 0, "{before:?}");
    assert_eq!(go_on, [true; 5]);
    assert!(tracer_ends);
}

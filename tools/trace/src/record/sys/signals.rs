//! The recorder's own signals.
//!
//! Ctrl-C goes to the recorder and to the program alike. The program decides what becomes of it; the recorder
//! only notes it, so that the trace is finished whatever happens.

use super::Tid;
use rustix::process::{Signal, getpid, kill_process};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// How many times each signal in [`NOTED`] came.
static SEEN: [AtomicU32; NOTED.len()] = [const { AtomicU32::new(0) }; NOTED.len()];

/// Signals that are counted.
pub(crate) const NOTED: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

/// Signals that would stop or end the recorder at the terminal's wish; the program gets them as well.
const IGNORED: [i32; 4] = [libc::SIGQUIT, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// The signal of the tick.
pub(crate) fn tick_signal() -> i32 {
    libc::SIGRTMIN() + 5
}

/// Who uses the handlers: recordings in one process share them.
static USERS: Mutex<Users> = Mutex::new(Users { count: 0, saved: Vec::new() });

struct Users {
    count: usize,
    saved: Vec<(i32, libc::sigaction)>,
}

extern "C" fn note(signal: libc::c_int) {
    // Only an atomic addition: allowed in a signal handler.
    if let Some(place) = NOTED.iter().position(|noted| noted.as_raw() == signal) {
        SEEN[place].fetch_add(1, Ordering::Relaxed);
    }
}

/// While this lives, the recorder survives the terminal's signals.
#[derive(Debug)]
pub(crate) struct SignalGuard(());

impl SignalGuard {
    /// Installs the handlers, unless another recording in this process did.
    pub(crate) fn install() -> Self {
        let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
        if users.count == 0 {
            let handler = note as extern "C" fn(libc::c_int) as libc::sighandler_t;
            let noted =
                NOTED.map(Signal::as_raw).into_iter().chain([tick_signal()]).map(|signal| (signal, handler));
            let ignored = IGNORED.into_iter().map(|signal| (signal, libc::SIG_IGN));
            for (signal, handler) in noted.chain(ignored) {
                let old = set(signal, handler);
                users.saved.push((signal, old));
            }
        }
        users.count += 1;
        Self(())
    }
}

impl Drop for SignalGuard {
    fn drop(&mut self) {
        let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
        users.count -= 1;
        if users.count == 0 {
            for (signal, old) in std::mem::take(&mut users.saved) {
                // SAFETY: `old` is what sigaction gave for this signal.
                unsafe { libc::sigaction(signal, &raw const old, std::ptr::null_mut()) };
            }
        }
    }
}

fn set(signal: i32, handler: libc::sighandler_t) -> libc::sigaction {
    let mut new = MaybeUninit::<libc::sigaction>::zeroed();
    let mut old = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a zeroed sigaction is valid (empty mask, no flags: a wait is interrupted, not restarted); the
    // handler is async-signal-safe; both structures are live.
    unsafe {
        (*new.as_mut_ptr()).sa_sigaction = handler;
        libc::sigaction(signal, new.as_ptr(), old.as_mut_ptr());
        old.assume_init()
    }
}

/// How many times each signal in [`NOTED`] came since the process began.
pub(crate) fn seen() -> [u32; NOTED.len()] {
    SEEN.each_ref().map(|count| count.load(Ordering::Relaxed))
}

/// Sends a signal to a process.
pub(crate) fn send(pid: Tid, signal: Signal) {
    // A process that is gone already is no error here.
    let _ = super::pid(pid).map(|pid| kill_process(pid, signal));
}

/// Sends a signal to one thread.
pub(crate) fn send_thread(pid: Tid, tid: Tid, signal: i32) {
    // SAFETY: tgkill has no memory preconditions.
    unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) };
}

/// Stops this process, as the terminal's stop signal would have.
pub(crate) fn stop_self() {
    let _ = kill_process(getpid(), Signal::STOP);
}

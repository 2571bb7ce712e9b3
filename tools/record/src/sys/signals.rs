//! The recorder's own signals.
//!
//! Ctrl-C goes to the recorder and to the program alike. The program decides what to do with it; the recorder
//! only counts it, so that the trace is always finished.

use super::Tid;
use super::time::now;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, kill, sigaction};
use nix::unistd::Pid;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// How many times each signal in [`NOTED`] was received.
static SEEN: [AtomicU32; NOTED.len()] = [const { AtomicU32::new(0) }; NOTED.len()];

/// When the last of them came.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Signals that are counted.
pub(crate) const NOTED: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// Signals from the terminal that would stop or end the recorder; the program gets them as well. And the one
/// for a file that is larger than the limit: without it the write fails, as one to a full disk does.
const IGNORED: [Signal; 5] =
    [Signal::SIGQUIT, Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU, Signal::SIGXFSZ];

/// SIGPIPE was ignored when this process began. The Rust runtime ignores it before `main`, so that only what
/// runs before the runtime can know.
static PIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

/// Called by the C library before the Rust runtime begins.
#[used]
// SAFETY: the section has pointers to functions of this kind.
#[unsafe(link_section = ".init_array")]
static NOTE_PIPE: extern "C" fn() = note_pipe;

extern "C" fn note_pipe() {
    // SAFETY: asks what a signal does, and writes it to a live local.
    let ignored = unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    };
    PIPE_WAS_IGNORED.store(ignored, Ordering::Relaxed);
}

/// What SIGPIPE did before the Rust runtime changed it.
fn inherited_pipe() -> SavedSignal {
    let handler =
        if PIPE_WAS_IGNORED.load(Ordering::Relaxed) { SigHandler::SigIgn } else { SigHandler::SigDfl };
    (Signal::SIGPIPE, SigAction::new(handler, SaFlags::empty(), SigSet::empty()))
}

/// The signal of the tick: one that does nothing where it has no handler.
pub(crate) const TICK: Signal = Signal::SIGURG;

/// The users of the handlers: recordings in one process share them.
static USERS: Mutex<Users> = Mutex::new(Users { count: 0, saved: Vec::new() });

struct Users {
    count: usize,
    saved: Vec<SavedSignal>,
}

/// A signal, and its disposition before the first recording.
pub(crate) type SavedSignal = (Signal, SigAction);

extern "C" fn note(signal: libc::c_int) {
    // Only atomic operations, and a clock is read: allowed in a signal handler.
    if let Some(place) = NOTED.iter().position(|noted| *noted as i32 == signal) {
        LAST.store(now(), Ordering::Relaxed);
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
            let noted = NOTED.into_iter().chain([TICK]).map(|signal| (signal, SigHandler::Handler(note)));
            let ignored = IGNORED.into_iter().map(|signal| (signal, SigHandler::SigIgn));
            for (signal, handler) in noted.chain(ignored) {
                // Without flags: a wait is interrupted, not restarted.
                let old = set(signal, &SigAction::new(handler, SaFlags::empty(), SigSet::empty()));
                users.saved.extend(old.map(|old| (signal, old)));
            }
        }
        users.count += 1;
        Self(())
    }

    /// The dispositions of all signals before, and that of SIGPIPE before the Rust runtime.
    pub(crate) fn saved(&self) -> Vec<SavedSignal> {
        let users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
        users.saved.iter().copied().chain([inherited_pipe()]).collect()
    }
}

impl Drop for SignalGuard {
    fn drop(&mut self) {
        let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
        users.count -= 1;
        if users.count == 0 {
            restore(&std::mem::take(&mut users.saved));
        }
    }
}

/// Restores the dispositions of signals. Safe between fork and exec.
pub(crate) fn restore(saved: &[SavedSignal]) {
    for (signal, old) in saved {
        set(*signal, old);
    }
}

/// Sets the disposition of a signal; returns the one before.
fn set(signal: Signal, action: &SigAction) -> Option<SigAction> {
    // SAFETY: the only handler that is ever set is `note`, which is async-signal-safe, or what was set
    // before the recording.
    unsafe { sigaction(signal, action).ok() }
}

/// The index in [`NOTED`] of a signal that was received since it was `seen` so many times.
pub(crate) fn new_since(seen: &[u32; NOTED.len()]) -> Option<usize> {
    self::seen().iter().zip(seen).position(|(now, before)| now != before)
}

/// How many times each signal in [`NOTED`] was received since the process began.
pub(crate) fn seen() -> [u32; NOTED.len()] {
    SEEN.each_ref().map(|count| count.load(Ordering::Relaxed))
}

/// When the last of them was received.
pub(crate) fn last() -> u64 {
    LAST.load(Ordering::Relaxed)
}

/// Blocks the counted signals in the calling thread while this lives: so the thread that waits for the
/// program gets them, before its wait returns. Another thread's handler might run only after the recording
/// has ended.
#[derive(Debug)]
pub(crate) struct Blocked {
    /// `None` if the mask could not be read: nothing was changed.
    before: Option<SigSet>,
}

impl Blocked {
    pub(crate) fn new() -> Self {
        let mut mask = SigSet::empty();
        NOTED.into_iter().chain([TICK]).for_each(|signal| mask.add(signal));
        Self { before: mask.thread_swap_mask(SigmaskHow::SIG_BLOCK).ok() }
    }

    /// Gives the calling thread, which inherited the mask, the one that the blocking thread had before.
    pub(crate) fn undo_in_this_thread(&self) {
        if let Some(before) = self.before {
            let _ = before.thread_set_mask();
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        self.undo_in_this_thread();
    }
}

/// Sends a signal to a process.
pub(crate) fn send(pid: Tid, signal: Signal) {
    // A process that has ended already is no error here.
    let _ = kill(Pid::from_raw(pid), signal);
}

/// Stops this process, as the terminal's stop signal would have.
pub(crate) fn stop_self() {
    send(Pid::this().as_raw(), Signal::SIGSTOP);
}

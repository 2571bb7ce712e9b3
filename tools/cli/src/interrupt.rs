//! Signals: a command says that it was interrupted, and ends by the signal; a file that outgrows the limit
//! does not end it.

use nix::sys::signal::{
    SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, pthread_sigmask, raise, sigaction,
};
use nix::unistd::getpid;
use rustix::stdio::stderr;
use std::io;
use std::sync::atomic::{AtomicI32, Ordering};

/// A shell that outlives this process restores settings, limits and swap; recordings have no names yet.
const LINE: &[u8] = b"quire: interrupted; nothing is kept, and what was changed on this host is put back\n";

/// This process: its children until their exec have the handler, too.
static PROCESS: AtomicI32 = AtomicI32::new(0);

extern "C" fn interrupted(signal: i32) {
    // Only what is allowed in a signal handler: writes, and calls that set and raise a signal.
    if PROCESS.load(Ordering::Relaxed) == getpid().as_raw() {
        let _ = rustix::io::write(stderr(), LINE);
    }
    if let Ok(signal) = Signal::try_from(signal) {
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // SAFETY: the default action is no function.
        let _ = unsafe { sigaction(signal, &default) };
        // It comes when this returns: until then it is blocked.
        let _ = raise(signal);
    }
}

/// From now on the signals that end a command make it say so. A recording takes them for itself as long as it
/// runs.
pub(crate) fn say_so() {
    PROCESS.store(getpid().as_raw(), Ordering::Relaxed);
    let action = SigAction::new(SigHandler::Handler(interrupted), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler is async-signal-safe.
        let old = unsafe { sigaction(signal, &action) };
        if let Ok(old) = old
            && matches!(old.handler(), SigHandler::SigIgn)
        {
            // As under nohup.
            // SAFETY: what was set before.
            let _ = unsafe { sigaction(signal, &old) };
        }
    }
}

/// Starts a thread that handles no signals: it inherits the mask. While a program is recorded or measured
/// they are for the thread that waits for it, whose wait they interrupt.
pub(crate) fn with_signals_blocked<T>(start: impl FnOnce() -> T) -> io::Result<T> {
    let mut before = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&SigSet::all()), Some(&mut before))?;
    let started = start();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
    Ok(started)
}

extern "C" fn nothing(_: i32) {}

/// From now on a write beyond RLIMIT_FSIZE fails, as one to a full disk does, and does not kill this process.
/// What it executes has the default action again, which a signal that is ignored would not.
pub(crate) fn take_long_files_for_a_full_disk() {
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler does nothing.
    let old = unsafe { sigaction(Signal::SIGXFSZ, &action) };
    if let Ok(old) = old
        && matches!(old.handler(), SigHandler::SigIgn)
    {
        // So it is for what is executed, too.
        // SAFETY: what was set before.
        let _ = unsafe { sigaction(Signal::SIGXFSZ, &old) };
    }
}

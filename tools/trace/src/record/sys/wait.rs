//! Waiting for what happens to followed threads.

use super::{Tid, check};
use std::io;

/// What happened to a followed thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Happened {
    /// It ended with this code.
    Exited(u8),
    /// This signal ended it.
    Killed(u8),
    /// It stopped: this signal, and this ptrace event or 0.
    Stopped { signal: i32, event: i32 },
}

/// What one wait found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waited {
    /// This happened to this thread.
    Thread(Tid, Happened),
    /// A signal came to the recorder first.
    Interrupted,
    /// Nothing is left to wait for.
    NoneLeft,
}

/// Waits for any thread that the calling thread follows, or for this one.
pub(crate) fn wait(tid: Option<Tid>) -> io::Result<Waited> {
    // Without WNOHANG there is always something.
    wait_with(tid, 0).map(|waited| waited.unwrap_or(Waited::Interrupted))
}

/// What has happened to any thread that the calling thread follows, or to this one, without waiting: `None`
/// is nothing.
pub(crate) fn poll(tid: Option<Tid>) -> io::Result<Option<Waited>> {
    wait_with(tid, libc::WNOHANG)
}

fn wait_with(tid: Option<Tid>, more: i32) -> io::Result<Option<Waited>> {
    let mut status = 0;
    // Other threads of this process may follow programs of their own.
    let flags = libc::__WALL | libc::__WNOTHREAD | more;
    // SAFETY: `status` is a live local that waitpid fills.
    let result = check(i64::from(unsafe { libc::waitpid(tid.unwrap_or(-1), &raw mut status, flags) }));
    match result {
        Ok(0) => Ok(None),
        Ok(tid) => Ok(Some(Waited::Thread(tid as Tid, decode(status)))),
        Err(error) if error.raw_os_error() == Some(libc::EINTR) => Ok(Some(Waited::Interrupted)),
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(Some(Waited::NoneLeft)),
        Err(error) => Err(error),
    }
}

fn decode(status: i32) -> Happened {
    if libc::WIFEXITED(status) {
        Happened::Exited(libc::WEXITSTATUS(status) as u8)
    } else if libc::WIFSIGNALED(status) {
        Happened::Killed(libc::WTERMSIG(status) as u8)
    } else {
        Happened::Stopped { signal: libc::WSTOPSIG(status), event: status >> 16 }
    }
}

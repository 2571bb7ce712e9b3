//! Waiting for tracees.

use super::Tid;
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, WaitStatus, wait as wait_any, waitpid};
use std::io;

/// What happened to a tracee.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChildStatus {
    /// It ended with this code.
    Exited(u8),
    /// This signal ended it.
    Killed(u8),
    /// It stopped: this signal, and this ptrace event or 0.
    Stopped { signal: i32, event: i32 },
}

/// The result of one wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waited {
    /// This happened to this thread.
    Thread(Tid, ChildStatus),
    /// The recorder got a signal first.
    Interrupted,
    /// Nothing is left to wait for.
    NoneLeft,
}

/// Waits for any tracee of the calling thread, or for this one.
pub(crate) fn wait(tid: Option<Tid>) -> io::Result<Waited> {
    // Without NOHANG there is always something.
    wait_with(tid, WaitOptions::empty()).map(|waited| waited.unwrap_or(Waited::Interrupted))
}

/// What has happened to any tracee of the calling thread, or to this one, without waiting: `None` is
/// nothing.
pub(crate) fn poll(tid: Option<Tid>) -> io::Result<Option<Waited>> {
    wait_with(tid, WaitOptions::NOHANG)
}

fn wait_with(tid: Option<Tid>, more: WaitOptions) -> io::Result<Option<Waited>> {
    // Other threads of this process may follow programs of their own.
    let flags = WaitOptions::from_bits_retain((libc::__WALL | libc::__WNOTHREAD).cast_unsigned()) | more;
    // Programs may be in process groups of their own: `waitpid` without an id is about the caller's.
    let result = match tid.and_then(Pid::from_raw) {
        Some(pid) => waitpid(Some(pid), flags),
        None => wait_any(flags),
    };
    match result {
        Ok(waited) => Ok(waited.map(|(pid, status)| Waited::Thread(pid.as_raw_pid(), decode(status)))),
        Err(Errno::INTR) => Ok(Some(Waited::Interrupted)),
        Err(Errno::CHILD) => Ok(Some(Waited::NoneLeft)),
        Err(error) => Err(error.into()),
    }
}

fn decode(status: WaitStatus) -> ChildStatus {
    if let Some(code) = status.exit_status() {
        ChildStatus::Exited(code as u8)
    } else if let Some(signal) = status.terminating_signal() {
        ChildStatus::Killed(signal as u8)
    } else {
        let status = status.as_raw();
        ChildStatus::Stopped { signal: libc::WSTOPSIG(status), event: status >> 16 }
    }
}

//! Thin safe wrappers around the system calls that the recorder needs.
//!
//! Signals are numbers here: the enums of the crates that wrap these calls lack the real-time signals, and a
//! recorder must pass on every signal untouched.

pub(crate) mod descriptor;
pub(crate) mod ends;
pub(crate) mod memory;
pub(crate) mod mount;
pub(crate) mod named;
pub(crate) mod page_cache;
pub(crate) mod priority;
pub(crate) mod process;
pub(crate) mod ptrace;
pub(crate) mod signals;
pub(crate) mod time;
pub(crate) mod wait;

use rustix::pipe::PipeFlags;
use rustix::process::Pid;
use std::io;
use std::os::fd::OwnedFd;

/// The id of a thread or process, as Linux counts them.
pub(crate) type Tid = libc::pid_t;

/// Turns the -1 of a C call into the error that it stands for.
pub(crate) fn check(result: libc::c_long) -> io::Result<i64> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The thread or process with this id.
pub(crate) fn pid(tid: Tid) -> io::Result<Pid> {
    Pid::from_raw(tid).ok_or(io::Error::from_raw_os_error(libc::ESRCH))
}

/// A pipe: the end to read from and the end to write to. Both are close-on-exec.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?)
}

//! Thin safe wrappers around the system calls that the recorder needs.
//!
//! They are written on libc, not on a crate of wrappers: those name signals by an enum without the real-time
//! signals, and a recorder must pass on every signal untouched.

pub(crate) mod affinity;
pub(crate) mod descriptor;
pub(crate) mod memory;
pub(crate) mod process;
pub(crate) mod ptrace;
pub(crate) mod signals;
pub(crate) mod time;
pub(crate) mod wait;

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// The id of a thread or process, as Linux counts them.
pub(crate) type Tid = libc::pid_t;

/// Turns the -1 of a C call into the error that it stands for.
pub(crate) fn check(result: libc::c_long) -> io::Result<i64> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A pipe: what is read from, what is written to. A program that is executed has neither.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` holds the two descriptors.
    check(i64::from(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }))?;
    // SAFETY: the call succeeded, so both are open and have no other owner.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

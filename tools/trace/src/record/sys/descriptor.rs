//! Descriptors of a followed process, and mapping what they name without touching it.

use super::{Tid, check};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

/// The descriptor `fd` of a thread, as a descriptor of this process: the same open file.
pub(crate) fn take(tid: Tid, fd: i32) -> io::Result<OwnedFd> {
    // A thread need not share its descriptors with the rest of its process. Before Linux 6.9 there are only
    // descriptors of whole processes, for the first thread of each.
    let process = open_pidfd(tid, libc::PIDFD_THREAD).or_else(|_| open_pidfd(tid, 0))?;
    // SAFETY: the call takes two numbers and flags; the descriptor that it returns is new and belongs to
    // nothing else.
    unsafe {
        let taken = check(libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0))?;
        Ok(OwnedFd::from_raw_fd(taken as i32))
    }
}

fn open_pidfd(tid: Tid, flags: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes a number and flags; the descriptor that it returns is new and belongs to nothing
    // else.
    unsafe { Ok(OwnedFd::from_raw_fd(check(libc::syscall(libc::SYS_pidfd_open, tid, flags))? as i32)) }
}

/// A mapping that is never touched. It is unmapped at the end of its life.
#[derive(Debug)]
pub(crate) struct Untouched {
    start: *mut libc::c_void,
    len: usize,
}

impl Untouched {
    /// Maps `len` bytes of a file from `offset` on with these `PROT_*` and `MAP_*` bits.
    pub(crate) fn map(file: &OwnedFd, len: usize, prot: i32, flags: i32, offset: i64) -> io::Result<Self> {
        // SAFETY: the mapping is a new one at a place of the kernel's choice, since `flags` has no MAP_FIXED:
        // callers pass one of the two kinds, and MAP_NORESERVE.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, file.as_raw_fd(), offset) };
        if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self { start, len }) }
    }

    /// Whether `mprotect` refuses these `PROT_*` bits with EACCES.
    pub(crate) fn denies(&self, prot: i32) -> bool {
        // SAFETY: the range is this mapping, which nothing else knows of and nothing touches.
        let changed = unsafe { libc::mprotect(self.start, self.len, prot) };
        changed == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EACCES)
    }
}

impl Drop for Untouched {
    fn drop(&mut self) {
        // SAFETY: as in `denies`; the mapping ends with its only owner.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

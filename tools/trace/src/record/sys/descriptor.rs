//! Descriptors of a tracee, and mapping their files without touching them.

use super::{Tid, pid};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mprotect, munmap};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::ffi::c_void;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr;

/// The descriptor `fd` of a thread, as a descriptor of this process: the same open file.
pub(crate) fn take(tid: Tid, fd: i32) -> io::Result<OwnedFd> {
    const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::PIDFD_THREAD);
    let thread = pid(tid)?;
    // A thread need not share its descriptors with the rest of its process. Before Linux 6.9 there are only
    // descriptors of whole processes, for the first thread of each.
    let process = pidfd_open(thread, THREAD).or_else(|_| pidfd_open(thread, PidfdFlags::empty()))?;
    Ok(pidfd_getfd(process, fd, PidfdGetfdFlags::empty())?)
}

/// A mapping that is never touched. It is unmapped on drop.
#[derive(Debug)]
pub(crate) struct Untouched {
    start: *mut c_void,
    len: usize,
}

impl Untouched {
    /// Maps `len` bytes of a file from `offset` on.
    pub(crate) fn map(
        file: &OwnedFd,
        len: usize,
        prot: ProtFlags,
        flags: MapFlags,
        offset: u64,
    ) -> rustix::io::Result<Self> {
        // SAFETY: the mapping is a new one at a place of the kernel's choice, since `flags` has no FIXED:
        // callers pass one of the two kinds, and NORESERVE.
        let start = unsafe { mmap(ptr::null_mut(), len, prot, flags, file, offset) }?;
        Ok(Self { start, len })
    }

    /// Whether `mprotect` refuses this protection with EACCES.
    pub(crate) fn denies(&self, prot: ProtFlags) -> bool {
        let prot = MprotectFlags::from_bits_retain(prot.bits());
        // SAFETY: the range is this mapping, which nothing else knows of and nothing touches.
        unsafe { mprotect(self.start, self.len, prot) == Err(Errno::ACCESS) }
    }
}

impl Drop for Untouched {
    fn drop(&mut self) {
        // SAFETY: as in `denies`; the mapping ends with its only owner.
        let _ = unsafe { munmap(self.start, self.len) };
    }
}

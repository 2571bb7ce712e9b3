//! Descriptors of a tracee, and mapping their files without touching them.

use super::{Tid, check, pid};
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, UserfaultfdFlags, madvise, mmap, mprotect, munmap,
    userfaultfd,
};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
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

/// What `ioctl(UFFDIO_API)` takes, and its number.
#[repr(C)]
struct Api {
    version: u64,
    features: u64,
    ioctls: u64,
}
const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFD_API: u64 = 0xaa;

/// What `ioctl(UFFDIO_REGISTER)` takes, and its number.
#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;

const PAGE: usize = 4096;

/// A mapping that no instruction touches. It is unmapped on drop.
#[derive(Debug)]
pub(crate) struct Untouched {
    start: *mut c_void,
    len: usize,
}

impl Untouched {
    /// Maps `len` bytes of a file from `offset` on.
    pub(crate) fn map(
        file: impl AsFd,
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

    /// Brings the pages of this mapping in, as reads of them would. A page that the file has not is refused.
    /// Linux before 5.14 refuses all.
    pub(crate) fn bring_in(&self) -> rustix::io::Result<()> {
        // SAFETY: the range is this mapping, of which nothing else knows.
        unsafe { madvise(self.start, self.len, Advice::LinuxPopulateRead) }
    }

    /// For each of its first pages whether the page cache has it (`mincore`).
    pub(crate) fn resident(&self, pages: usize) -> io::Result<Vec<bool>> {
        let pages = pages.min(self.len.div_ceil(PAGE));
        let mut bytes = vec![0_u8; pages];
        // SAFETY: the kernel writes a byte for each page of the range, which is this mapping's.
        check(i64::from(unsafe { libc::mincore(self.start, pages * PAGE, bytes.as_mut_ptr()) }))?;
        Ok(bytes.into_iter().map(|byte| byte & 1 != 0).collect())
    }

    /// Whether the pages of this private mapping of a file are those of a file in memory, whatever its file
    /// system calls itself: of files, a userfaultfd takes only these. `None` where there is none to ask.
    pub(crate) fn is_in_memory(&self) -> Option<bool> {
        /// It is for faults of user mode only, which needs no privilege.
        const USER_MODE_ONLY: UserfaultfdFlags = UserfaultfdFlags::from_bits_retain(1);
        let open = |flags| {
            // SAFETY: no fault is ever waited for: the one range that is registered is never touched, and is
            // registered no longer when the descriptor is closed below.
            unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC | flags) }
        };
        // Linux before 5.11 does not know the flag.
        let faults = open(USER_MODE_ONLY).or_else(|_| open(UserfaultfdFlags::empty())).ok()?;
        let mut api = Api { version: UFFD_API, features: 0, ioctls: 0 };
        // SAFETY: it reads and writes `api`, which has its layout.
        check(i64::from(unsafe { libc::ioctl(faults.as_raw_fd(), UFFDIO_API, &raw mut api) })).ok()?;
        let (start, len) = (self.start.addr() as u64, self.len as u64);
        let mut range = Register { start, len, mode: UFFDIO_REGISTER_MODE_MISSING, ioctls: 0 };
        // SAFETY: it reads and writes `range`, which has its layout. The memory is this mapping's, which is
        // never touched.
        let done = unsafe { libc::ioctl(faults.as_raw_fd(), UFFDIO_REGISTER, &raw mut range) };
        Some(done == 0)
    }
}

impl Drop for Untouched {
    fn drop(&mut self) {
        // SAFETY: as in `denies`; the mapping ends with its only owner.
        let _ = unsafe { munmap(self.start, self.len) };
    }
}

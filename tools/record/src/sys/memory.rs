//! Reading a tracee's memory, and paging it out.
//!
//! Reading must not change what is read. `process_vm_readv` pins the pages, and to pin a page that processes
//! share after fork Linux gives the process that is read a copy of its own. Neither reading `/proc/PID/mem`
//! nor PTRACE_PEEKDATA does that.

use super::{Tid, check, pid};
use nix::sys::ptrace;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, pidfd_open};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// The memory of a process.
#[derive(Debug)]
pub(crate) struct Memory(File);

impl Memory {
    /// Opens it; `None` if the process is gone.
    pub(crate) fn open(tid: Tid) -> Option<Self> {
        File::open(format!("/proc/{tid}/mem")).ok().map(Self)
    }

    /// Reads bytes; fewer than asked for if not all of them are mapped. Stops no thread.
    pub(crate) fn read(&self, addr: u64, into: &mut [u8]) -> usize {
        self.0.read_at(into, addr).unwrap_or(0)
    }
}

/// Reads bytes once; see [`Memory::read`].
pub(crate) fn read(tid: Tid, addr: u64, into: &mut [u8]) -> usize {
    Memory::open(tid).map_or(0, |memory| memory.read(addr, into))
}

/// Whether this process may read the memory of a thread, of which this byte is mapped. Async-signal-safe. The
/// byte is not to be one of anonymous memory.
pub(crate) fn may_read(tid: Tid, addr: u64) -> bool {
    let remote = RemoteIoVec { base: addr as usize, len: 1 };
    process_vm_readv(Pid::from_raw(tid), &mut [IoSliceMut::new(&mut [0])], &[remote]) == Ok(1)
}

/// Reads a 64-bit word of a thread that is stopped for this one, with one system call.
pub(crate) fn read_u64(tid: Tid, addr: u64) -> Option<u64> {
    let addr = std::ptr::without_provenance_mut(addr as usize);
    ptrace::read(Pid::from_raw(tid), addr).ok().map(i64::cast_unsigned)
}

/// Reads `N` 64-bit words of such a thread.
pub(crate) fn read_words<const N: usize>(tid: Tid, addr: u64) -> Option<[u64; N]> {
    let mut words = [0; N];
    for (place, word) in words.iter_mut().enumerate() {
        *word = read_u64(tid, addr.wrapping_add(8 * place as u64))?;
    }
    Some(words)
}

/// Reads a string that ends with a zero byte, at most `limit` bytes of it.
pub(crate) fn read_string(tid: Tid, addr: u64, limit: usize) -> Option<Box<[u8]>> {
    let mut bytes = vec![0; limit];
    let read = read(tid, addr, &mut bytes);
    let end = bytes[..read].iter().position(|byte| *byte == 0)?;
    bytes.truncate(end);
    Some(bytes.into())
}

/// Whether this process may page out another one's memory.
pub(crate) fn may_page_out(process: Tid) -> bool {
    let pidfd = pid(process).and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::empty())?));
    // No range is given: the kernel checks the rights only.
    pidfd.is_ok_and(|pidfd| advise_page_out(&pidfd, &[]).is_ok())
}

/// Pages ranges of a process (start and bytes) out, used or not. Pages that cannot be paged out are left:
/// unmapped by now, locked, or shared with another process.
pub(crate) fn page_out(process: Tid, ranges: impl IntoIterator<Item = (u64, u64)>) {
    let Ok(pidfd) = pid(process).and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::empty())?)) else { return };
    let ranges: Vec<libc::iovec> = ranges
        .into_iter()
        .map(|(start, bytes)| libc::iovec {
            iov_base: std::ptr::without_provenance_mut(start as usize),
            iov_len: bytes as usize,
        })
        .collect();
    let mut rest = &ranges[..];
    while !rest.is_empty() {
        let now = &rest[..rest.len().min(libc::UIO_MAXIOV as usize)];
        // The call ends at the first range that it cannot advise.
        let mut bytes = advise_page_out(&pidfd, now).unwrap_or(0);
        let done = now.iter().take_while(|range| {
            let whole = bytes >= range.iov_len;
            bytes = bytes.saturating_sub(range.iov_len);
            whole
        });
        let done = done.count();
        rest = &rest[(done + usize::from(done < now.len())).min(rest.len())..];
    }
}

/// Returns how many bytes were advised.
fn advise_page_out(pidfd: &OwnedFd, ranges: &[libc::iovec]) -> io::Result<usize> {
    let (vectors, count) = (ranges.as_ptr(), ranges.len());
    // SAFETY: there are so many iovecs, and the kernel reads nothing else of this process. The other one's
    // memory keeps its contents.
    let advised = check(unsafe {
        let (number, advice) = (libc::SYS_process_madvise, libc::MADV_PAGEOUT);
        libc::syscall(number, pidfd.as_raw_fd(), vectors, count, advice, 0_u32)
    })?;
    Ok(usize::try_from(advised).unwrap_or(0))
}

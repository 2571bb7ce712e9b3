//! What of a file is in the page cache.

use super::check;
use super::descriptor::Untouched;
use rustix::fs::{Advice, fadvise};
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

const PAGE: u64 = 4096;

/// `cachestat`, which libc does not have yet (Linux 6.5).
const SYS_CACHESTAT: libc::c_long = 451;

/// The range that `cachestat` takes: 0 bytes is to the end of the file.
#[repr(C)]
struct Range {
    start: u64,
    bytes: u64,
}

/// What it gives.
#[repr(C)]
#[derive(Default)]
struct Stat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Pages of a range of a file that are in the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) cached: u64,
    pub(crate) dirty: u64,
}

/// Counts `pages` pages from the one with index `first` on. Since Linux 6.14 refused for files that are not
/// the caller's and that it may not write.
pub(crate) fn count(file: &File, first: u64, pages: u64) -> io::Result<Counted> {
    let range = Range { start: first * PAGE, bytes: pages * PAGE };
    let mut stat = Stat::default();
    // SAFETY: the kernel reads `range` and writes `stat`, which have its layouts.
    let done =
        unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut stat, 0_u32) };
    check(done)?;
    Ok(Counted { cached: stat.cached, dirty: stat.dirty })
}

/// For each of `pages` pages from the one with index `first` on, whether it is there. Linux says of all that
/// they are, if the caller may not know.
pub(crate) fn each(file: &File, first: u64, pages: usize) -> io::Result<Vec<bool>> {
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    let bytes = pages * PAGE as usize;
    let mapping = Untouched::map(file, bytes, ProtFlags::empty(), flags, first * PAGE)?;
    mapping.resident(pages)
}

/// Takes the pages of a file that are clean and not mapped out of the page cache.
pub(crate) fn evict(file: &File) -> io::Result<()> {
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

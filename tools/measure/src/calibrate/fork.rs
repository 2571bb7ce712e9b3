//! What `fork` takes for each page, and writes to shared pages after it.
//!
//! The child makes system calls only, since this process has threads: it waits for the end of a pipe, and
//! ends.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::ptr;

use rustix::pipe::{PipeFlags, pipe_with};
use serde::{Deserialize, Serialize};

use super::region::Region;
use super::{Cost, HUGE, SMALL, mapped, rounds};
use crate::counters::HostCounters;
use crate::error::MeasureError;

/// Memory that is copied in a round, in small pages and in huge ones: some ten times what this process has.
const COPIED: usize = 32 << 20;
const COPIED_HUGE: usize = 64 << 20;
/// Memory whose entries are split in a round, and which is zeroed anew before each.
const SPLIT: usize = 16 << 20;

/// What a fork costs, in nanoseconds of the processor time of the thread that forks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForkCost {
    /// A fork of a process as small as this one.
    pub base: Cost,
    /// For each page of 4 KiB that is mapped, with its part of the page table.
    pub page: Cost,
    /// For each 2 MiB that one entry maps, if this host has such pages.
    pub huge: Option<Cost>,
    /// A write that copies a page which processes share.
    pub copy: Cost,
    /// What such a write takes more where one entry maps 2 MiB, which it splits, if this host has such pages.
    #[serde(default)]
    pub split: Option<Cost>,
}

/// A child that waits; it ends when this is dropped.
struct Child {
    pid: libc::pid_t,
    go: Option<OwnedFd>,
}

impl Child {
    fn start() -> io::Result<Self> {
        let (wait, go) = pipe_with(PipeFlags::CLOEXEC)?;
        let (wait_end, go_end) = (wait.as_raw_fd(), go.as_raw_fd());
        // SAFETY: the child makes system calls only, which is safe after a fork of a process with threads,
        // and ends without returning.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                let mut byte = 0_u8;
                // SAFETY: descriptors of this copy of the process, which uses them no more, and a byte of
                // this stack.
                unsafe {
                    libc::close(go_end);
                    libc::read(wait_end, (&raw mut byte).cast(), 1);
                    libc::_exit(0)
                }
            }
            pid => Ok(Self { pid, go: Some(go) }),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.go = None;
        // SAFETY: a child of this process that nothing else waits for.
        unsafe { libc::waitpid(self.pid, ptr::null_mut(), 0) };
    }
}

/// Measures it.
pub(super) fn measure() -> Result<ForkCost, MeasureError> {
    let base = forks(None)?;
    let small = mapped(Region::new(COPIED, HUGE, false))?;
    mapped(small.advise(libc::MADV_NOHUGEPAGE))?;
    let page = each(forks(Some(&small))?, base, COPIED / SMALL);
    let copy = rounds(COPIED / SMALL, |timed| {
        small.touch(SMALL);
        let _child = Child::start()?;
        timed(&mut || small.touch(SMALL));
        Ok(())
    })?;
    drop(small);
    let large = mapped(Region::new(COPIED_HUGE, HUGE, false))?;
    mapped(large.advise(libc::MADV_HUGEPAGE))?;
    let before = HostCounters::now();
    large.touch(HUGE);
    let blocks = COPIED_HUGE / HUGE;
    let has_huge = HostCounters::now().since(&before).huge_faults >= blocks as u64;
    let huge = if has_huge { Some(each(forks(Some(&large))?, base, blocks)) } else { None };
    drop(large);
    let split = if has_huge { Some(each(splits()?, copy, 1)) } else { None };
    Ok(ForkCost { base, page, huge, copy, split })
}

/// Writes after a fork, each of which splits an entry for 2 MiB and copies a page.
fn splits() -> Result<Cost, MeasureError> {
    let region = mapped(Region::new(SPLIT, HUGE, false))?;
    mapped(region.advise(libc::MADV_HUGEPAGE))?;
    rounds(SPLIT / HUGE, |timed| {
        // Emptied, it gets whole blocks again.
        region.empty()?;
        region.touch(HUGE);
        let _child = Child::start()?;
        timed(&mut || region.touch(HUGE));
        Ok(())
    })
}

/// Forks of this process, with all of `region` touched.
fn forks(region: Option<&Region>) -> Result<Cost, MeasureError> {
    rounds(1, |timed| {
        if let Some(region) = region {
            region.touch(SMALL);
        }
        let mut child = None;
        timed(&mut || child = Some(Child::start()));
        child.transpose().map(drop)
    })
}

/// What `all` takes more than `base`, for each of `count`.
fn each(all: Cost, base: Cost, count: usize) -> Cost {
    let of = |all: f64| (all - base.median).max(0.0) / count as f64;
    Cost { median: of(all.median), min: of(all.min), max: of(all.max) }
}

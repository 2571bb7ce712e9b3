//! Whether Linux counts the pages of a file as shared memory, found by mapping one of them: no file system
//! says so that others lie under, and a userfaultfd may be forbidden.

use super::Keyed;
use super::system;
use crate::sys::descriptor::Untouched;
use rustix::mm::{MapFlags, ProtFlags};
use std::fs;
use std::os::fd::AsFd;

const PAGE: u64 = 4096;
/// The page is mapped so often at most, in so many rounds: counters of two CPUs may lag.
const MOST: u64 = 4096;
const ROUNDS: u64 = 4;

/// Pages that this process has mapped: of files in memory, and of others.
#[derive(Debug, Clone, Copy)]
struct Mapped {
    memory: u64,
    other: u64,
}

impl Mapped {
    fn now() -> Option<Self> {
        let status = Keyed(fs::read_to_string("/proc/self/status").ok()?);
        let pages = |key| Some(status.number(key)? * 1024 / PAGE);
        Some(Self { memory: pages("RssShmem")?, other: pages("RssFile")? })
    }
}

/// By so many pages Linux may let a counter lag, on one CPU (6.2 to 6.15) or in one thread (before).
fn batch(cpus: u64) -> u64 {
    (2 * cpus).max(32)
}

fn first_page(file: impl AsFd) -> Option<Untouched> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let page = Untouched::map(file, PAGE as usize, ProtFlags::READ, flags, 0).ok()?;
    page.bring_in().ok()?;
    Some(page)
}

/// Whether the pages of this file are counted as those of a file in memory (`RssShmem`). Its first page is
/// mapped until one of the counters shows it, and brought in if it was not there. `None` where it cannot be
/// brought in, and before Linux 5.14.
pub(crate) fn is_in_memory(file: impl AsFd) -> Option<bool> {
    let batch = batch(system::cpus().len() as u64).min(MOST / ROUNDS);
    let before = Mapped::now()?;
    let mut pages = Vec::new();
    for _ in 0..ROUNDS {
        for _ in 0..batch {
            pages.push(first_page(&file)?);
        }
        let after = Mapped::now()?;
        // Other threads of this process may map some, too.
        let grew = |before: u64, after: u64| after.saturating_sub(before) >= batch;
        match (grew(before.memory, after.memory), grew(before.other, after.other)) {
            (true, false) => return Some(true),
            (false, true) => return Some(false),
            (true, true) => return None,
            (false, false) => {}
        }
    }
    None
}

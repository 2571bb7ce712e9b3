//! The texts of a process about itself, and the query for its mappings.

use super::board::Board;
use super::raw::{open_as, syscall};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// The open texts of a process about itself.
pub(super) struct Files {
    pub(super) maps: u64,
    pub(super) smaps: u64,
    pub(super) pagemap: u64,
    pub(super) status: u64,
}

impl Files {
    /// Opens them for the calling process. One that was forked has to do it anew.
    pub(super) fn open() -> Self {
        let open = |path, descriptor: u32| {
            open_as(path, libc::O_RDONLY, descriptor);
            u64::from(descriptor)
        };
        Self {
            maps: open(c"/proc/self/maps", 230),
            smaps: open(c"/proc/self/smaps", 231),
            pagemap: open(c"/proc/self/pagemap", 232),
            status: open(c"/proc/self/status", 233),
        }
    }
}

/// What the texts can be asked for.
pub(super) mod query {
    use super::{AtomicU64, syscall};

    /// `PROCMAP_QUERY`, and where its results are among the words of its argument.
    pub(crate) const CALL: u64 = 0xc068_6611;
    pub(crate) const SIZE: u64 = 104;
    pub(crate) const COVERING_OR_NEXT: u64 = 0x10;
    pub(crate) const START: usize = 3;
    pub(crate) const END: usize = 4;
    pub(crate) const FLAGS: usize = 5;
    pub(crate) const OFFSET: usize = 7;
    pub(crate) const INODE: usize = 8;
    pub(crate) const DEVICE: usize = 9;
    /// `PAGEMAP_SCAN`.
    pub(crate) const SCAN: u64 = 0xc060_6610;

    /// Makes one of the two calls, with `words` as the kernel's `struct procmap_query` without space for
    /// names, or `struct pm_scan_arg` whose vector is in a slot.
    pub(in super::super) fn ask(file: u64, request: u64, words: &[AtomicU64]) -> i64 {
        // SAFETY: the kernel writes to the words, and to the slot no more than it has.
        unsafe { syscall(libc::SYS_ioctl, [file, request, words.as_ptr().addr() as u64, 0, 0, 0]) }
    }
}

/// Asks for the mapping at or behind `addr`. Its words are in the scratch then.
pub(super) fn next_vma(board: &Board, maps: u64, addr: u64) -> bool {
    let words = &board.scratch[32..45];
    let mut at = 0;
    while at < words.len() {
        words[at].store(0, Relaxed);
        at += 1;
    }
    words[0].store(query::SIZE, Relaxed);
    words[1].store(query::COVERING_OR_NEXT, Relaxed);
    words[2].store(addr, Relaxed);
    query::ask(maps, query::CALL, words) >= 0
}

//! What can stand in the way of the template.

use super::board::Board;
use super::raw::{exit, futex_wake};
use core::sync::atomic::Ordering::{Relaxed, Release};

/// Where the preparation can fail.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(super) enum Preparation {
    Stack = 1,
    Board,
    File,
    Query,
    TooMany,
    Pidfd,
    FileSize,
    Disk,
}

impl Preparation {
    /// What stands in the way, from the number on the board; `None` for 0.
    pub(super) fn what_failed(number: u32) -> Option<&'static str> {
        [
            (Self::Stack, "no room for a stack at 32 TiB"),
            (Self::Board, "no room for the shared memory at 96 TiB"),
            (Self::File, "no memory file"),
            (Self::Query, "PROCMAP_QUERY is not known (Linux 6.11 or later is needed)"),
            (Self::TooMany, "too many mappings cannot be given up"),
            (Self::Pidfd, "no pidfd of the process that compares"),
            (Self::FileSize, "File too large: `ulimit -f` does not allow the 4 MiB of its files"),
            (Self::Disk, "no file can be made in the folder for temporary files (TMPDIR)"),
        ]
        .into_iter()
        .find_map(|(step, what)| (step as u32 == number).then_some(what))
    }
}

pub(super) fn fail(board: &Board, step: Preparation, error: i64) -> ! {
    board.facts.error.store(error, Relaxed);
    board.facts.failed_step.store(step as u32, Relaxed);
    board.over.store(u32::MAX, Release);
    futex_wake(&board.over);
    exit();
}

//! Rounds of work on an allocator of blocks. The same code runs Quire here and its peers in `bench/`: static
//! dispatch, memory that is backed before the clock starts, nanoseconds as floats.

mod bulk;
mod pairs;
mod remote;

use crate::crew::StartLine;
use crate::error::LabError;
use quire_arch::{Order, Pfn};
use std::time::Instant;

/// An allocator of blocks of 2^order frames, as the harness sees it.
pub trait BlockAllocator: Sync {
    /// What a thread holds while it works as one core: a pin, a per-CPU part, or nothing.
    type Core;

    /// Calls `work` with the calling thread as core `number`.
    fn on_core<R>(&self, number: usize, work: impl FnOnce(&Self::Core) -> R) -> R;

    /// A block, or `None` where none is free.
    fn get(&self, core: &Self::Core, order: Order) -> Option<Pfn>;

    /// Frees a block that [`get`](Self::get) returned on any core, and returns whether that succeeded.
    fn put(&self, core: &Self::Core, pfn: Pfn, order: Order) -> bool;
}

/// A way to get and put blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockCase {
    /// Each block is freed right after it was allocated.
    Pairs,
    /// All blocks are allocated, then freed, the last one first.
    Bulk,
    /// All blocks are allocated, shuffled, and freed.
    Shuffled,
    /// One thread allocates and another one frees, through a ring of batches.
    Remote,
}

impl BlockCase {
    /// Every case.
    pub const ALL: [Self; 4] = [Self::Pairs, Self::Bulk, Self::Shuffled, Self::Remote];

    /// Name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pairs => "pair",
            Self::Bulk => "bulk",
            Self::Shuffled => "shuffled",
            Self::Remote => "remote",
        }
    }

    /// What a round of this case times, in the order of the figures of [`round`].
    pub const fn parts(self) -> &'static [&'static str] {
        match self {
            Self::Pairs => &["get+put"],
            Self::Bulk | Self::Shuffled => &["get", "put"],
            Self::Remote => &["get to put"],
        }
    }

    /// Whether the case can be run by so many threads.
    pub const fn runs_with(self, threads: usize) -> bool {
        match self {
            Self::Remote => threads > 0 && threads.is_multiple_of(2),
            _ => threads > 0,
        }
    }
}

/// How much a round does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// Order of the blocks.
    pub order: Order,
    /// Threads, on cores from 0 on.
    pub threads: usize,
    /// Blocks that each thread gets.
    pub count: usize,
    /// Decides how blocks are shuffled.
    pub seed: u64,
}

impl Load {
    /// Most blocks that a thread gets in a round.
    pub const MOST: usize = 10_000;

    /// A load of as many blocks as lie in a twentieth of `frames` frames for each thread, and at most
    /// [`MOST`](Self::MOST): the lists of two CPUs together may hold an eighth.
    pub fn fitting(frames: u64, order: Order, threads: usize, seed: u64) -> Self {
        Self::of_part(20, frames, order, threads, seed)
    }

    /// The same for a quarter: more than per-CPU lists may hold, at orders for which the bound on the number
    /// of blocks leaves so much.
    pub fn exceeding(frames: u64, order: Order, threads: usize, seed: u64) -> Self {
        Self::of_part(4, frames, order, threads, seed)
    }

    fn of_part(part: u64, frames: u64, order: Order, threads: usize, seed: u64) -> Self {
        let blocks = frames / part / order.pages();
        Self { order, threads, count: blocks.clamp(1, Self::MOST as u64) as usize, seed }
    }

    /// Blocks that the round gets in all.
    pub fn blocks(&self, case: BlockCase) -> u64 {
        let getters = if case == BlockCase::Remote { self.threads / 2 } else { self.threads };
        (getters * self.count) as u64
    }
}

/// Runs one round and returns nanoseconds for each operation, a figure for each of the case's
/// [`parts`](BlockCase::parts), as the mean over the threads.
///
/// # Errors
///
/// The allocator had no block left, or did not free one. All blocks that it frees were freed by then.
pub fn round<A: BlockAllocator>(allocator: &A, case: BlockCase, load: Load) -> Result<Vec<f64>, LabError> {
    match case {
        BlockCase::Pairs => pairs::round(allocator, load),
        BlockCase::Bulk => bulk::round(allocator, load, false),
        BlockCase::Shuffled => bulk::round(allocator, load, true),
        BlockCase::Remote => remote::round(allocator, load),
    }
}

/// Nanoseconds for each of `count` operations that `work` makes once all threads wait at the barrier for the
/// `times`-th time.
#[inline]
fn timed(line: &StartLine, times: usize, count: usize, work: impl FnOnce()) -> f64 {
    line.wait(times);
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / count.max(1) as f64
}

/// The mean of what the threads measured, part by part, or the first failure.
fn mean<const PARTS: usize>(threads: Vec<Result<[f64; PARTS], LabError>>) -> Result<Vec<f64>, LabError> {
    let count = threads.len() as f64;
    let mut sum = vec![0.0; PARTS];
    for thread in threads {
        for (sum, figure) in sum.iter_mut().zip(thread?) {
            *sum += figure / count;
        }
    }
    Ok(sum)
}

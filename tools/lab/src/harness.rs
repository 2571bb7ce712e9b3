//! Rounds of work on an allocator of blocks. The same code runs Quire here and its peers in `bench/`: static
//! dispatch, memory that is backed before the clock starts, nanoseconds as floats.

use crate::crew::{Ring, StartLine, on_threads};
use crate::error::{Done, LabError};
use fastrand::Rng;
use quire_arch::{Order, Pfn};
use std::hint::black_box;
use std::time::Instant;

/// Blocks that change hands at a time.
const BATCH: usize = 16;
/// Batches in the ring. Together with the blocks of both threads this bounds the memory in transit.
const BATCHES: usize = 8;

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

    const fn row(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Pairs => ("pair", &["get+put"]),
            Self::Bulk => ("bulk", &["get", "put"]),
            Self::Shuffled => ("shuffled", &["get", "put"]),
            Self::Remote => ("remote", &["get to put"]),
        }
    }

    /// Name in tables.
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// What a round of this case times, in the order of the figures of [`round`].
    pub const fn parts(self) -> &'static [&'static str] {
        self.row().1
    }

    /// Whether the case can be run by so many threads.
    pub fn runs_with(self, threads: usize) -> bool {
        threads > 0 && (self != Self::Remote || threads.is_multiple_of(2))
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
    /// The lists of two CPUs together may hold an eighth of memory, so a load of a twentieth fits.
    pub const FITTING: u64 = 20;
    /// A quarter is more than the lists may hold, at orders for which the bound on the number of blocks
    /// leaves so much.
    pub const EXCEEDING: u64 = 4;

    /// A load of as many blocks for each thread as lie in one of `parts` parts of `frames` frames, and at
    /// most [`MOST`](Self::MOST).
    pub fn of_part(parts: u64, frames: u64, order: Order, threads: usize, seed: u64) -> Self {
        let blocks = frames / parts / order.pages();
        Self { order, threads, count: blocks.clamp(1, Self::MOST as u64) as usize, seed }
    }

    /// Blocks that the round gets in all.
    pub fn blocks(&self, case: BlockCase) -> u64 {
        let getters = if case == BlockCase::Remote { self.threads / 2 } else { self.threads };
        (getters * self.count) as u64
    }
}

/// Some blocks, as many as the number says.
type Batch = ([Pfn; BATCH], usize);

/// What a thread does in a round.
struct Turn<'r, A> {
    allocator: &'r A,
    load: Load,
    line: &'r StartLine,
    /// Between this thread and another one.
    ring: &'r Ring<Batch>,
}

/// Runs one round and returns nanoseconds for each operation, a figure for each of the case's
/// [`parts`](BlockCase::parts), as the mean over the threads.
///
/// # Errors
///
/// The case cannot be [run](BlockCase::runs_with) by so many threads; the allocator had no block left, or did
/// not free one. All blocks that it frees were freed by then.
pub fn round<A: BlockAllocator>(allocator: &A, case: BlockCase, load: Load) -> Result<Vec<f64>, LabError> {
    if !case.runs_with(load.threads) {
        return Err(LabError::Threads(case.name(), load.threads));
    }
    let rings: Vec<_> = (0..load.threads.div_ceil(2)).map(|_| Ring::new(BATCHES)).collect();
    let threads = on_threads(load.threads, |number, line| {
        let turn = Turn { allocator, load, line, ring: &rings[number / 2] };
        // The same vector in each round, and touched: growing it is not the allocator's time.
        let blocks = vec![Pfn(0); if case.parts().len() > 1 { load.count } else { 0 }];
        let shuffle = (case == BlockCase::Shuffled).then(|| Rng::with_seed(load.seed ^ number as u64));
        allocator.on_core(number, |core| match case {
            BlockCase::Pairs => turn.timed(|| turn.pairs(core)).map(|time| vec![time]),
            BlockCase::Bulk | BlockCase::Shuffled => turn.bulk(core, blocks, shuffle),
            BlockCase::Remote if number % 2 == 0 => turn.timed(|| turn.get(core)).map(|time| vec![time]),
            BlockCase::Remote => turn.timed(|| turn.put(core)).map(|time| vec![time]),
        })
    });
    let mut sum = vec![0.0; case.parts().len()];
    for thread in threads {
        for (sum, figure) in sum.iter_mut().zip(thread?) {
            *sum += figure / load.threads as f64;
        }
    }
    Ok(sum)
}

impl<A: BlockAllocator> Turn<'_, A> {
    /// Nanoseconds for each of the thread's operations that `work` makes once all threads have come to the
    /// line.
    #[inline]
    fn timed(&self, work: impl FnOnce() -> Done) -> Done<f64> {
        self.line.wait();
        let start = Instant::now();
        work().map(|()| start.elapsed().as_nanos() as f64 / self.load.count.max(1) as f64)
    }

    fn pairs(&self, core: &A::Core) -> Done {
        let Load { order, count, .. } = self.load;
        for _ in 0..count {
            let Some(pfn) = black_box(self.allocator.get(core, order)) else {
                return Err(LabError::NoBlock(order));
            };
            if !self.allocator.put(core, pfn, order) {
                return Err(LabError::NotTaken(pfn, order));
            }
        }
        Ok(())
    }

    fn bulk(&self, core: &A::Core, mut blocks: Vec<Pfn>, shuffle: Option<Rng>) -> Done<Vec<f64>> {
        let Load { order, count, .. } = self.load;
        let mut got = 0;
        let get = self.timed(|| {
            for block in &mut blocks {
                let Some(pfn) = self.allocator.get(core, order) else { break };
                *block = pfn;
                got += 1;
            }
            Ok(())
        })?;
        blocks.truncate(got);
        if let Some(mut random) = shuffle {
            random.shuffle(&mut blocks);
        }
        let put = self.timed(|| {
            let mut result = if got < count { Err(LabError::NoBlock(order)) } else { Ok(()) };
            for &pfn in blocks.iter().rev() {
                if !self.allocator.put(core, pfn, order) {
                    result = Err(LabError::NotTaken(pfn, order));
                }
            }
            result
        })?;
        Ok(vec![get, put])
    }

    fn get(&self, core: &A::Core) -> Done {
        let Load { order, count, .. } = self.load;
        let (mut left, mut result) = (count, Ok(()));
        while left > 0 && result.is_ok() {
            let mut batch = ([Pfn(0); BATCH], 0);
            for block in batch.0.iter_mut().take(left) {
                let Some(pfn) = self.allocator.get(core, order) else {
                    result = Err(LabError::NoBlock(order));
                    break;
                };
                *block = pfn;
                batch.1 += 1;
            }
            left -= batch.1;
            self.ring.send(batch);
        }
        self.ring.finish();
        result
    }

    fn put(&self, core: &A::Core) -> Done {
        let mut result = Ok(());
        // To the end in any case: the other thread waits for a free place in the ring.
        while let Some((blocks, count)) = self.ring.receive() {
            for &pfn in &blocks[..count] {
                if !self.allocator.put(core, pfn, self.load.order) {
                    result = Err(LabError::NotTaken(pfn, self.load.order));
                }
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many blocks as are asked for.
    struct Endless;

    impl BlockAllocator for Endless {
        type Core = ();

        fn on_core<R>(&self, _: usize, work: impl FnOnce(&()) -> R) -> R {
            work(&())
        }

        fn get(&self, (): &(), _: Order) -> Option<Pfn> {
            Some(Pfn(1))
        }

        fn put(&self, (): &(), _: Pfn, _: Order) -> bool {
            true
        }
    }

    /// Hazard: a thread fills a ring from which none takes, and waits for ever.
    #[test]
    fn a_thread_without_a_partner_is_refused() {
        for (case, threads) in [(BlockCase::Remote, 1), (BlockCase::Remote, 3), (BlockCase::Pairs, 0)] {
            let load = Load { order: Order::ZERO, threads, count: 1000, seed: 1 };
            let refused = round(&Endless, case, load);
            assert!(matches!(refused, Err(LabError::Threads(..))), "{case:?} {threads}: {refused:?}");
        }
    }
}

//! All blocks are allocated, then all are freed: the last one first, or in random order.

use super::{BlockAllocator, Load, mean, timed};
use crate::crew::on_threads;
use crate::error::LabError;
use fastrand::Rng;
use quire_arch::Pfn;

pub(super) fn round<A: BlockAllocator>(
    allocator: &A,
    load: Load,
    shuffled: bool,
) -> Result<Vec<f64>, LabError> {
    let Load { order, threads, count, seed } = load;
    mean(on_threads(threads, |number, line| {
        // The same vector in each round, and touched: growing it is not the allocator's time.
        let mut blocks = vec![Pfn(0); count];
        allocator.on_core(number, |core| {
            let mut got = 0;
            let get = timed(line, 1, count, || {
                for block in &mut blocks {
                    let Some(pfn) = allocator.get(core, order) else { break };
                    *block = pfn;
                    got += 1;
                }
            });
            blocks.truncate(got);
            if shuffled {
                Rng::with_seed(seed ^ number as u64).shuffle(&mut blocks);
            }
            let mut not_taken = None;
            let put = timed(line, 2, count, || {
                for &pfn in blocks.iter().rev() {
                    if !allocator.put(core, pfn, order) {
                        not_taken = Some(pfn);
                    }
                }
            });
            match not_taken {
                Some(pfn) => Err(LabError::NotTaken(pfn, order)),
                None if got < count => Err(LabError::NoBlock(order)),
                None => Ok([get, put]),
            }
        })
    }))
}

//! Each block is freed right after it was allocated.

use super::{BlockAllocator, Load, mean, timed};
use crate::crew::on_threads;
use crate::error::LabError;
use std::hint::black_box;

pub(super) fn round<A: BlockAllocator>(allocator: &A, load: Load) -> Result<Vec<f64>, LabError> {
    let Load { order, threads, count, .. } = load;
    mean(on_threads(threads, |number, line| {
        allocator.on_core(number, |core| {
            let mut failure = None;
            let pair = timed(line, 1, count, || {
                for _ in 0..count {
                    let Some(pfn) = black_box(allocator.get(core, order)) else {
                        failure = Some(LabError::NoBlock(order));
                        break;
                    };
                    if !allocator.put(core, pfn, order) {
                        failure = Some(LabError::NotTaken(pfn, order));
                        break;
                    }
                }
            });
            failure.map_or(Ok([pair]), Err)
        })
    }))
}

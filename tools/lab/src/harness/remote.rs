//! Threads in pairs: one allocates, the other one frees, through a ring of batches.

use super::{BlockAllocator, Load, mean};
use crate::crew::{on_threads, pause};
use crate::error::LabError;
use core::sync::atomic::{AtomicBool, Ordering};
use crossbeam_queue::ArrayQueue;
use quire_arch::Pfn;
use std::time::Instant;

/// Blocks that change hands at a time.
const BATCH: usize = 16;
/// Batches in the ring. Together with the blocks of both threads this bounds the memory in transit.
const BATCHES: usize = 8;

/// Some blocks, as many as `count` says.
#[derive(Clone, Copy)]
struct Batch {
    blocks: [Pfn; BATCH],
    count: usize,
}

struct Ring {
    batches: ArrayQueue<Batch>,
    /// No batch follows. Set after the last one was put into the ring.
    done: AtomicBool,
}

impl Ring {
    fn send(&self, mut batch: Batch) {
        let mut attempt = 0;
        while let Err(back) = self.batches.push(batch) {
            batch = back;
            pause(attempt);
            attempt += 1;
        }
    }

    /// The next batch, or `None` after the last.
    fn receive(&self) -> Option<Batch> {
        let mut attempt = 0;
        loop {
            // Read before the ring is: what was sent before `done` was set is found then. Pairs with
            // `finish`.
            let done = self.done.load(Ordering::Acquire);
            if let Some(batch) = self.batches.pop() {
                return Some(batch);
            }
            if done {
                return None;
            }
            pause(attempt);
            attempt += 1;
        }
    }

    fn finish(&self) {
        self.done.store(true, Ordering::Release);
    }
}

pub(super) fn round<A: BlockAllocator>(allocator: &A, load: Load) -> Result<Vec<f64>, LabError> {
    let rings: Vec<Ring> = (0..load.threads / 2)
        .map(|_| Ring { batches: ArrayQueue::new(BATCHES), done: AtomicBool::new(false) })
        .collect();
    mean(on_threads(load.threads, |number, line| {
        let ring = &rings[number / 2];
        allocator.on_core(number, |core| {
            line.wait(1);
            let start = Instant::now();
            if number % 2 == 0 {
                get(allocator, core, load, ring)
            } else {
                put(allocator, core, load, ring)
            }?;
            Ok([start.elapsed().as_nanos() as f64 / load.count.max(1) as f64])
        })
    }))
}

fn get<A: BlockAllocator>(allocator: &A, core: &A::Core, load: Load, ring: &Ring) -> Result<(), LabError> {
    let mut left = load.count;
    let mut result = Ok(());
    while left > 0 && result.is_ok() {
        let mut batch = Batch { blocks: [Pfn(0); BATCH], count: 0 };
        for block in batch.blocks.iter_mut().take(left) {
            let Some(pfn) = allocator.get(core, load.order) else {
                result = Err(LabError::NoBlock(load.order));
                break;
            };
            *block = pfn;
            batch.count += 1;
        }
        left -= batch.count;
        ring.send(batch);
    }
    ring.finish();
    result
}

fn put<A: BlockAllocator>(allocator: &A, core: &A::Core, load: Load, ring: &Ring) -> Result<(), LabError> {
    let mut result = Ok(());
    // To the end in any case: the other thread waits for a free place in the ring.
    while let Some(batch) = ring.receive() {
        for &pfn in &batch.blocks[..batch.count] {
            if !allocator.put(core, pfn, load.order) {
                result = Err(LabError::NotTaken(pfn, load.order));
            }
        }
    }
    result
}

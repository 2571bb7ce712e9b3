//! Whether frames are zero-filled.

use super::Frames;
use core::slice;
// Contents are no part of what the models explore.
use core::sync::atomic::{AtomicU64, Ordering};
use quire_arch::{Order, Pfn, Platform};

/// Words checked together, and the number of parallel sums. A page is a multiple of both.
const STRIDE: usize = 64;
const SUMS: usize = 4;

impl<P: Platform> Frames<P> {
    /// Whether the block of `order` at `first`, which the caller keeps from being freed, is all zeros at this
    /// moment. Programs may be writing to it.
    pub fn is_zero(&self, first: Pfn, order: Order) -> bool {
        if let Some(known) = self.platform().knows_zeros(first, order) {
            return known;
        }
        let words = order.bytes() as usize / size_of::<u64>();
        let base = self.platform().direct_map(first).cast::<AtomicU64>();
        // SAFETY: the block lies in RAM, is contiguous in the direct map and aligned, and stays. Programs
        // write to it as hardware does, so it is read by atomics.
        let words = unsafe { slice::from_raw_parts(base.as_ptr(), words) };
        // As in Linux the end first: where a page has something, it is mostly there or at the beginning.
        if words.last().is_some_and(|word| word.load(Ordering::Relaxed) != 0) {
            return false;
        }
        // Several sums side by side, since each addition waits for the one before: so it goes at the speed of
        // memory.
        words.chunks_exact(STRIDE).all(|words| {
            let mut sums = [0; SUMS];
            for part in words.chunks_exact(SUMS) {
                sums.iter_mut().zip(part).for_each(|(sum, word)| *sum |= word.load(Ordering::Relaxed));
            }
            sums.iter().fold(0, |all, sum| all | sum) == 0
        })
    }
}

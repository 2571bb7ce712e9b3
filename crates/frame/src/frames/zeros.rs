//! Whether frames are zero-filled.

use super::Frames;
// Contents are no part of what the models explore.
use core::sync::atomic::{AtomicU64, Ordering};
use quire_arch::{Order, PAGE_SIZE, Pfn, Platform, ZEROS_BLOCK, are_zeros};

const _: () = assert!((PAGE_SIZE as usize).is_multiple_of(ZEROS_BLOCK), "a page is blocks");

impl<P: Platform> Frames<P> {
    /// Whether the block of `order` at `first`, which the caller keeps from being freed, is all zeros at this
    /// moment. Programs may be writing to it.
    pub fn is_zero(&self, first: Pfn, order: Order) -> bool {
        if let Some(known) = self.platform().knows_zeros(first, order) {
            return known;
        }
        let bytes = order.bytes() as usize;
        let base = self.platform().direct_map(first).as_ptr();
        // As in Linux the end first: where a page has something, it is mostly there or at the beginning.
        // SAFETY: the block lies in RAM, is contiguous in the direct map and aligned to a page, and stays.
        // Programs write to it as hardware does, so it is read by atomics.
        let last = unsafe { &*base.add(bytes - size_of::<AtomicU64>()).cast::<AtomicU64>() };
        // SAFETY: as above; the parts lie in it.
        last.load(Ordering::Relaxed) == 0
            && (0..bytes).step_by(ZEROS_BLOCK).all(|at| unsafe { are_zeros(base.add(at).cast()) })
    }
}

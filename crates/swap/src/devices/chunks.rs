//! The clusters of a device, in frames of their own.

use super::block::Block;
use crate::SwapOnError;
use crate::cluster::Cluster;
use core::ptr::NonNull;
use quire_arch::{Order, PAGE_SIZE, Pfn, Platform};
use quire_frame::Frames;

/// Clusters described in one frame.
const PER_CHUNK: u32 = (PAGE_SIZE as usize / size_of::<Cluster>()) as u32;

/// Frames of clusters, and where each is.
#[derive(Debug)]
pub(super) struct Chunks {
    directory: Block,
    places: NonNull<Pfn>,
    bases: NonNull<NonNull<Cluster>>,
    count: usize,
}

impl Chunks {
    /// Each is allocated under a pin of its own, since a device may have hundreds of thousands of clusters.
    pub(super) fn allocate<P: Platform>(frames: &Frames<P>, clusters: u32) -> Result<Self, SwapOnError> {
        let pin = || frames.platform().pin();
        let count = clusters.div_ceil(PER_CHUNK) as usize;
        let directory =
            Block::allocate(frames, &pin(), count * (size_of::<Pfn>() + size_of::<NonNull<Cluster>>()))?;
        let bases = directory.base(frames).cast::<NonNull<Cluster>>();
        // SAFETY: the block has room for both arrays.
        let places = unsafe { bases.add(count) }.cast::<Pfn>();
        let mut chunks = Self { directory, places, bases, count: 0 };
        for nth in 0..count {
            let pin = pin();
            let chunk = match Block::allocate(frames, &pin, PAGE_SIZE as usize) {
                Ok(chunk) => chunk,
                Err(error) => {
                    drop(pin);
                    chunks.free(frames);
                    return Err(error);
                }
            };
            let base = chunk.base(frames).cast::<Cluster>();
            // SAFETY: `nth` lies in both arrays; the frame is this call's, page aligned, and has room for its
            // clusters.
            unsafe {
                chunks.places.add(nth).write(chunk.pfn);
                chunks.bases.add(nth).write(base);
                for cluster in 0..PER_CHUNK as usize {
                    base.add(cluster).write(Cluster::new());
                }
            }
            chunks.count = nth + 1;
        }
        Ok(chunks)
    }

    /// Frees all, each under a pin of its own.
    pub(super) fn free<P: Platform>(&self, frames: &Frames<P>) {
        let pin = || frames.platform().pin();
        for nth in 0..self.count {
            // SAFETY: the first `count` places were written.
            let pfn = unsafe { self.places.add(nth).read() };
            Block { pfn, order: Order::ZERO }.free(frames, &pin());
        }
        self.directory.free(frames, &pin());
    }

    /// The cluster `index`.
    ///
    /// # Safety
    ///
    /// It is one of the clusters that the chunks were allocated for.
    #[inline]
    pub(super) unsafe fn cluster(&self, index: u32) -> NonNull<Cluster> {
        // SAFETY: the caller's promise: it lies in a chunk, which was written whole.
        unsafe {
            let base = self.bases.add((index / PER_CHUNK) as usize).read();
            base.add((index % PER_CHUNK) as usize)
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.directory.order.bytes() + self.count as u64 * PAGE_SIZE
    }
}

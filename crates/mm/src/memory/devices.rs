//! Uses of a machine's own frames for its kernel: swap devices in RAM, a heap, plain frames.

use super::Memory;
use quire_arch::Platform;
use quire_frame::{AllocError, KernelFrames};
use quire_swap::{CompressedCache, CompressedRam, Lz4, RamDisk, SwapDevice};

impl<P: Platform> Memory<P> {
    /// A swap device of `slots` pages in the machine's own RAM, compressed by LZ4: what Linux calls zram.
    /// Give it to [`swapon`](Self::swapon). It takes frames as pages are written to it.
    ///
    /// # Errors
    ///
    /// As for an allocation, and [`AllocError::OutOfMemory`] for more than 2^28 slots.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn create_compressed_ram(&self, slots: u64) -> Result<CompressedRam<P>, AllocError> {
        CompressedRam::new(self.parts().frames(), slots, Lz4)
    }

    /// A swap device of `slots` uncompressed pages in the machine's own RAM: for tests and trials.
    ///
    /// # Errors
    ///
    /// As for [`create_compressed_ram`](Self::create_compressed_ram).
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn create_ram_disk(&self, slots: u64) -> Result<RamDisk<P>, AllocError> {
        RamDisk::new(self.parts().frames(), slots)
    }

    /// The swap device `behind` with a compressed cache in front that takes up to `limit` bytes of RAM: what
    /// Linux calls zswap.
    ///
    /// # Errors
    ///
    /// As for [`create_compressed_ram`](Self::create_compressed_ram).
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn create_compressed_cache<D: SwapDevice<P>>(
        &self,
        behind: D,
        limit: u64,
    ) -> Result<CompressedCache<P, D>, AllocError> {
        CompressedCache::new(self.parts().frames(), behind, limit)
    }

    /// Frames for the kernel's own use, also for its [heap](crate::frame::KernelHeap).
    pub fn kernel_frames(&self) -> KernelFrames<'_, P> {
        KernelFrames::new(self.parts().frames())
    }
}

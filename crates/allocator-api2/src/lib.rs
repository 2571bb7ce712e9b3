//! Quire's heap as an [`Allocator`] of the crate [`allocator_api2`]: vectors, boxes and maps that name their
//! heap, each on the machine that it belongs to, without a global allocator.
//!
//! ```
//! use allocator_api2::vec::Vec;
//! use quire_allocator_api2::HeapAllocator;
//! use quire_frame::{FrameConfig, Frames, KernelFrames};
//! use quire_host::{HostConfig, HostPlatform};
//! use quire_slab::KernelHeap;
//!
//! let platform: HostPlatform = HostPlatform::new(&HostConfig::with_ram(16 << 20))?;
//! let cpu = platform.vcpu(0)?;
//! let frames = Frames::new(platform, FrameConfig::default())?;
//! let heap = KernelHeap::new(KernelFrames::new(&frames))?; // or of `Memory::kernel_frames`
//! let mut squares = Vec::new_in(HeapAllocator::new(&heap));
//! squares.extend((0..1000_u64).map(|number| number * number));
//! assert_eq!(squares[999], 998_001);
//! # drop((squares, cpu));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![no_std]

use allocator_api2::alloc::{AllocError, Allocator};
use core::alloc::Layout;
use core::ptr::NonNull;
use quire_arch::Platform;
use quire_slab::KernelHeap;

/// A heap, for a collection to keep. Copies are the same heap.
#[derive(Debug)]
pub struct HeapAllocator<'h, 'f, P: Platform>(&'h KernelHeap<'f, P>);

impl<'h, 'f, P: Platform> HeapAllocator<'h, 'f, P> {
    /// The allocator of `heap`.
    pub const fn new(heap: &'h KernelHeap<'f, P>) -> Self {
        Self(heap)
    }
}

impl<P: Platform> Clone for HeapAllocator<'_, '_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for HeapAllocator<'_, '_, P> {}

/// The object as the bytes that were asked for.
fn bytes(object: NonNull<u8>, layout: Layout) -> NonNull<[u8]> {
    NonNull::slice_from_raw_parts(object, layout.size())
}

// SAFETY: an object is its owner's until it is freed, wherever the allocator goes; copies are the same heap.
unsafe impl<P: Platform> Allocator for HeapAllocator<'_, '_, P> {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        self.0.allocate(layout).map(|object| bytes(object, layout)).map_err(|_| AllocError)
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        self.0.allocate_zeroed(layout).map(|object| bytes(object, layout)).map_err(|_| AllocError)
    }

    unsafe fn deallocate(&self, object: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's promise: of this heap, with this layout.
        unsafe { self.0.free(object, layout) };
    }
}

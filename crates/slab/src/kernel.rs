//! The heap with its machine.

use crate::heap::Heap;
use core::alloc::Layout;
use core::fmt;
use core::ptr::NonNull;
use quire_arch::Platform;
use quire_frame::{AllocError, Frames, KernelFrames};

/// A [`Heap`] together with the machine that it lies on: memory of any size for a kernel.
///
/// What it holds lives as long as the machine. Each heap has caches of its own, which take a frame or two and
/// last as long as the machine too, so a kernel makes one.
pub struct KernelHeap<'f, P: Platform> {
    frames: &'f Frames<P>,
    heap: Heap<P>,
}

impl<'f, P: Platform> KernelHeap<'f, P> {
    /// A heap on a machine.
    ///
    /// # Errors
    ///
    /// As for [`Heap::new`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn new(frames: KernelFrames<'f, P>) -> Result<Self, AllocError> {
        // SAFETY: the heap gives back what it took, and nothing else.
        let frames = unsafe { frames.frames() };
        Ok(Self { frames, heap: Heap::new(frames, &frames.platform().pin())? })
    }

    /// Uninitialised memory for `layout`. Any alignment is served that leaves room for the size in the
    /// largest block.
    ///
    /// # Errors
    ///
    /// As for [`Heap::allocate`].
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn allocate(&self, layout: Layout) -> Result<NonNull<u8>, AllocError> {
        self.heap.allocate(self.frames, &self.frames.platform().pin(), layout)
    }

    /// As [`allocate`](Self::allocate), filled with zeros.
    ///
    /// # Errors
    ///
    /// As for [`Heap::allocate`].
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<u8>, AllocError> {
        self.heap.allocate_zeroed(self.frames, &self.frames.platform().pin(), layout)
    }

    /// Frees memory. Never allocates.
    ///
    /// # Safety
    ///
    /// As for [`Heap::free`].
    #[inline]
    pub unsafe fn free(&self, object: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { self.heap.free(self.frames, &self.frames.platform().pin(), object, layout) };
    }

    /// Gives back every frame that no object needs, and returns how many.
    #[doc(hidden)]
    pub fn shrink(&self) -> u64 {
        self.heap.shrink(self.frames, &self.frames.platform().pin())
    }
}

impl<P: Platform> fmt::Debug for KernelHeap<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelHeap").finish_non_exhaustive()
    }
}

//! A heap for Rust's `alloc`.

use crate::heap::Heap;
use crate::once::{SetOnce, Taken};
use core::alloc::{GlobalAlloc, Layout};
use core::fmt;
use core::ptr::{self, NonNull};
use quire_arch::Platform;
use quire_frame::{AllocError, Frames, KernelFrames};

/// A [`Heap`] as the global allocator of a kernel that has none: a static that is
/// [attached](Self::attach) to the machine once that is known.
///
/// Until then, and when memory is out, an allocation returns null. Nothing panics but the assertions of debug
/// builds on what is freed. A caller that allocates or frees holds no lock of class
/// [`Slab`](quire_arch::LockClass::Slab) or later. Any alignment is served that leaves room for the size in
/// the largest block.
///
/// `checks/no-std-link/src/with_heap.rs` is a program that does all its allocations here.
pub struct GlobalHeap<P: Platform> {
    attached: SetOnce<Attached<P>>,
}

struct Attached<P: Platform> {
    frames: &'static Frames<P>,
    heap: Heap<P>,
}

/// Why a [`GlobalHeap`] was not attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// It is attached already, or just being so.
    #[error("the heap is attached to a machine already")]
    AlreadyAttached,
    /// There is no memory for the heap's caches. It can be tried again.
    #[error("no memory for the heap's caches: {0}")]
    NoFrames(AllocError),
}

impl<P: Platform> Default for GlobalHeap<P> {
    fn default() -> Self {
        Self { attached: SetOnce::new() }
    }
}

impl<P: Platform> GlobalHeap<P> {
    /// A heap without a machine.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { attached: SetOnce::new() }
    }

    /// Makes a heap on the machine. From now on allocations are served.
    ///
    /// # Errors
    ///
    /// See [`AttachError`]; nothing was changed.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn attach(&self, frames: KernelFrames<'static, P>) -> Result<(), AttachError> {
        // SAFETY: the heap gives back what it took, and nothing else.
        let frames = unsafe { frames.frames() };
        let turn = self.attached.claim().map_err(|Taken| AttachError::AlreadyAttached)?;
        let heap = Heap::new(frames, &frames.platform().pin()).map_err(AttachError::NoFrames)?;
        turn.set(Attached { frames, heap });
        Ok(())
    }
}

// SAFETY: the heap gives out memory of the size and alignment asked for that no other thread has until it is
// freed.
unsafe impl<P: Platform> GlobalAlloc for GlobalHeap<P> {
    #[cfg_attr(debug_assertions, track_caller)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(Attached { frames, heap }) = self.attached.get() else { return ptr::null_mut() };
        let object = heap.allocate(frames, &frames.platform().pin(), layout);
        object.map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    #[cfg_attr(debug_assertions, track_caller)]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(Attached { frames, heap }) = self.attached.get() else { return ptr::null_mut() };
        let object = heap.allocate_zeroed(frames, &frames.platform().pin(), layout);
        object.map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        let (Some(Attached { frames, heap }), Some(object)) = (self.attached.get(), NonNull::new(object))
        else {
            return;
        };
        // SAFETY: the caller's promise: the object is of this allocator with this layout, or was left in
        // place by `realloc`, for which it fits.
        unsafe { heap.free(frames, &frames.platform().pin(), object, layout) };
    }

    #[cfg_attr(debug_assertions, track_caller)]
    unsafe fn realloc(&self, object: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let Ok(new_layout) = Layout::from_size_align(new_size, layout.align()) else {
            return ptr::null_mut();
        };
        if Heap::<P>::fits_in_place(layout, new_layout) {
            return object;
        }
        // SAFETY: the caller's promise; the new object is another one, and both have that many bytes.
        unsafe {
            let new = self.alloc(new_layout);
            if !new.is_null() {
                ptr::copy_nonoverlapping(object, new, layout.size().min(new_size));
                self.dealloc(object, layout);
            }
            new
        }
    }
}

impl<P: Platform> fmt::Debug for GlobalHeap<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attached = self.attached.get().is_some();
        f.debug_struct("GlobalHeap").field("attached", &attached).finish_non_exhaustive()
    }
}

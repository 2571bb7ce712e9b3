//! Page frames: what a kernel takes for itself, the heap on them, and figures.
//!
//! [`Memory`](crate::Memory) owns all RAM of its machine. A kernel that wants frames of its own asks
//! [`Memory::kernel_frames`](crate::Memory::kernel_frames); one that wants a heap makes a [`KernelHeap`] of these, or
//! attaches a [`GlobalHeap`] as Rust's global allocator. The allocator alone, without address spaces, is the crate
//! quire-frame.

#[doc(inline)]
pub use quire_frame::{AllocError, BootError, FrameTotals, FreeError, KernelFrames, PcpTechnique, VmEvent};
#[doc(inline)]
pub use quire_slab::{AttachError, GlobalHeap, KernelHeap};

/// For the project's own tests and tools.
#[doc(hidden)]
pub use quire_frame::{FolioCounter, Frames, Kind, SplitError};

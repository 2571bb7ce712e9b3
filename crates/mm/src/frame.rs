//! Page frames: a kernel's own allocations, the heap on them, and statistics.
//!
//! [`Memory`](crate::Memory) owns all RAM of its machine. A kernel gets frames of its own from
//! [`Memory::kernel_frames`](crate::Memory::kernel_frames); for a heap it makes a [`KernelHeap`] of these, or
//! attaches a [`GlobalHeap`] as Rust's global allocator. The allocator alone, without address spaces, is the
//! crate quire-frame.

#[doc(inline)]
pub use quire_frame::{AllocError, BootError, FrameTotals, FreeError, KernelFrames};
#[doc(inline)]
pub use quire_slab::{AttachError, GlobalHeap, KernelHeap};

/// For the project's own tests and tools.
#[doc(hidden)]
pub use quire_frame::{FolioCounter, Frames, Kind, SplitError, VmEvent};

/// What an embedder takes as it is ([`Techniques::default`](crate::Techniques)).
#[doc(hidden)]
pub use quire_frame::PcpTechnique;

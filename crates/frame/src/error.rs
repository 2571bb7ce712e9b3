//! Errors, one for each cause.

use crate::kind::Kind;
use quire_arch::{Order, Pfn};

/// Why an allocation failed. Nothing was allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AllocError {
    /// No zone that the request may use has such a block, even after draining everything that holds free
    /// memory back.
    #[error("out of memory")]
    OutOfMemory,
    /// The plan of the fail points said so; see [`FailPoints`](crate::FailPoints).
    #[error("failed at a fail point")]
    Injected,
    /// The slab cache belongs to another machine.
    #[error("the slab cache belongs to another machine")]
    ForeignCache,
}

/// Why a block could not be freed. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FreeError {
    /// No RAM is there.
    #[error("no such frame")]
    OutOfRange,
    /// The frame is boot memory.
    #[error("the frame is boot memory")]
    Reserved,
    /// The frame was taken out of use.
    #[error("the frame was taken out of use")]
    Offline,
    /// The frame is free already.
    #[error("the frame is free already")]
    DoubleFree,
    /// The frame is inside an allocated block, but not its first.
    #[error("the frame lies inside a block")]
    NotHead,
    /// The block was allocated with another order.
    #[error("the block has order {allocated}")]
    WrongOrder {
        /// The order that it has.
        allocated: Order,
    },
    /// Page tables still map it.
    #[error("the frame is mapped {maps} times")]
    Mapped {
        /// How often.
        maps: u32,
    },
    /// Others still hold references.
    #[error("the frame has {references} references")]
    Referenced {
        /// How many, the caller's own included.
        references: u32,
    },
    /// The frame's lock is held.
    #[error("the frame's lock is held")]
    Locked,
    /// The folio is on an LRU list ([`FrameFlags::LRU`](crate::FrameFlags::LRU)).
    #[error("the folio is on an LRU list")]
    Listed,
    /// The frame belongs to a slab cache; only the cache frees it.
    #[error("the frame belongs to a slab cache")]
    Slab,
    /// The frame was given out, but not as a kernel's own ([`KernelFrames`](crate::KernelFrames)).
    #[error("the frame is not one of the kernel's own")]
    NotKernel,
    /// The block's first frame is fine, but this one inside it is mapped, referenced or no part of the block.
    #[error("{pfn:?} inside the block is in use")]
    BadTail {
        /// The frame.
        pfn: Pfn,
    },
}

/// Why a range could not be taken offline, or online again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HotplugError {
    /// The range is not aligned to page blocks.
    #[error("the range is not made of whole page blocks")]
    Unaligned,
    /// No RAM is there, or the range reaches past all RAM.
    #[error("no RAM is there")]
    NoRam,
    /// Another range is being taken online or offline.
    #[error("another range comes or goes just now")]
    Underway,
    /// The frame is boot memory.
    #[error("{0:?} is boot memory")]
    Reserved(Pfn),
    /// The frame is out of use already.
    #[error("{0:?} is out of use already")]
    Offline(Pfn),
    /// The frame is in use.
    #[error("{0:?} is in use")]
    Busy(Pfn),
    /// The frame is in use already.
    #[error("{0:?} is in use already")]
    Online(Pfn),
}

/// Why a frame's kind could not be changed. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KindError {
    /// The frame is not allocated.
    #[error("a frame of kind {0:?} is not given out")]
    NotGivenOut(Kind),
    /// An allocated frame changes only from or to [`Kind::Allocated`]. Only slabs change it to or from their
    /// own kinds.
    #[error("a frame cannot turn from {now:?} to {wanted:?}")]
    Refused {
        /// Its kind.
        now: Kind,
        /// The requested kind.
        wanted: Kind,
    },
}

/// Why a machine's memory could not be taken into use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BootError {
    /// Another memory manager has the machine's RAM, and must be dropped first.
    #[error("another memory manager has the machine's RAM")]
    RamTaken,
    /// The platform named no RAM.
    #[error("the machine has no RAM")]
    NoRam,
    /// The platform named no CPU, or more than [`MAX_CPUS`](quire_arch::MAX_CPUS).
    #[error("a machine cannot have {0} CPUs")]
    CpuCount(usize),
    /// The span from the lowest to the highest frame does not fit in 32 bits.
    #[error("{frames} frames cannot be numbered")]
    SpanTooLarge {
        /// Frames.
        frames: u64,
    },
    /// No single range of RAM has room for the memory map and the per-CPU areas.
    #[error("no range of RAM has room for {bytes} bytes of metadata")]
    NoRoom {
        /// Bytes that they need.
        bytes: u64,
    },
    /// The direct map of a range is not page aligned.
    #[error("the direct map of {0:?} is not page aligned")]
    MisalignedDirectMap(Pfn),
    /// The range that begins with this frame touches another one of the same node, and the direct map does
    /// not go on from the one to the other.
    #[error("the direct map of {0:?} does not follow that of the frame before it")]
    TornDirectMap(Pfn),
    /// No node, or more than [`MAX_NODES`](quire_arch::MAX_NODES); or a range of RAM is said to be of a node
    /// past them.
    #[error("a machine cannot have {0} nodes")]
    NodeCount(usize),
    /// Two nodes share the page block of this frame.
    #[error("the page block of {0:?} belongs to two nodes")]
    SharedPageBlock(Pfn),
}

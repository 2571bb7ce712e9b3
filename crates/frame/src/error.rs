//! What can go wrong, each cause apart.

use crate::kind::Kind;
use core::fmt;
use quire_arch::{Order, Pfn};

/// Why an allocation failed. Nothing was allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocError {
    /// No zone that the request may use has such a block, also not after everything that holds free memory
    /// back was drained.
    OutOfMemory,
    /// The fault plan said so; see [`Faults`](crate::Faults).
    Injected,
    /// The slab cache belongs to another machine.
    ForeignCache,
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OutOfMemory => "out of memory",
            Self::Injected => "failed by the fault plan",
            Self::ForeignCache => "the slab cache belongs to another machine",
        })
    }
}

impl core::error::Error for AllocError {}

/// Why a block could not be given back. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreeError {
    /// No RAM is there.
    OutOfRange,
    /// The frame is boot memory.
    Reserved,
    /// The frame was taken out of use.
    Offline,
    /// The frame is free already.
    DoubleFree,
    /// The frame lies inside a given-out block but does not start it.
    NotHead,
    /// The block was given out with another order.
    WrongOrder {
        /// The order that it has.
        allocated: Order,
    },
    /// Page tables still map it.
    Mapped {
        /// How often.
        maps: u32,
    },
    /// Others still hold references.
    Referenced {
        /// How many, the caller's own included.
        references: u32,
    },
    /// The frame's lock is held.
    Locked,
    /// The folio is on an LRU list ([`FrameFlags::LRU`](crate::FrameFlags::LRU)).
    Listed,
    /// The frame belongs to a slab cache, which alone gives it back.
    Slab,
    /// The block's first frame is fine, but this one inside it is mapped, referenced or no part of the block.
    BadTail {
        /// The frame.
        pfn: Pfn,
    },
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange => f.write_str("no such frame"),
            Self::Reserved => f.write_str("the frame is boot memory"),
            Self::Offline => f.write_str("the frame was taken out of use"),
            Self::DoubleFree => f.write_str("the frame is free already"),
            Self::NotHead => f.write_str("the frame lies inside a block"),
            Self::WrongOrder { allocated } => write!(f, "the block has order {allocated}"),
            Self::Mapped { maps } => write!(f, "the frame is mapped {maps} times"),
            Self::Referenced { references } => write!(f, "the frame has {references} references"),
            Self::Locked => f.write_str("the frame's lock is held"),
            Self::Listed => f.write_str("the folio is on an LRU list"),
            Self::Slab => f.write_str("the frame belongs to a slab cache"),
            Self::BadTail { pfn } => write!(f, "{pfn:?} inside the block is in use"),
        }
    }
}

impl core::error::Error for FreeError {}

/// Why a range could not be taken out of use, or into use again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HotplugError {
    /// The range does not begin and end at borders of page blocks.
    Unaligned,
    /// No RAM is there, or the range reaches past all RAM.
    NoRam,
    /// Another range comes or goes just now.
    Underway,
    /// The frame is boot memory.
    Reserved(Pfn),
    /// The frame is out of use already.
    Offline(Pfn),
    /// The frame is in use.
    Busy(Pfn),
    /// The frame is in use already.
    Online(Pfn),
}

impl fmt::Display for HotplugError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unaligned => f.write_str("the range is not made of whole page blocks"),
            Self::NoRam => f.write_str("no RAM is there"),
            Self::Underway => f.write_str("another range comes or goes just now"),
            Self::Online(pfn) => write!(f, "{pfn:?} is in use already"),
            Self::Reserved(pfn) => write!(f, "{pfn:?} is boot memory"),
            Self::Offline(pfn) => write!(f, "{pfn:?} is out of use already"),
            Self::Busy(pfn) => write!(f, "{pfn:?} is in use"),
        }
    }
}

impl core::error::Error for HotplugError {}

/// Why a frame's kind could not be changed. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KindError {
    /// The frame is not given out.
    NotGivenOut(Kind),
    /// A given-out frame changes from [`Kind::Allocated`] or to it, and never to or from the slabs' kinds
    /// from outside.
    Refused {
        /// What it is.
        now: Kind,
        /// What was asked for.
        wanted: Kind,
    },
}

impl fmt::Display for KindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotGivenOut(kind) => write!(f, "a frame of kind {kind:?} is not given out"),
            Self::Refused { now, wanted } => write!(f, "a frame cannot turn from {now:?} to {wanted:?}"),
        }
    }
}

impl core::error::Error for KindError {}

/// Why a machine's memory could not be taken into use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BootError {
    /// The platform named no RAM.
    NoRam,
    /// The platform named no CPU, or more than [`MAX_CPUS`](quire_arch::MAX_CPUS).
    CpuCount(usize),
    /// From the lowest to the highest frame are more than 32 bits can number.
    SpanTooLarge {
        /// Frames.
        frames: u64,
    },
    /// No single range of RAM has room for the memory map and the per-CPU areas.
    NoRoom {
        /// Bytes that they need.
        bytes: u64,
    },
    /// The direct map of a range is not page aligned.
    MisalignedDirectMap(Pfn),
    /// No node, or more than [`MAX_NODES`](quire_arch::MAX_NODES); or a range of RAM is said to be of a node
    /// past them.
    NodeCount(usize),
    /// Two nodes share the page block of this frame.
    SharedPageBlock(Pfn),
}

impl fmt::Display for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRam => f.write_str("the machine has no RAM"),
            Self::CpuCount(count) => write!(f, "a machine cannot have {count} CPUs"),
            Self::SpanTooLarge { frames } => write!(f, "{frames} frames cannot be numbered"),
            Self::NoRoom { bytes } => write!(f, "no range of RAM has room for {bytes} bytes of metadata"),
            Self::NodeCount(count) => write!(f, "a machine cannot have {count} nodes"),
            Self::SharedPageBlock(pfn) => write!(f, "the page block of {pfn:?} belongs to two nodes"),
            Self::MisalignedDirectMap(pfn) => write!(f, "the direct map of {pfn:?} is not page aligned"),
        }
    }
}

impl core::error::Error for BootError {}

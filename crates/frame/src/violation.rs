//! What the auditor can find.

use crate::kind::Kind;
use crate::map::Migratetype;
use crate::zone_id::ZoneId;
use core::fmt;
use quire_arch::{CpuId, Order, Pfn};

/// A list that frames are on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListName {
    /// A zone's list of free blocks.
    Buddy(ZoneId, Order, Migratetype),
    /// A CPU's list of free blocks.
    Pcp(CpuId, ZoneId, Order, Migratetype),
    /// Blocks that other CPUs returned to a CPU: on its stack, or taken from there.
    Returned(CpuId, ZoneId),
    /// What a CPU retired.
    Limbo(CpuId),
    /// The slabs of a cache.
    Slabs(&'static str),
    /// The frames that a cache itself lies in.
    CacheArea(&'static str),
}

impl fmt::Display for ListName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Buddy(zone, order, kind) => write!(f, "{zone} free list {order} {}", kind.name()),
            Self::Pcp(cpu, zone, order, kind) => write!(f, "{cpu} {zone} list {order} {}", kind.name()),
            Self::Returned(cpu, zone) => write!(f, "{cpu} {zone} returned"),
            Self::Limbo(cpu) => write!(f, "{cpu} limbo"),
            Self::Slabs(name) => write!(f, "slabs of {name}"),
            Self::CacheArea(name) => write!(f, "area of {name}"),
        }
    }
}

/// A number that is kept and was recounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// Blocks on a list.
    Blocks(ListName),
    /// Base pages on a list.
    Pages(ListName),
    /// Free frames of a zone's lists.
    ZoneFree(ZoneId),
    /// The same by migratetype.
    ZoneFreeOf(ZoneId, Migratetype),
    /// The same, as published for readers without the lock.
    ZoneFreePublished(ZoneId),
    /// Frames of a zone that are free or allocated.
    ZoneManaged(ZoneId),
    /// Page blocks of a type in a zone.
    Pageblocks(ZoneId, Migratetype),
    /// Base pages on all lists of a CPU for a zone.
    PcpPages(CpuId, ZoneId),
    /// Frames of boot memory.
    Reserved,
    /// Free slots in the slabs of a cache: by their counts, by their lists.
    SlabFree(&'static str),
    /// Objects of a cache in use: by the CPUs' counts, by their marks.
    SlabInUse(&'static str),
    /// Slots of a cache: all, and those in use or on a list.
    SlabSlots(&'static str),
}

impl Counted {
    /// Compares the number that is kept with what was counted.
    pub fn check(self, kept: u64, counted: u64, report: &mut dyn FnMut(FrameViolation)) {
        if kept != counted {
            report(FrameViolation::WrongCount { what: self, expected: kept, found: counted });
        }
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocks(list) => write!(f, "blocks on {list}"),
            Self::Pages(list) => write!(f, "pages on {list}"),
            Self::ZoneFree(zone) => write!(f, "free frames of {zone}"),
            Self::ZoneFreeOf(zone, kind) => write!(f, "free {} frames of {zone}", kind.name()),
            Self::ZoneFreePublished(zone) => write!(f, "published free frames of {zone}"),
            Self::ZoneManaged(zone) => write!(f, "managed frames of {zone}"),
            Self::Pageblocks(zone, kind) => write!(f, "{} page blocks of {zone}", kind.name()),
            Self::PcpPages(cpu, zone) => write!(f, "pages on the lists of {cpu} for {zone}"),
            Self::Reserved => f.write_str("frames of boot memory"),
            Self::SlabFree(name) => write!(f, "free slots in the slabs of {name}"),
            Self::SlabInUse(name) => write!(f, "objects in use of {name}"),
            Self::SlabSlots(name) => write!(f, "slots of {name}"),
        }
    }
}

/// A broken invariant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameViolation {
    /// A list leads to a frame that the memory map does not have.
    #[error("{list}: leads to {pfn:?}, which is no frame")]
    BadLink {
        /// The list.
        list: ListName,
        /// Where it leads.
        pfn: Pfn,
    },
    /// The frame after this one on a list does not lead back to it.
    #[error("{list}: {pfn:?} does not lead back")]
    BrokenBackLink {
        /// The list.
        list: ListName,
        /// The frame whose backward link is wrong.
        pfn: Pfn,
    },
    /// A frame on a list is of another kind than the list's.
    #[error("{list}: {pfn:?} is {found:?}, not {expected:?}")]
    WrongKind {
        /// The list.
        list: ListName,
        /// The frame.
        pfn: Pfn,
        /// The list's kind.
        expected: Kind,
        /// The frame's kind.
        found: Kind,
    },
    /// A block on a list has another order than the list's.
    #[error("{list}: {pfn:?} has order {found}, not {expected}")]
    WrongOrder {
        /// The list.
        list: ListName,
        /// The block.
        pfn: Pfn,
        /// The list's order.
        expected: Order,
        /// The block's.
        found: Order,
    },
    /// A free block's type is not that of the list that it is on, or not that of its page block; or a block
    /// that a CPU keeps lies in an isolated page block.
    #[error("{list}: {pfn:?} is {}, not {}", .found.name(), .expected.name())]
    WrongMigratetype {
        /// The list.
        list: ListName,
        /// The block.
        pfn: Pfn,
        /// The list's type.
        expected: Migratetype,
        /// What was found.
        found: Migratetype,
    },
    /// A free block is on the list of another zone.
    #[error("{list}: {pfn:?} belongs to another zone")]
    WrongZone {
        /// The list.
        list: ListName,
        /// The block.
        pfn: Pfn,
    },
    /// A slab's descriptor contradicts the list that it is on.
    #[error("slab {pfn:?} of {cache} contradicts its list")]
    BadSlab {
        /// The cache.
        cache: &'static str,
        /// The slab.
        pfn: Pfn,
    },
    /// A block does not start at a multiple of its size.
    #[error("{pfn:?} cannot start a block of order {order}")]
    Misaligned {
        /// The block.
        pfn: Pfn,
        /// Its order.
        order: Order,
    },
    /// Two free buddies were not joined.
    #[error("{pfn:?} and its buddy of order {order} are free but apart")]
    UnmergedBuddies {
        /// The lower one.
        pfn: Pfn,
        /// The order of both.
        order: Order,
    },
    /// A frame inside a block is not marked so, is mapped, referenced or locked.
    #[error("{pfn:?} inside the block at {head:?} is {found:?} or in use")]
    BadTail {
        /// The block.
        head: Pfn,
        /// The frame.
        pfn: Pfn,
        /// Its kind.
        found: Kind,
    },
    /// A frame is marked as inside a block, but no block covers it.
    #[error("{pfn:?} is inside no block")]
    StrayTail {
        /// The frame.
        pfn: Pfn,
    },
    /// A frame that must be on a list is on none: it is lost.
    #[error("{pfn:?} is {kind:?} but on no list: lost")]
    Lost {
        /// The frame.
        pfn: Pfn,
        /// Its kind.
        kind: Kind,
    },
    /// A frame can be reached from lists more often than it may: once, or never for one that is allocated.
    #[error("{pfn:?} ({kind:?}) is on lists {found} times, not {expected}")]
    Reached {
        /// The frame.
        pfn: Pfn,
        /// Its kind.
        kind: Kind,
        /// How often it may be reached.
        expected: u32,
        /// How often it is.
        found: u32,
    },
    /// A frame that is not allocated has references, maps or a held lock.
    #[error("{pfn:?} is {kind:?} but has {refs} references, {maps} maps or a held lock")]
    FreeButInUse {
        /// The frame.
        pfn: Pfn,
        /// Its kind.
        kind: Kind,
        /// Its references.
        refs: u32,
        /// Its maps.
        maps: u32,
    },
    /// A kept number is not what was counted.
    #[error("{what}: kept {expected}, counted {found}")]
    WrongCount {
        /// Which number.
        what: Counted,
        /// The number that is kept.
        expected: u64,
        /// The number that was counted.
        found: u64,
    },
}

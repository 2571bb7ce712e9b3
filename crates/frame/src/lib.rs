//! Page frames: the owner of each, and where the next one comes from.
//!
//! [`Frames`] takes a machine's RAM into use. It describes every frame in the memory map ([`Frame`],
//! [`MemoryMap`]), keeps free memory in zones with buddy lists, hands it out through per-CPU lists, delays
//! the reuse of frames that lock-free readers may still access (the limbo), and shrinks slab caches
//! ([`FrameCache`]). An auditor recounts all of it. docs/frame.md says which lock guards what and how each
//! failure is undone.
//!
//! Nothing here allocates from anywhere else, and freeing never allocates.
//!
//! # Modules, lowest first
//!
//! - `fail_points`: operations that are made to fail.
//! - `zone_id`: numbers and kinds of zones.
//! - `kind`: what a frame is.
//! - `folio_counters`: counters for each size of large folio.
//! - `counters`: event counters, one set per CPU.
//! - `error`: errors, one for each cause.
//! - `map`: the memory map: one descriptor per frame, and its lookup.
//! - `request`: the parameters of an allocation.
//! - `chain`: blocks that are freed together.
//! - `frame_list`: lists that a frame can be removed from at any position.
//! - `limbo`: frames that lock-free readers may still access.
//! - `folio`: blocks that programs map, and lists of them.
//! - `pcp`: the lists of free blocks that each CPU keeps for itself.
//! - `zone`: zones, with their buddy lists and watermarks.
//! - `violation`: what the auditor can find.
//! - `frames`: one machine's memory, put together: allocating, freeing, draining, hot-unplug, folios, the
//!   audit.

#![no_std]

// The machine for tests is shared with the integration tests and names this crate as they do.
#[cfg(test)]
extern crate self as quire_frame;
#[cfg(test)]
extern crate std;

mod chain;
mod counters;
mod error;
mod fail_points;
mod folio;
mod folio_counters;
mod frame_list;
mod frames;
mod kind;
mod limbo;
mod map;
mod pcp;
mod request;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
#[allow(dead_code, reason = "shared with the integration tests, which use more of it")]
mod testing;
mod violation;
mod zone;
mod zone_id;

pub use chain::FrameChain;
pub use counters::{VmEvent, VmEvents};
pub use error::{AllocError, BootError, FreeError, HotplugError, KindError};
pub use fail_points::{FailAim, FailCaller, FailClass, FailPlan, FailPoints, FailSite};
pub use folio::{Folio, FolioList, HeadGuard, MAX_MAPS, MapsLeft};
pub use folio_counters::FolioCounter;
pub use frames::{
    CacheNode, FolioGuard, FolioSplit, FrameAudit, FrameCache, FrameCaches, FrameConfig, FrameFolios,
    FrameHotplug, FrameLimbo, FramePcp, FrameReports, FrameTotals, FrameWatermarks, Frames, HeldParts,
    KernelFrames, ListDemand, MachineId, PartIs, PcpReport, Pinned, SinglePages, SplitError, Turn,
};
pub use kind::Kind;
pub use map::{
    DeferredLink, FolioFrame, FolioIo, Frame, FrameFlags, FrameState, InHand, MAX_REFS, MemoryMap,
    Migratetype, OwnerWord, PAGEBLOCK_ORDER, SingleUnmapped, SlabFrame, TableFrame, ZspageFrame,
};
pub use pcp::PcpTechnique;
pub use request::AllocRequest;
pub use violation::{Counted, FrameViolation, ListName};
pub use zone::{BuddyCounts, Watermarks, ZoneReport};
pub use zone_id::{ZoneId, ZoneKind};

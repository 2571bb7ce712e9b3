//! Page frames: who owns which, and where the next one comes from.
//!
//! [`Frames`] takes a machine's RAM into use. It describes every frame in the memory map ([`Frame`],
//! [`MemoryMap`]), keeps free memory in zones with buddy lists, hands it out through per-CPU lists, holds
//! back what lock-free readers may still look at (the limbo), and takes back what caches of objects do not
//! need ([`FrameCache`]). An auditor recounts all of it. docs/frame.md says which lock guards what and how each
//! failure is undone.
//!
//! Nothing here allocates from anywhere else, and giving memory back never allocates.

#![no_std]

// The machine for tests is shared with the integration tests and names this crate as they do.
#[cfg(test)]
extern crate self as quire_frame;
#[cfg(test)]
extern crate std;

mod audit;
mod chain;
mod counters;
mod error;
mod faults;
mod folio;
mod folio_counters;
mod frames;
mod limbo;
mod map;
mod pcp;
mod request;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
#[allow(dead_code, reason = "shared with the integration tests, which use more of it")]
mod testing;
mod zone;

pub use audit::{Counted, FrameViolation, ListDemand, ListName};
pub use chain::FrameChain;
pub use counters::{VmEvent, VmEvents};
pub use error::{AllocError, BootError, FreeError, HotplugError, KindError};
pub use faults::{FaultAim, FaultCaller, FaultClass, FaultPlan, FaultSite, Faults};
pub use folio::{
    Folio, FolioGuard, FolioList, FolioSplit, LockedFolio, MAX_MAPS, MapsLeft, Pinned, SplitError,
};
pub use folio_counters::FolioCounter;
pub use frames::{CacheNode, FrameCache, FrameConfig, FrameTotals, Frames, MachineId, PcpReport};
pub use map::{Frame, FrameFlags, Kind, MAX_REFS, MemoryMap, Migratetype, PAGEBLOCK_ORDER, Word};
pub use pcp::PcpTechnique;
pub use request::AllocRequest;
pub use zone::{BuddyCounts, Watermarks, ZoneId, ZoneKind, ZoneReport};

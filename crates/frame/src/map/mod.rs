//! The memory map: one descriptor for every frame from the lowest to the highest, and what finds them.

pub(crate) mod boot;
mod descriptor;
mod memory_map;
mod migratetype;
#[cfg(all(test, loom))]
#[allow(clippy::unwrap_used, reason = "models are tests")]
mod models;
mod word;

pub use descriptor::{DeferredLink, FolioFrame, OwnerWord, SlabFrame, TableFrame, ZspageFrame};
pub use descriptor::{FolioIo, Frame, InHand, SingleUnmapped};
pub(crate) use descriptor::{FrameIndex, LockCheck, unmap_single};
pub use memory_map::{MemoryMap, PAGEBLOCK_ORDER};
pub use migratetype::Migratetype;
pub use word::{FrameFlags, FrameState, MAX_REFS};

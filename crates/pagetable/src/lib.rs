//! Page tables: walks, changes, the gather, and TLB flushes.
//!
//! [`Tables`] are the page tables of one space. They use frames, memcgs and swap through [`MemoryCore`], but
//! no VMAs: the attributes of a mapping are passed as [`Permissions`] or [`NewPage`]. Unmapped pages go
//! through a [`Gather`]. docs/tables.md describes them.
//!
//! # Modules, lowest first
//!
//! - `residency`: counts of resident pages and tables.
//! - `huge_slot`: the place of a large leaf.
//! - `cpus`: which CPUs a TLB flush has to reach, and what is still to be flushed.
//! - `memory`: what all page tables of a machine share.
//! - `space_tables`: the root of one space's tables, and what is kept with it.
//! - `current`: the space that each CPU runs.
//! - `attributes`: what a mapping says of its pages.
//! - `gather`: frames and tables on their way to the page-frame allocator.
//! - `table`: finding, making, changing, moving and freeing tables and entries.

#![no_std]

#[cfg(any(test, loom))]
extern crate std;

mod attributes;
mod cpus;
mod current;
mod gather;
mod huge_slot;
mod memory;
mod residency;
mod space_tables;
mod table;

pub use attributes::{NewPage, Permissions};
pub use cpus::{FlushCause, Pageouts, SpaceCpus};
pub use current::CurrentSpaces;
pub use gather::{Gather, page_of, pages_from};
pub use huge_slot::HugeSlot;
pub use memory::{GatherTechnique, MemoryCore, RemapTechnique, TablesTechnique, Techniques};
pub use residency::{Residency, ResidencyCounts, ResidencyFigures, raise};
pub use space_tables::{SpaceId, SpaceTables};
pub use table::{
    Copying, Entries, Found, FreeableRange, LockedTable, Relocation, SwappedRun, Tables, WalkEntry, WalkStep,
    Zap,
};

//! Page tables: walks, changes, the gather, and TLB flushes.
//!
//! [`Tables`] are the page tables of one space. They use frames, memcgs and swap through [`MemoryCore`], but
//! no VMAs: the attributes of a mapping are passed as [`Permissions`] or [`NewPage`]. They find, make and
//! lock tables; what is done with those has a type for each duty: [`Walker`], [`HugeLeaves`], [`Protector`],
//! [`Unmapper`] with its [`Gather`], [`Guards`], [`Mover`] and [`Forker`]. docs/tables.md describes them.
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
//! - `table`: finding and making the tables of one space, and locking them.
//! - `gather`: frames and tables on their way to the page-frame allocator.
//! - `huge`: large leaves, and how they are split.
//! - `walk`: walks over what a range maps.
//! - `change`: changing permissions.
//! - `unmap`: taking pages and tables out.
//! - `guard`: guard pages.
//! - `relocate`: moving pages.
//! - `copy`: sharing pages with a child.

#![no_std]

#[cfg(any(test, loom))]
extern crate std;

mod attributes;
mod change;
mod copy;
mod cpus;
mod current;
mod gather;
mod guard;
mod huge;
mod huge_slot;
mod memory;
mod relocate;
mod residency;
mod space_tables;
mod table;
mod unmap;
mod walk;

pub use attributes::{NewPage, Permissions};
pub use change::Protector;
pub use copy::{Copying, Forker};
pub use cpus::{FlushCause, Pageouts, SpaceCpus};
pub use current::CurrentSpaces;
pub use gather::Gather;
pub use guard::Guards;
pub use huge::HugeLeaves;
pub use huge_slot::HugeSlot;
pub use memory::{GatherTechnique, MemoryCore, RemapTechnique, TablesTechnique, Techniques};
pub use relocate::{Mover, Relocation};
pub use residency::{Residency, ResidencyCounts, ResidencyFigures, raise};
pub use space_tables::{SpaceId, SpaceTables};
pub use table::{Entries, Found, LockedTable, Tables, page_of, pages_from};
pub use unmap::{FreeableRange, Unmapper, Zap};
pub use walk::{MappedPage, SwappedRun, WalkEntry, WalkStep, Walker};

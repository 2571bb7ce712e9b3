//! Address spaces: faults, and Linux's memory calls.
//!
//! [`Spaces`] has all address spaces of one machine; [`Space`] is a handle to one address space; its methods
//! are Linux's memory calls with Linux's results. How a fault, a call and a gather fit together, and which
//! lock orders what, is described in docs/space.md and docs/locking.md.
//!
//! # Modules, lowest first
//!
//! - `error`: Linux's errors, one for each cause.
//! - `commit`: committed memory.
//! - `spaces`: what all spaces share, and the handling of memory shortage.
//! - `mmap_writer`: the only place where mappings change.
//! - `mapping`: one mapping, as it is shown.
//! - `caller`: the space that a call is made on.
//! - `file`: files as an embedder holds them.
//! - `calls`: Linux's calls, and faults.
//! - `space`: the handle to a space, with a door for each call.
//! - `swapoff`: swapping in everything from a device.
//! - `khugepaged`: the background step that collapses page tables.
//! - `audit`: the recount of all that spaces use.

#![no_std]

#[cfg(test)]
extern crate std;

mod audit;
mod caller;
mod calls;
mod commit;
mod error;
mod file;
mod khugepaged;
mod mapping;
mod mmap_writer;
mod space;
mod spaces;
mod swapoff;

pub use audit::{SpaceViolation, audit_spaces};
pub use calls::advise::Advice;
pub use calls::lock::LockAll;
pub use calls::map_request::{MapFlags, MapRequest, MappedFile};
pub use calls::pin::PinnedPage;
pub use calls::remap_request::RemapFlags;
pub use calls::sync::SyncFlags;
pub use commit::{Commit, Overcommit};
pub use error::{Errno, Error};
pub use file::File;
pub use khugepaged::{KhugepagedStep, khugepaged_step, khugepaged_totals};
pub use mapping::Mapping;
pub use quire_fault::{FaultError, Need};
pub use quire_frame::SplitError;
pub use quire_pagetable::{FlushCause, GatherTechnique, RemapTechnique, SpaceId, TablesTechnique};
pub use quire_thp::{
    HugeConfig, HugeControls, HugeDefrag, HugeEffort, HugeEnabled, HugePolicy, HugeUse, KhugepagedConfig,
    KhugepagedSetting, OutOfRange, SizeEnabled,
};
pub use quire_vma::{
    AnonVmaViolation, ExecGain, FileRmapViolation, HugeDisable, HugePages, Layout, Limits, Protection,
    Rights, SMAPS_MNEMONICS, STACK_GUARD_GAP, SpaceFigures, VmFlags,
};
pub use quire_vma_tree::tree::TreeViolation;
pub use space::{
    AnonymousPlace, MappingFigures, OOM_SCORE_ADJ_NEVER, PageState, Reap, ReclaimHandle, Resident, Space,
    SpaceFiles, SpaceMappings, SpaceOom, SpacePrctl, finish_exits, for_each_resident, without_population,
};
pub use spaces::{NoReclaim, OomAction, OomOutcome, Reclaim, Reclaiming, Spaces, SpacesConfig, Victims};
pub use swapoff::{SwapOffError, swapoff, swapon};

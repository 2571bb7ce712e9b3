//! Address spaces: page tables, VMAs, faults and the memory calls.
//!
//! [`Spaces`] has all address spaces of one machine; [`Space`] is a handle to one address space, whose
//! methods are Linux's memory calls with Linux's results. How a fault, a call and a gather fit together, and
//! which lock orders what, is described in docs/space.md and docs/locking.md.

#![no_std]

#[cfg(any(test, loom))]
extern crate std;

mod audit;
mod calls;
mod collapse;
mod commit;
mod cow;
mod cpus;
mod deferred;
mod error;
mod fault;
mod fork_sequence;
mod gather;
mod huge;
mod huge_zero;
mod isolated;
mod khugepaged;
mod layout;
mod mmap_writer;
mod pageout;
mod readahead;
mod refault;
mod referenced;
mod residency;
mod resolve;
mod rights;
mod rmap;
mod shortage;
mod space;
mod spaces;
mod split;
mod swap_in;
mod swapoff;
mod table;
mod usage;
mod vma;
mod zeros;

pub use audit::SpaceViolation;
pub use calls::{
    Advice, LockAll, MapFlags, MapRequest, MappedFile, MappingFigures, PageState, PinnedPage, RemapFlags,
    SyncFlags,
};
pub use commit::{Commit, Overcommit};
pub use cpus::FlushCause;
pub use error::{Errno, Error, FaultError};
pub use huge::{
    HugeConfig, HugeControls, HugeDefrag, HugeDisable, HugeEffort, HugeEnabled, HugePolicy, HugeUse,
    KhugepagedConfig, KhugepagedSetting, OrderSet, OutOfRange, SizeEnabled,
};
pub use isolated::MemcgChangeError;
pub use khugepaged::KhugepagedStep;
pub use layout::{Layout, Limits, STACK_GUARD_GAP};
pub use pageout::{UnmapBatch, Unmapped};
pub use quire_frame::SplitError;
pub use quire_vma_tree::tree::TreeViolation;
pub use referenced::{LockFound, Referenced};
pub use rights::{ExecGain, Rights};
pub use rmap::AnonVmaViolation;
pub use space::{Mapping, Space, SpaceId};
pub use spaces::{Need, NoReclaim, OomAction, Reclaim, Spaces, SpacesConfig};
pub use swapoff::SwapOffError;
pub use table::{GatherTechnique, RemapTechnique, TablesTechnique};
pub use usage::SpaceFigures;
pub use vma::{HugePages, Protection, SMAPS_MNEMONICS, VmFlags};

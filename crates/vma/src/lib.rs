//! VMAs, their anon_vmas, and the rmap: from a page to the mappings that may map it.
//!
//! [`SpaceCore`] is what all handles of one address space share: its mappings, its page tables, its limits. A
//! [`Vma`] with private pages is in an [`AnonVma`], which the descriptors of those pages name; [`Rmap`] walks
//! from there to every mapping. docs/space.md and docs/locking.md say which lock orders what.
//!
//! # Modules, lowest first
//!
//! - `flags`: the flags of a mapping.
//! - `huge_disable`: whether a process gets large folios at all.
//! - `rights`: privileges beyond the limits, and rights that a program gave up.
//! - `layout`: the layout of an address space, and its limits.
//! - `fork_sequence`: forks of a space, as seen by lock-free pins.
//! - `readahead`: how much is read ahead in a mapping.
//! - `swap_window`: how far the swap-ins of a mapping reach.
//! - `lock`: the lock of a VMA.
//! - `reap_patience`: how long the OOM killer waits for a killed program whose mmap lock is taken.
//! - `usage`: the sizes of an address space's mappings.
//! - `space_core`: VMAs, anon_vmas, and what they belong to.
//! - `exits`: handles of reclaim, and the spaces that wait for their exit.
//! - `hugetlb`: mappings of hugetlb pages.
//! - `rmap`: making anon_vmas, and the walk from a page to its mappings.
//! - `audit`: the auditor's recount of anon_vmas.
//! - `file_audit`: the auditor's recount of the mappings of files.

#![no_std]

#[cfg(any(test, loom))]
extern crate std;

mod audit;
mod exits;
mod file_audit;
mod flags;
mod fork_sequence;
mod huge_disable;
mod hugetlb;
mod layout;
mod lock;
mod readahead;
mod reap_patience;
mod rights;
mod rmap;
mod space_core;
mod swap_window;
mod usage;

pub use audit::{AnonVmaAudit, AnonVmaViolation};
pub use exits::{Exits, SpaceHold};
pub use file_audit::{FileRmapAudit, FileRmapViolation};
pub use flags::{Protection, SMAPS_MNEMONICS, VmFlags};
pub use fork_sequence::ForkSequence;
pub use huge_disable::{AtomicHugeDisable, HugeDisable};
pub use hugetlb::{HugePages, may_split};
pub use layout::{AtomicLimits, Layout, Limits, STACK_GUARD_GAP};
pub use lock::{LockSequence, VmaLock};
pub use readahead::{READAHEAD_MOST, Readahead};
pub use reap_patience::ReapPatience;
pub use rights::{AtomicExecGain, ExecGain, Rights};
pub use rmap::{Branch, Emptied, FileRmap, Freed, HeldMappings, Mapped, Rmap, RmapLocks, RmapState};
pub use space_core::{
    AnonVma, AnonVmaRef, Backing, Mappings, Proposal, SpaceCore, SpaceLink, Vma, VmaSnapshot,
};
pub use swap_window::SwapInWindow;
pub use usage::{SpaceFigures, Usage};

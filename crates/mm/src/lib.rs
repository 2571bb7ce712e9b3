//! One machine's memory, put together.
//!
//! [`Memory`] is what an operating system, a hypervisor or a test links: given a
//! [`Platform`](quire_arch::Platform), it takes over the machine's RAM and hands out address spaces. Many can
//! live in one process. Around it: the choice of [`Techniques`], the auditor, texts in the format of `/proc`,
//! and Linux's system calls as numbers ([`abi`]).
//!
//! # Modules, lowest first
//!
//! - `abi`: Linux's memory calls as a program makes them: numbers in, a number out.
//! - `techniques`: which techniques a machine runs with.
//! - `memory`: the whole of a machine's memory, and its auditor.
//! - `text`: texts in the format of Linux's `/proc` and debugfs, as tools read them.

#![no_std]

pub mod abi;
mod memory;
mod techniques;
pub mod text;

pub use memory::{AuditSummary, BuildError, InUse, Memory, MemoryConfig, Violation};
pub use quire_frame::{AllocError, FolioCounter, PcpTechnique, SplitError, VmEvent};
pub use quire_memcg::{
    Belonging, Limit, LruList, MemcgError, MemcgEvent, MemcgId, MemcgStat, MemcgViolation, Memcgs,
};
pub use quire_reclaim::KswapdStep;
pub use quire_space::{
    Advice, AnonVmaViolation, Errno, Error, ExecGain, FaultError, FlushCause, GatherTechnique, HugeConfig,
    HugeControls, HugeDefrag, HugeDisable, HugeEffort, HugeEnabled, HugePages, HugePolicy, HugeUse,
    KhugepagedConfig, KhugepagedSetting, Layout, Limits, LockAll, MapFlags, MapRequest, MappedFile, Mapping,
    MappingFigures, OomAction, OrderSet, OutOfRange, Overcommit, PageState, PinnedPage, Protection,
    RemapFlags, RemapTechnique, Resident, Rights, SMAPS_MNEMONICS, SizeEnabled, Space, SpaceFigures, SpaceId,
    SpaceViolation, SwapOffError, SyncFlags, TablesTechnique, VmFlags,
};
pub use quire_swap::{
    CompressedCache, CompressedRam, DeviceError, DeviceFlags, DeviceId, DeviceReport, Direction, Lz4, PageIo,
    RamDisk, SlotId, Submitted, Swap, SwapDevice, SwapOnError, SwapOnOptions, SwapReport, SwapTechnique,
};
pub use techniques::{TechniqueError, Techniques};

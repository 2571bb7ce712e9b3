//! Address spaces: page faults, and Linux's memory calls.
//!
//! [`Space`] is a handle to one address space; [`Memory::create_space`](crate::Memory::create_space) makes
//! the first, [`Space::fork`] the others. Calls have Linux's results, error numbers and layout of mappings.
//! The [calls by number](crate::abi) are for a kernel that gets them from programs.

#[doc(inline)]
pub use quire_space::{
    Advice, Errno, Error, ExecGain, FaultError, HugePages, Layout, Limits, LockAll, MapFlags, MapRequest,
    MappedFile, Mapping, OomAction, Overcommit, PinnedPage, Protection, RemapFlags, Rights, SpaceFigures,
    SpaceId, SpaceMappings, SpaceOom, SpacePrctl, SyncFlags, VmFlags,
};

/// What an embedder takes as it is ([`Techniques::default`](crate::Techniques)).
#[doc(hidden)]
pub use quire_space::{GatherTechnique, RemapTechnique, TablesTechnique};

/// For the project's own tests and tools.
#[doc(hidden)]
pub use quire_space::{
    AnonVmaViolation, AnonymousPlace, FileRmapViolation, MappingFigures, PageState, Resident, SpaceViolation,
    without_population,
};

/// A program's memory: made, filled, shared by fork, moved and looked at.
///
/// ```
/// # use quire_host::{HostConfig, Machine};
/// use quire_mm::platform::PAGE_SIZE;
/// use quire_mm::space::{Advice, FaultError, MapRequest, Protection, RemapFlags};
///
/// # let machine: Machine = Machine::new(&HostConfig::with_ram(16 << 20), quire_mm::MemoryConfig::default())?;
/// # let cpu = machine.vcpu(0)?;
/// let space = machine.memory().create_space()?;
/// let addr = space.mmap(&MapRequest::anonymous(4 * PAGE_SIZE, Protection::READ | Protection::WRITE))?;
/// cpu.program(&space).write_u64(addr, 7)?;
///
/// // No target: it goes where there is room. With `FIXED` a target would be named.
/// let moved = space.mremap(addr, 4 * PAGE_SIZE, 64 * PAGE_SIZE, RemapFlags::MAYMOVE, None)?;
/// assert_eq!(cpu.program(&space).read_u64(moved)?, 7);
/// space.madvise(moved, PAGE_SIZE, Advice::DontNeed)?;
/// assert_eq!(cpu.program(&space).read_u64(moved)?, 0);
///
/// // What an embedder calls when an access of a program finds no translation.
/// use quire_mm::platform::{Access, VirtAddr};
/// assert_eq!(space.fault(VirtAddr(8), Access::Read), Err(FaultError::NotMapped));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
#[doc(inline)]
pub use quire_space::Space;

//! Faulting pages in before they are accessed.

use crate::caller::Caller;
use crate::calls::fault::resolve_locked;
use crate::error::Error;
use crate::spaces::Spaces;
use quire_arch::{Access, Platform, VirtAddr, VirtRange};
use quire_fault::FaultError;
use quire_frame::AllocError;
use quire_pagetable::{Tables, Walker, page_of};
use quire_vma::{SpaceCore, VmFlags, Vma};

/// Why populating stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PopulateError {
    /// A part of the range is not mapped.
    Hole,
    /// A mapping in the range does not allow the access.
    NotAllowed,
    /// The contents cannot be read, or a guard page refuses accesses.
    Bad,
    /// No memory.
    OutOfMemory(AllocError),
}

impl PopulateError {
    /// What `madvise(MADV_POPULATE_*)` returns.
    pub(crate) fn as_advice_error(self) -> Error {
        match self {
            Self::Hole => Error::NotMapped,
            Self::NotAllowed => Error::BadArgument,
            Self::Bad => Error::BadAddress,
            Self::OutOfMemory(error) => Error::NoFrames(error),
        }
    }

    /// What `mlock` returns.
    pub(crate) fn as_lock_error(self) -> Error {
        match self {
            Self::Hole | Self::NotAllowed | Self::Bad => Error::NotMapped,
            Self::OutOfMemory(error) => Error::TryAgain(error),
        }
    }
}

/// Faults every page of `range` in as `mmap` with POPULATE and `mlock` do: private writable mappings for
/// writing, others for reading; what can not be populated is left out.
pub(crate) fn populate<P: Platform>(caller: Caller<'_, P>, range: VirtRange) {
    if !caller.populates {
        return;
    }
    let mut at = range.start();
    while at < range.end() {
        // The mmap lock is released between VMAs, so that writers get their turn.
        let Some((next, _)) = populate_mapping(caller, VirtRange::new(at, range.end()), None) else {
            return;
        };
        at = next;
    }
}

/// Faults every page of `range` in, for `access` if one is given, else as [`populate`](Self::populate)
/// chooses. Ends at the first page that cannot be faulted in. A hole is such a page only if an access is
/// given: `mlock` has checked that there is none, and what was unmapped since need not be faulted in.
pub(crate) fn populate_all<P: Platform>(
    caller: Caller<'_, P>,
    range: VirtRange,
    access: Option<Access>,
) -> Result<(), PopulateError> {
    // Advice is to bring in, and nothing else.
    if !caller.populates && access.is_none() {
        return Ok(());
    }
    let mut at = range.start();
    while at < range.end() {
        let rest = VirtRange::new(at, range.end());
        let Some((next, result)) = populate_mapping(caller, rest, access) else {
            return if access.is_some() { Err(PopulateError::Hole) } else { Ok(()) };
        };
        result?;
        at = next;
    }
    Ok(())
}

/// Populates the part of `range` that the first mapping in it covers, and returns where it ends. With an
/// access given, a range that does not begin in the mapping is a hole; without, the hole is skipped.
fn populate_mapping<P: Platform>(
    caller: Caller<'_, P>,
    range: VirtRange,
    access: Option<Access>,
) -> Option<(VirtAddr, Result<(), PopulateError>)> {
    let core = caller.core;
    let mappings = core.read_mappings(caller.spaces.platform());
    let vma = mappings.first_ending_after(range.start())?;
    let whole = vma.range();
    if whole.start() >= range.end() || access.is_some() && !whole.contains(range.start()) {
        return None;
    }
    let part = whole.intersect(range);
    Some((part.end(), populate_part(caller.spaces, core, vma, part, access)))
}

/// Faults in what is missing in `part` of `vma`, for `access`. Without one it is for writing if the
/// mapping is private and writable, else for reading. The mmap lock is held in some way.
pub(crate) fn populate_part<P: Platform>(
    spaces: &Spaces<P>,
    core: &SpaceCore,
    vma: &Vma,
    part: VirtRange,
    access: Option<Access>,
) -> Result<(), PopulateError> {
    let flags = vma.flags();
    // Page frames of a device, which are not faulted in.
    let unpopulated = flags.intersects(VmFlags::IO | VmFlags::PFNMAP);
    if access.is_none() && (unpopulated || flags.contains(VmFlags::LOCKONFAULT)) {
        return Ok(());
    }
    if unpopulated {
        return Err(PopulateError::NotAllowed);
    }
    if access == Some(Access::Read) && !flags.contains(VmFlags::READ) {
        // A program could read what it may only write or execute; advice may not.
        return Err(PopulateError::NotAllowed);
    }
    let private_writable = flags & (VmFlags::WRITE | VmFlags::SHARED) == VmFlags::WRITE;
    let access = access.unwrap_or(if private_writable { Access::Write } else { Access::Read });
    let tables = Tables::new(spaces.memory(), &core.tables);
    let mut from = part.start();
    // Resident pages are skipped.
    while let Some(addr) = Walker::new(&tables).first_missing(VirtRange::new(from, part.end()), access) {
        resolve_locked(spaces, core, vma, addr, access).map_err(|error| match error {
            // The mapping is there, so this is a guard page.
            FaultError::NotMapped | FaultError::Bus | FaultError::PastEnd => PopulateError::Bad,
            FaultError::AccessDenied => PopulateError::NotAllowed,
            FaultError::Killed => PopulateError::OutOfMemory(AllocError::OutOfMemory),
            FaultError::OutOfMemory(error) => PopulateError::OutOfMemory(error),
        })?;
        from = page_of(addr).end();
    }
    Ok(())
}

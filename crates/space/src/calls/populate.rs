//! Faulting pages in before they are accessed.

use crate::error::{Error, FaultError};
use crate::space::{Space, page_of};
use crate::vma::{VmFlags, Vma};
use quire_arch::{Access, Platform, VirtAddr, VirtRange};

/// Why populating stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PopulateError {
    /// A part of the range is not mapped.
    Hole,
    /// A mapping in the range does not allow the access.
    NotAllowed,
    /// The contents cannot be read.
    Bad,
    /// No memory.
    OutOfMemory(quire_frame::AllocError),
}

impl<P: Platform> Space<'_, P> {
    /// Faults every page of `range` in as `mmap` with POPULATE and `mlock` do: private writable mappings for
    /// writing, others for reading; what can not be populated is left out.
    pub(crate) fn populate(&self, range: VirtRange) {
        let mut at = range.start();
        while at < range.end() {
            // The mmap lock is released between VMAs, so that writers get their turn.
            let Some((next, _)) = self.populate_mapping(VirtRange::new(at, range.end()), None) else {
                return;
            };
            at = next;
        }
    }

    /// Faults every page of `range` in, for `access` if one is given, else as [`populate`](Self::populate)
    /// chooses. Ends at the first page that cannot be faulted in. A hole is such a page only where an access
    /// is given: `mlock` has seen that there is none, and what was unmapped since then need not be faulted
    /// in.
    pub(crate) fn populate_all(&self, range: VirtRange, access: Option<Access>) -> Result<(), PopulateError> {
        let mut at = range.start();
        while at < range.end() {
            let rest = VirtRange::new(at, range.end());
            let Some((next, result)) = self.populate_mapping(rest, access) else {
                return if access.is_some() { Err(PopulateError::Hole) } else { Ok(()) };
            };
            result?;
            at = next;
        }
        Ok(())
    }

    /// Populates the part of `range` that the first mapping in it covers, and returns where it ends. With an
    /// access given, a range that does not begin in the mapping is a hole; without, the hole is skipped.
    fn populate_mapping(
        &self,
        range: VirtRange,
        access: Option<Access>,
    ) -> Option<(VirtAddr, Result<(), PopulateError>)> {
        let core = self.core();
        let _guard = core.mmap_lock.read(self.spaces.platform());
        // SAFETY: the mmap lock is held.
        let entry = unsafe { core.vmas.view() }.first_ending_after(range.start())?;
        if entry.range.start() >= range.end() || access.is_some() && !entry.range.contains(range.start()) {
            return None;
        }
        // SAFETY: a VMA in the tree is live while the mmap lock is held.
        let vma = unsafe { entry.value.as_ref() };
        let part = entry.range.intersect(range);
        Some((part.end(), self.populate_part(vma, part, access)))
    }

    /// Populates `part` of `vma`, as above. The mmap lock is held in some way.
    pub(crate) fn populate_part(
        &self,
        vma: &Vma,
        part: VirtRange,
        access: Option<Access>,
    ) -> Result<(), PopulateError> {
        let flags = vma.flags();
        if access.is_none() && flags.intersects(VmFlags::IO | VmFlags::PFNMAP | VmFlags::LOCKONFAULT) {
            return Ok(());
        }
        if access == Some(Access::Read) && !flags.contains(VmFlags::READ) {
            // A program could read what it may only write or run; advice may not.
            return Err(PopulateError::NotAllowed);
        }
        let private_writable = flags & (VmFlags::WRITE | VmFlags::SHARED) == VmFlags::WRITE;
        let access = access.unwrap_or(if private_writable { Access::Write } else { Access::Read });
        let mut from = part.start();
        // What is there already is passed over.
        while let Some(addr) = self.tables().first_missing(VirtRange::new(from, part.end()), access) {
            self.resolve_locked(vma, addr, access).map_err(|error| match error {
                FaultError::NotMapped => PopulateError::Hole,
                FaultError::AccessDenied => PopulateError::NotAllowed,
                FaultError::Bus => PopulateError::Bad,
                FaultError::Killed => PopulateError::OutOfMemory(quire_frame::AllocError::OutOfMemory),
                FaultError::OutOfMemory(error) => PopulateError::OutOfMemory(error),
            })?;
            from = page_of(addr).end();
        }
        Ok(())
    }
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

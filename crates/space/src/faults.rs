//! Faults in a mapping that is held, by its own lock or by the mmap lock.

use crate::error::Error;
use crate::resolve::Resolver;
use crate::spaces::{Attempts, Spaces};
use quire_arch::{Access, Pin, Platform, VirtAddr, VirtRange};
use quire_frame::AllocError;
use quire_pagetable::{Tables, Walker, page_of};
use quire_paging::{FaultError, Refusal, SwappedIn, VmFault};
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

/// The faults of one space.
pub(crate) struct Faults<'s, P: Platform> {
    pub(crate) spaces: &'s Spaces<P>,
    pub(crate) core: &'s SpaceCore,
}

impl<'s, P: Platform> Faults<'s, P> {
    fn tables(&self) -> Tables<'s, P> {
        Tables::new(self.spaces.memory(), &self.core.tables)
    }

    /// Makes the access possible in `vma`, which is held by its own lock or by the mmap lock. The caller is
    /// in a section of the epoch.
    #[inline]
    pub(crate) fn resolve_in(
        &self,
        pin: &Pin<'_, P>,
        vma: &Vma,
        addr: VirtAddr,
        access: Access,
        swapped: Option<&SwappedIn<'_, P>>,
    ) -> Result<(), Refusal> {
        let (space, huge) = (self.core, self.spaces.huge());
        let window = &vma.swap_window;
        let fault = VmFault { space, vma: &vma.snapshot(), addr, access, swapped, window, huge };
        Resolver { tables: self.tables(), thp: self.spaces.thp(), pin, fault }.resolve()
    }

    /// Resolves a fault in `vma`. The mmap lock is held in some way.
    pub(crate) fn resolve_locked(&self, vma: &Vma, addr: VirtAddr, access: Access) -> Result<(), FaultError> {
        let mut attempts = Attempts::new();
        loop {
            match self.resolve_once(vma, addr, access, attempts.swapped.as_ref()) {
                Ok(()) => return Ok(()),
                Err(_) if self.core.is_killed() => return Err(FaultError::Killed),
                Err(refusal) => {
                    self.spaces.direct_reclaim().resolve_refusal(self.core, refusal, &mut attempts)?;
                }
            }
        }
    }

    /// The same, until something prevents it.
    pub(crate) fn resolve_once(
        &self,
        vma: &Vma,
        addr: VirtAddr,
        access: Access,
        swapped: Option<&SwappedIn<'_, P>>,
    ) -> Result<(), Refusal> {
        loop {
            let resolved = {
                let pin = self.spaces.platform().pin();
                let _section = self.spaces.frames().epoch().enter(&pin);
                self.resolve_in(&pin, vma, addr, access, swapped)
            };
            match resolved {
                Err(Refusal::NeedsAnonVma) => self.give_anon_vma(vma)?,
                result => return result,
            }
        }
    }

    /// Gives `vma` the anon_vma of its private pages: a neighbour's if the two could be one VMA but for their
    /// permissions, else a new one. The mmap lock is held in some way, and the caller is not pinned.
    pub(crate) fn give_anon_vma(&self, vma: &Vma) -> Result<(), AllocError> {
        let snapshot = vma.snapshot();
        if snapshot.anon.is_some() {
            return Ok(());
        }
        // SAFETY: the mmap lock is held. If a section has it, it changes nothing meanwhile.
        let view = unsafe { self.core.vmas.view() };
        let neighbours = [
            view.first_ending_after(snapshot.range.end()),
            view.last_starting_before(snapshot.range.start()),
        ];
        let shared = neighbours
            .into_iter()
            .flatten()
            // SAFETY: a VMA in the tree is live while the mmap lock is held.
            .map(|entry| unsafe { entry.value.as_ref() }.snapshot())
            .find_map(|neighbour| neighbour.anon_vma_to_share(&snapshot));
        self.spaces.rmap().give_first_anon_vma(self.core, vma, shared)
    }

    /// Faults in what is missing in `part` of `vma`, for `access`. Without one it is for writing if the
    /// mapping is private and writable, else for reading. The mmap lock is held in some way.
    pub(crate) fn populate_part(
        &self,
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
        let mut from = part.start();
        // Resident pages are skipped.
        while let Some(addr) =
            Walker::new(&self.tables()).first_missing(VirtRange::new(from, part.end()), access)
        {
            self.resolve_locked(vma, addr, access).map_err(|error| match error {
                // The mapping is there, so this is a guard page.
                FaultError::NotMapped | FaultError::Bus => PopulateError::Bad,
                FaultError::AccessDenied => PopulateError::NotAllowed,
                FaultError::Killed => PopulateError::OutOfMemory(AllocError::OutOfMemory),
                FaultError::OutOfMemory(error) => PopulateError::OutOfMemory(error),
            })?;
            from = page_of(addr).end();
        }
        Ok(())
    }
}

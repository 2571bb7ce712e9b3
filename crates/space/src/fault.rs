//! Page faults.
//!
//! The usual fault takes no lock on the space: it looks the VMA up under the epoch, takes the VMA's own lock,
//! finds or makes the tables, gets a page, and installs it under the table's lock. Whatever does not fit (no
//! VMA found, one that a writer holds, the first private page of a VMA, a stack that must grow) takes the
//! slow path, under the mmap lock.

use crate::error::{Error, FaultError};
use crate::mmap_writer::{MmapWriter, vma_key};
use crate::space::Space;
use crate::swap_in::{Swapped, SwappedIn};
use crate::table::Tables;
use crate::vma::{AnonVmaRef, VmFlags, Vma, VmaSnapshot};
use quire_arch::{Access, Platform, VirtAddr};
use quire_frame::{AllocError, VmEvent};
use quire_memcg::{MemcgStat, OverLimit};
use quire_sync::EpochGuard;

/// Times that a VMA is looked for again beside a change of mappings.
const LOOKS: u32 = 32;

/// Why a look for a VMA without a lock held none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LookupMiss {
    /// It is about to change, or to be removed.
    Changing,
    /// There is none, or the tree was changing and led elsewhere.
    NotFoundOrRaced,
}

/// Why a page could not be made available under the lock that was held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// The program gets this.
    Fault(FaultError),
    /// The VMA needs its anon_vma first, and that takes the mmap lock.
    NeedsAnonVma,
    /// The page is to be swapped in first.
    Swapped(Swapped),
    /// A memcg is at its limit.
    OverLimit(OverLimit),
}

impl From<FaultError> for Refusal {
    fn from(error: FaultError) -> Self {
        Self::Fault(error)
    }
}

impl From<OverLimit> for Refusal {
    fn from(over: OverLimit) -> Self {
        Self::OverLimit(over)
    }
}

impl From<AllocError> for Refusal {
    fn from(error: AllocError) -> Self {
        Self::Fault(FaultError::OutOfMemory(error))
    }
}

/// A VMA held shared by its own lock.
struct VmaHold<'s, P: Platform> {
    platform: &'s P,
    vma: &'s Vma,
}

impl<P: Platform> Drop for VmaHold<'_, P> {
    #[inline]
    fn drop(&mut self) {
        self.vma.lock.unlock_read(|| self.platform.unpark(vma_key(self.vma)));
    }
}

impl<P: Platform> Space<'_, P> {
    /// Makes the access `access` to `addr` possible, or says why it is not allowed. Called by a CPU whose MMU
    /// could not translate; the CPU then tries again.
    ///
    /// # Errors
    ///
    /// What the program gets instead: a signal, or `OutOfMemory`, for the OOM killer.
    #[inline]
    pub fn fault(&self, addr: VirtAddr, access: Access) -> Result<(), FaultError> {
        let group = self.core().memcg();
        if !group.is_root() {
            // Before there is a page: what was just mapped could be the first to be reclaimed, and the
            // program would make no progress.
            self.spaces.reclaim().throttle(self.spaces, group);
        }
        match self.fault_once(addr, access) {
            Ok(()) => Ok(()),
            Err(refusal) => self.fault_again(addr, access, refusal),
        }
    }

    /// Goes on where a fault was refused: nothing is held, so that what is in the way can be waited for.
    #[cold]
    fn fault_again(&self, addr: VirtAddr, access: Access, refusal: Refusal) -> Result<(), FaultError> {
        let mut refusal = refusal;
        let mut swapped = None;
        loop {
            if self.core().is_killed() {
                return Err(FaultError::Killed);
            }
            if let Refusal::Swapped(wanted) = refusal {
                // Its lock must not be held while another is waited for.
                drop(swapped.take());
                self.read_ahead(addr, wanted.entry);
            }
            // A folio that was swapped in stays locked while memory is freed for what else is needed, perhaps
            // a copy of it. Else it might be all that can be reclaimed, and be swapped in and out for ever.
            if let Some(came) = self.spaces.resolve_refusal(refusal)? {
                self.note_read_ahead(addr, came.head());
                swapped = Some(came);
            }
            match self.fault_fast(addr, access, 0, swapped.as_ref()) {
                Some(Ok(())) => return Ok(()),
                Some(Err(next)) => refusal = next,
                None => {
                    // The mmap lock comes before folio locks.
                    drop(swapped);
                    return self.fault_locked(addr, |vma| self.resolve_locked(vma, addr, access));
                }
            }
        }
    }

    #[inline]
    fn fault_once(&self, addr: VirtAddr, access: Access) -> Result<(), Refusal> {
        match self.fault_fast(addr, access, 1, None) {
            Some(result) => result,
            None => self.fault_locked(addr, |vma| self.resolve_once(vma, addr, access, None)),
        }
    }

    /// Calls `inside` with the mapping of `addr`, if that is possible without a lock on all of them.
    pub(crate) fn with_vma<R>(
        &self,
        addr: VirtAddr,
        inside: impl FnOnce(&Tables<'_, P>, &Vma) -> R,
    ) -> Option<R> {
        let pin = self.spaces.platform().pin();
        let epoch = self.spaces.frames().epoch().enter(&pin);
        let hold = self.find_and_hold(&epoch, addr)?;
        Some(inside(&self.tables(), hold.vma))
    }

    /// The usual fault, without the mmap lock. `None` if that is needed.
    #[inline]
    fn fault_fast(
        &self,
        addr: VirtAddr,
        access: Access,
        counted: u64,
        swapped: Option<&SwappedIn<'_, P>>,
    ) -> Option<Result<(), Refusal>> {
        let pin = self.spaces.platform().pin();
        self.spaces.frames().events().add(&pin, VmEvent::Pgfault, counted);
        // To the end: the lock of the VMA keeps neither its tables nor itself.
        let epoch = self.spaces.frames().epoch().enter(&pin);
        let groups = self.spaces.memcgs();
        groups.add_stat(&pin, self.memcg(), MemcgStat::Pgfault, counted as i64);
        let hold = self.find_and_hold(&epoch, addr)?;
        match self.tables().resolve(&pin, hold.vma, addr, access, swapped) {
            Err(Refusal::NeedsAnonVma) => None,
            result => Some(result),
        }
    }

    /// Finds the VMA of `addr` without a lock and holds it by its own.
    #[inline]
    fn find_and_hold(&self, epoch: &EpochGuard<'_>, addr: VirtAddr) -> Option<VmaHold<'_, P>> {
        match self.hold_vma(epoch, addr) {
            Ok(hold) => Some(hold),
            Err(missed) => self.look_again(epoch, addr, missed),
        }
    }

    /// Where a change of other mappings was in the way of the look, it is over in a moment, while the mmap
    /// lock may be held for long.
    #[cold]
    fn look_again(
        &self,
        epoch: &EpochGuard<'_>,
        addr: VirtAddr,
        mut missed: LookupMiss,
    ) -> Option<VmaHold<'_, P>> {
        let mut attempt = 0;
        while missed == LookupMiss::NotFoundOrRaced
            && attempt < LOOKS
            && self.core().mmap_lock.is_write_locked()
        {
            P::relax(attempt);
            attempt += 1;
            match self.hold_vma(epoch, addr) {
                Ok(hold) => return Some(hold),
                Err(again) => missed = again,
            }
        }
        None
    }

    #[inline]
    fn hold_vma(&self, epoch: &EpochGuard<'_>, addr: VirtAddr) -> Result<VmaHold<'_, P>, LookupMiss> {
        let core = self.core();
        let platform = self.spaces.platform();
        // SAFETY: nodes are retired through the epoch of the page-frame allocator, which the guards of this
        // module are of.
        let found = unsafe { core.vmas.find_lockless(addr, epoch) }.ok_or(LookupMiss::NotFoundOrRaced)?;
        // SAFETY: a VMA that was found under the epoch is not reused before the section of the epoch ends,
        // and one that is held shared is not retired before its lock is released.
        let vma: &Vma = unsafe { &*found.as_ptr() };
        let locked = vma.lock.try_read(&core.sequence, || platform.unpark(vma_key(vma)));
        // What the lookup saw may have been torn: only now, under the lock, is the range valid.
        let holds = vma.range().contains(addr);
        if locked {
            let hold = VmaHold { platform, vma };
            if holds { Ok(hold) } else { Err(LookupMiss::NotFoundOrRaced) }
        } else if holds {
            Err(LookupMiss::Changing)
        } else {
            Err(LookupMiss::NotFoundOrRaced)
        }
    }

    /// Finds the mapping of `addr` under the mmap lock, or makes a stack grow to it, and calls `resolve` for
    /// it.
    #[cold]
    fn fault_locked<E: From<FaultError>>(
        &self,
        addr: VirtAddr,
        resolve: impl Fn(&Vma) -> Result<(), E>,
    ) -> Result<(), E> {
        let core = self.core();
        loop {
            {
                let _guard = core.mmap_lock.read(self.spaces.platform());
                // SAFETY: the mmap lock is held.
                let view = unsafe { core.vmas.view() };
                let entry = view.first_ending_after(addr).ok_or(FaultError::NotMapped)?;
                // SAFETY: a VMA in the tree is live while the mmap lock is held.
                let vma = unsafe { entry.value.as_ref() };
                if entry.range.contains(addr) {
                    return resolve(vma);
                }
                if !vma.flags().is_stack() {
                    return Err(FaultError::NotMapped.into());
                }
            }
            // The mmap lock is dropped in between, so everything is looked up again afterwards.
            let grown = MmapWriter::of(self).grow_stack(self, addr);
            grown.map_err(|error| match error {
                Error::NoFrames(cause) => FaultError::OutOfMemory(cause),
                _ => FaultError::NotMapped,
            })?;
        }
    }

    /// Resolves a fault in `vma`. The mmap lock is held in some way.
    pub(crate) fn resolve_locked(&self, vma: &Vma, addr: VirtAddr, access: Access) -> Result<(), FaultError> {
        let mut swapped = None;
        loop {
            match self.resolve_once(vma, addr, access, swapped.as_ref()) {
                Ok(()) => return Ok(()),
                Err(refusal) => {
                    if matches!(refusal, Refusal::Swapped(_)) {
                        drop(swapped.take());
                    }
                    if self.core().is_killed() {
                        return Err(FaultError::Killed);
                    }
                    // As in `fault_again`.
                    if let Some(came) = self.spaces.resolve_refusal(refusal)? {
                        swapped = Some(came);
                    }
                }
            }
        }
    }

    /// The same, until something is in the way.
    fn resolve_once(
        &self,
        vma: &Vma,
        addr: VirtAddr,
        access: Access,
        swapped: Option<&SwappedIn<'_, P>>,
    ) -> Result<(), Refusal> {
        loop {
            let resolved = {
                let pin = self.spaces.platform().pin();
                self.tables().resolve(&pin, vma, addr, access, swapped)
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
        let facts = vma.facts();
        if facts.anon.is_some() {
            return Ok(());
        }
        // SAFETY: the mmap lock is held.
        let view = unsafe { self.core().vmas.view() };
        let neighbours =
            [view.first_ending_after(facts.range.end()), view.last_starting_before(facts.range.start())];
        let shared = neighbours
            .into_iter()
            .flatten()
            // SAFETY: a VMA in the tree is live while the mmap lock is held.
            .map(|entry| unsafe { entry.value.as_ref() }.facts())
            .find_map(|neighbour| neighbour.anon_vma_to_share(&facts));
        self.spaces.give_first_anon_vma(self.core(), vma, shared)
    }
}

impl VmaSnapshot {
    /// This VMA's anon_vma, if `other`, its neighbour, may use it too.
    fn anon_vma_to_share(&self, other: &Self) -> Option<AnonVmaRef> {
        let (low, high) =
            if self.range.start() < other.range.start() { (self, other) } else { (other, self) };
        let alike = low.range.end() == high.range.start()
            && low.backing == high.backing
            && (low.flags ^ high.flags).difference(VmFlags::ACCESS).is_empty()
            && low.page_offset_at(high.range.start()) == high.page_offset;
        (alike && self.anon.is_some() && !self.anon.is_inherited()).then_some(self.anon)
    }
}

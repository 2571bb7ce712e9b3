//! Page faults.
//!
//! The usual fault takes no lock on the space: it looks the VMA up under the epoch, takes the VMA's own lock,
//! finds or makes the tables, gets a page, and installs it under the table's lock. All other cases (no VMA
//! found, one that a writer holds, the first private page of a VMA, a stack that must grow) take the slow
//! path, under the mmap lock.

use crate::error::Error;
use crate::mmap_writer::stack::grow_stack;
use crate::mmap_writer::vma_key;
use crate::space::Space;
use crate::spaces::Attempts;
use quire_arch::PAGE_SHIFT;
use quire_arch::Pfn;
use quire_arch::SwapEntry;
use quire_arch::{Access, Platform, VirtAddr};
use quire_frame::FrameFlags;
use quire_frame::VmEvent;
use quire_memcg::MemcgStat;
use quire_pagetable::Tables;
use quire_paging::Ahead;
use quire_paging::Refusal;
use quire_paging::SwapIn;
use quire_paging::swapped_around;
use quire_paging::{FaultError, SwappedIn};
use quire_rmap::READAHEAD_MOST;
use quire_rmap::Vma;
use quire_swap::SlotId;
use quire_sync::EpochGuard;
use quire_thp::OrderSet;

/// Retries of a VMA lookup during a change of mappings.
const LOOKS: u32 = 32;

/// Why a lock-free VMA lookup failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LookupMiss {
    /// It is about to change, or to be removed.
    Changing,
    /// There is none, or the tree was changing during the lookup.
    NotFoundOrRaced,
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
        let memcg = self.core().memcg();
        if !memcg.is_root() {
            // Before the page is mapped: a page just mapped could be reclaimed first, and the program would
            // make no progress.
            self.spaces.reclaim().throttle(self.spaces, memcg);
        }
        match self.fault_once(addr, access) {
            Ok(()) => Ok(()),
            Err(refusal) => self.fault_again(addr, access, refusal),
        }
    }

    /// Continues after a refused fault: nothing is held, so that this can wait.
    #[cold]
    fn fault_again(&self, addr: VirtAddr, access: Access, refusal: Refusal) -> Result<(), FaultError> {
        let mut refusal = refusal;
        let mut attempts = Attempts::new();
        loop {
            if self.core().is_killed() {
                return Err(FaultError::Killed);
            }
            if let Refusal::Swapped(wanted) = refusal {
                // Its lock must not be held while another is waited for.
                drop(attempts.swapped.take());
                self.read_ahead(addr, wanted.entry);
            }
            self.spaces.direct_reclaim().resolve_refusal(self.core(), refusal, &mut attempts)?;
            if let (Refusal::Swapped(_), Some(came)) = (refusal, &attempts.swapped) {
                self.note_read_ahead(addr, came.head());
            }
            match self.fault_fast(addr, access, 0, attempts.swapped.as_ref()) {
                Some(Ok(())) => return Ok(()),
                Some(Err(next)) => refusal = next,
                None => {
                    // The mmap lock comes before folio locks.
                    drop(attempts);
                    return self.fault_locked(addr, |vma| self.faults().resolve_locked(vma, addr, access));
                }
            }
        }
    }

    #[inline]
    fn fault_once(&self, addr: VirtAddr, access: Access) -> Result<(), Refusal> {
        match self.fault_fast(addr, access, 1, None) {
            Some(result) => result,
            None => self.fault_locked(addr, |vma| self.faults().resolve_once(vma, addr, access, None)),
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
        let memcgs = self.spaces.memcgs();
        memcgs.counters().add_stat(&pin, self.memcg(), MemcgStat::Pgfault, counted as i64);
        let hold = self.find_and_hold(&epoch, addr)?;
        match self.faults().resolve_in(&pin, hold.vma, addr, access, swapped) {
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

    /// A change of other mappings that disturbed the lookup ends soon, while the mmap lock may be held for
    /// long.
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
        let mut attempts = Attempts::new();
        loop {
            {
                let mappings = core.read_mappings(self.spaces.platform());
                let vma = mappings.first_ending_after(addr).ok_or(FaultError::NotMapped)?;
                if vma.range().contains(addr) {
                    return resolve(vma);
                }
                if !vma.flags().is_stack() {
                    return Err(FaultError::NotMapped.into());
                }
            }
            // The mmap lock is dropped in between, so everything is looked up again afterwards.
            let grown = grow_stack(&mut self.writer(), addr);
            match grown {
                Ok(()) => {}
                // Each time that there is none, as for the page itself: others may be faster to take what was
                // freed.
                Err(Error::NoFrames(_)) if core.is_killed() => return Err(FaultError::Killed.into()),
                Err(Error::NoFrames(cause)) => {
                    let refusal = Refusal::Fault(FaultError::OutOfMemory(cause));
                    self.spaces.direct_reclaim().resolve_refusal(core, refusal, &mut attempts)?;
                }
                Err(_) => return Err(FaultError::NotMapped.into()),
            }
        }
    }

    /// Starts readahead after the page at `addr`, whose swap entry is `entry`. Nothing is held.
    #[cold]
    pub(crate) fn read_ahead(&self, addr: VirtAddr, entry: SwapEntry) {
        let slot = SlotId::of(entry);
        let swap = self.spaces.swap();
        if swap.io().is_synchronous(slot) || swap.counts().is_cached(slot) {
            return;
        }
        let found = self.with_vma(addr, |tables, vma| {
            let (first, pages) = vma.readahead.window(addr.0 >> PAGE_SHIFT);
            if swap.io().seeks(slot) { None } else { Some(swapped_around(tables, vma, (first, pages), addr)) }
        });
        let ahead = match found {
            None => return,
            Some(Some(ahead)) => ahead,
            // Neighbouring slots, whichever spaces name them.
            Some(None) => {
                let first = slot.number() & !(READAHEAD_MOST - 1);
                (first..first + READAHEAD_MOST).map(|number| SlotId::new(slot.device(), number)).collect()
            }
        };
        for other in ahead {
            let swap_in = SwapIn::new(self.spaces.memory(), &self.core().tables);
            if other != slot && swap_in.begin_ahead(other, OrderSet::EMPTY, Ahead::Guessed).is_err() {
                return;
            }
        }
    }

    /// Readahead hit.
    pub(crate) fn note_read_ahead(&self, addr: VirtAddr, head: Pfn) {
        let frame = self.spaces.frames().known(head);
        let before = frame.clear_flags(FrameFlags::READAHEAD);
        if before.is_some_and(|flags| flags.contains(FrameFlags::READAHEAD)) {
            self.spaces.frames().events().add(&self.spaces.platform().pin(), VmEvent::SwapRaHit, 1);
            self.with_vma(addr, |_, vma| vma.readahead.hit(addr.0 >> PAGE_SHIFT));
        }
    }
}

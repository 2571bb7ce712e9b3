//! Page faults.
//!
//! The usual fault takes no lock on the space: it looks the VMA up under the epoch, takes the VMA's own lock,
//! finds or makes the tables, gets a page, and installs it under the table's lock. All other cases (no VMA
//! found, one that a writer holds, the first private page of a VMA, a stack that must grow) take the slow
//! path, under the mmap lock.

use crate::caller::Caller;
use crate::calls::stack::grow_stack;
use crate::error::Error;
use crate::mmap_writer::vma_key;
use crate::spaces::Attempts;
use quire_arch::{Access, PAGE_SHIFT, Pfn, Platform, SwapEntry, VirtAddr};
use quire_frame::{FrameFlags, VmEvent};
use quire_memcg::MemcgStat;
use quire_pagetable::Tables;
use quire_paging::{Ahead, FaultError, Refusal, SwapIn, SwappedIn, swapped_around};
use quire_swap::SlotId;
use quire_sync::EpochGuard;
use quire_thp::OrderSet;
use quire_vma::{READAHEAD_MOST, Vma};

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

#[inline]
pub(crate) fn fault<P: Platform>(
    caller: Caller<'_, P>,
    addr: VirtAddr,
    access: Access,
) -> Result<(), FaultError> {
    let memcg = caller.core.memcg();
    if !memcg.is_root() {
        // Before the page is mapped: a page just mapped could be reclaimed first, and the program would
        // make no progress.
        caller.spaces.reclaim().throttle(caller.spaces, memcg);
    }
    match fault_once(caller, addr, access) {
        Ok(()) => Ok(()),
        Err(refusal) => fault_again(caller, addr, access, refusal),
    }
}

/// Continues after a refused fault: nothing is held, so that this can wait.
#[cold]
fn fault_again<P: Platform>(
    caller: Caller<'_, P>,
    addr: VirtAddr,
    access: Access,
    refusal: Refusal,
) -> Result<(), FaultError> {
    let mut refusal = refusal;
    let mut attempts = Attempts::new();
    loop {
        if caller.core.is_killed() {
            return Err(FaultError::Killed);
        }
        if let Refusal::Swapped(wanted) = refusal {
            // Its lock must not be held while another is waited for.
            drop(attempts.swapped.take());
            read_ahead(caller, addr, wanted.entry);
        }
        caller.spaces.direct_reclaim().resolve_refusal(caller.core, refusal, &mut attempts)?;
        if let (Refusal::Swapped(_), Some(came)) = (refusal, &attempts.swapped) {
            note_read_ahead(caller, addr, came.head());
        }
        match fault_fast(caller, addr, access, 0, attempts.swapped.as_ref()) {
            Some(Ok(())) => return Ok(()),
            Some(Err(next)) => refusal = next,
            None => {
                // The mmap lock comes before folio locks.
                drop(attempts);
                return fault_locked(caller, addr, |vma| caller.faults().resolve_locked(vma, addr, access));
            }
        }
    }
}

#[inline]
fn fault_once<P: Platform>(caller: Caller<'_, P>, addr: VirtAddr, access: Access) -> Result<(), Refusal> {
    match fault_fast(caller, addr, access, 1, None) {
        Some(result) => result,
        None => fault_locked(caller, addr, |vma| caller.faults().resolve_once(vma, addr, access, None)),
    }
}

/// Calls `inside` with the mapping of `addr`, if that is possible without a lock on all of them.
pub(crate) fn with_vma<R, P: Platform>(
    caller: Caller<'_, P>,
    addr: VirtAddr,
    inside: impl FnOnce(&Tables<'_, P>, &Vma) -> R,
) -> Option<R> {
    let pin = caller.spaces.platform().pin();
    let epoch = caller.spaces.frames().epoch().enter(&pin);
    let hold = find_and_hold(caller, &epoch, addr)?;
    Some(inside(&caller.tables(), hold.vma))
}

/// The usual fault, without the mmap lock. `None` if that is needed.
#[inline]
fn fault_fast<P: Platform>(
    caller: Caller<'_, P>,
    addr: VirtAddr,
    access: Access,
    counted: u64,
    swapped: Option<&SwappedIn<'_, P>>,
) -> Option<Result<(), Refusal>> {
    let pin = caller.spaces.platform().pin();
    caller.spaces.frames().events().add(&pin, VmEvent::Pgfault, counted);
    // To the end: the lock of the VMA keeps neither its tables nor itself.
    let epoch = caller.spaces.frames().epoch().enter(&pin);
    let memcgs = caller.spaces.memcgs();
    memcgs.counters().add_stat(&pin, caller.core.memcg(), MemcgStat::Pgfault, counted as i64);
    let hold = find_and_hold(caller, &epoch, addr)?;
    match caller.faults().resolve_in(&pin, hold.vma, addr, access, swapped) {
        Err(Refusal::NeedsAnonVma) => None,
        result => Some(result),
    }
}

/// Finds the VMA of `addr` without a lock and holds it by its own.
#[inline]
fn find_and_hold<'s, P: Platform>(
    caller: Caller<'s, P>,
    epoch: &EpochGuard<'_>,
    addr: VirtAddr,
) -> Option<VmaHold<'s, P>> {
    match hold_vma(caller, epoch, addr) {
        Ok(hold) => Some(hold),
        Err(missed) => look_again(caller, epoch, addr, missed),
    }
}

/// A change of other mappings that disturbed the lookup ends soon, while the mmap lock may be held for
/// long.
#[cold]
fn look_again<'s, P: Platform>(
    caller: Caller<'s, P>,
    epoch: &EpochGuard<'_>,
    addr: VirtAddr,
    mut missed: LookupMiss,
) -> Option<VmaHold<'s, P>> {
    let mut attempt = 0;
    while missed == LookupMiss::NotFoundOrRaced && attempt < LOOKS && caller.core.mmap_lock.is_write_locked()
    {
        P::relax(attempt);
        attempt += 1;
        match hold_vma(caller, epoch, addr) {
            Ok(hold) => return Some(hold),
            Err(again) => missed = again,
        }
    }
    None
}

#[inline]
fn hold_vma<'s, P: Platform>(
    caller: Caller<'s, P>,
    epoch: &EpochGuard<'_>,
    addr: VirtAddr,
) -> Result<VmaHold<'s, P>, LookupMiss> {
    let core = caller.core;
    let platform = caller.spaces.platform();
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
fn fault_locked<E: From<FaultError>, P: Platform>(
    caller: Caller<'_, P>,
    addr: VirtAddr,
    resolve: impl Fn(&Vma) -> Result<(), E>,
) -> Result<(), E> {
    let core = caller.core;
    let mut attempts = Attempts::new();
    loop {
        {
            let mappings = core.read_mappings(caller.spaces.platform());
            let vma = mappings.first_ending_after(addr).ok_or(FaultError::NotMapped)?;
            if vma.range().contains(addr) {
                return resolve(vma);
            }
            if !vma.flags().is_stack() {
                return Err(FaultError::NotMapped.into());
            }
        }
        // The mmap lock is dropped in between, so everything is looked up again afterwards.
        let grown = grow_stack(&mut caller.writer(), addr);
        match grown {
            Ok(()) => {}
            // Each time that there is none, as for the page itself: others may be faster to take what was
            // freed.
            Err(Error::NoFrames(_)) if core.is_killed() => return Err(FaultError::Killed.into()),
            Err(Error::NoFrames(cause)) => {
                let refusal = Refusal::Fault(FaultError::OutOfMemory(cause));
                caller.spaces.direct_reclaim().resolve_refusal(core, refusal, &mut attempts)?;
            }
            Err(_) => return Err(FaultError::NotMapped.into()),
        }
    }
}

/// Starts readahead after the page at `addr`, whose swap entry is `entry`. Nothing is held.
#[cold]
pub(crate) fn read_ahead<P: Platform>(caller: Caller<'_, P>, addr: VirtAddr, entry: SwapEntry) {
    let slot = SlotId::of(entry);
    let swap = caller.spaces.swap();
    if swap.io().is_synchronous(slot) || swap.counts().is_cached(slot) {
        return;
    }
    let found = with_vma(caller, addr, |tables, vma| {
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
        let swap_in = SwapIn::new(caller.spaces.memory(), &caller.core.tables);
        if other != slot && swap_in.begin_ahead(other, OrderSet::EMPTY, Ahead::Guessed).is_err() {
            return;
        }
    }
}

/// Readahead hit.
pub(crate) fn note_read_ahead<P: Platform>(caller: Caller<'_, P>, addr: VirtAddr, head: Pfn) {
    let frame = caller.spaces.frames().known(head);
    let before = frame.clear_flags(FrameFlags::READAHEAD);
    if before.is_some_and(|flags| flags.contains(FrameFlags::READAHEAD)) {
        caller.spaces.frames().events().add(&caller.spaces.platform().pin(), VmEvent::SwapRaHit, 1);
        with_vma(caller, addr, |_, vma| vma.readahead.hit(addr.0 >> PAGE_SHIFT));
    }
}

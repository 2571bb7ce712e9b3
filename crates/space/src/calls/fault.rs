//! Page faults.
//!
//! The usual fault takes no lock on the space and is one attempt ([`Faults::attempt`]). All other cases (no
//! VMA found, one that a writer holds, the first private page of a VMA, a stack that must grow) take the slow
//! path, under the mmap lock. What an attempt lacks is made available before the next one.

use crate::caller::Caller;
use crate::calls::stack::grow_stack;
use crate::error::Error;
use crate::spaces::{Attempts, Spaces};
use quire_arch::{Access, Platform, VirtAddr};
use quire_fault::{FaultError, Faults, Refusal};
use quire_vma::{SpaceCore, Vma};

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
            caller.faults().read_ahead(addr, wanted.entry);
        }
        caller.spaces.direct_reclaim().resolve_refusal(caller.core, refusal, &mut attempts)?;
        if let (Refusal::Swapped(_), Some(came)) = (refusal, &attempts.swapped) {
            caller.faults().note_read_ahead(addr, came.head());
        }
        match caller.faults().attempt(addr, access, 0, attempts.swapped.as_ref()) {
            Some(Ok(())) => return Ok(()),
            Some(Err(next)) => refusal = next,
            None => {
                // The mmap lock comes before folio locks.
                drop(attempts);
                let resolve = |vma: &Vma| resolve_locked(caller.spaces, caller.core, vma, addr, access);
                return fault_locked(caller, addr, resolve);
            }
        }
    }
}

#[inline]
fn fault_once<P: Platform>(caller: Caller<'_, P>, addr: VirtAddr, access: Access) -> Result<(), Refusal> {
    match caller.faults().attempt(addr, access, 1, None) {
        Some(result) => result,
        None => fault_locked(caller, addr, |vma| {
            // SAFETY: `fault_locked` passes a mapping of the space, and holds the mmap lock meanwhile.
            unsafe { caller.faults().attempt_in(vma, addr, access, None) }
        }),
    }
}

/// Resolves a fault in `vma`, with as many attempts as it takes. The mmap lock is held in some way.
pub(crate) fn resolve_locked<P: Platform>(
    spaces: &Spaces<P>,
    core: &SpaceCore,
    vma: &Vma,
    addr: VirtAddr,
    access: Access,
) -> Result<(), FaultError> {
    let faults = Faults::new(spaces.thp(), core);
    let mut attempts = Attempts::new();
    loop {
        // SAFETY: the callers of this function have found the VMA under the mmap lock, which they hold.
        match unsafe { faults.attempt_in(vma, addr, access, attempts.swapped.as_ref()) } {
            Ok(()) => return Ok(()),
            Err(_) if core.is_killed() => return Err(FaultError::Killed),
            Err(refusal) => spaces.direct_reclaim().resolve_refusal(core, refusal, &mut attempts)?,
        }
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

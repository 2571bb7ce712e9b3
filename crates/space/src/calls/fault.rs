//! Page faults.
//!
//! The usual fault takes no lock on the space and is one attempt ([`Faults::attempt`]). All other cases (no
//! VMA found, one that a writer holds, the first private page of a VMA, a stack that must grow) take the slow
//! path, under the mmap lock. What an attempt lacks is made available before the next one.

use crate::caller::Caller;
use crate::calls::stack::grow_stack;
use crate::error::Error;
use crate::spaces::{Attempts, HeldOpening, Spaces};
use core::ptr;
use quire_arch::{Access, Platform, VirtAddr};
use quire_fault::{FaultError, Faults, FilePage, Refusal};
use quire_vma::{SpaceCore, VmFlags, Vma};

#[inline]
pub(crate) fn fault<P: Platform>(
    caller: Caller<'_, P>,
    addr: VirtAddr,
    access: Access,
) -> Result<(), FaultError> {
    if caller.spaces.memcgs().charges().may_be_over_high(caller.core.memcg()) {
        // Before the page is mapped: a page just mapped could be reclaimed first, and the program would
        // make no progress.
        hold_up(caller);
    }
    match fault_once(caller, addr, access) {
        Ok(()) => Ok(()),
        Err(refusal) => fault_again(caller, addr, access, refusal),
    }
}

/// Makes a program whose memcg may be over a high limit reclaim, and wait.
#[cold]
fn hold_up<P: Platform>(caller: Caller<'_, P>) {
    let memcg = caller.core.memcg();
    caller.spaces.reclaim().throttle(caller.spaces, memcg);
    let ns = caller.spaces.memcgs().charges().swap_delay(memcg);
    if ns > 0 {
        wait_until_killed(caller, ns);
    }
}

/// Waits so long, unless the program is killed.
fn wait_until_killed<P: Platform>(caller: Caller<'_, P>, ns: u64) {
    let (platform, core) = (caller.spaces.platform(), caller.core);
    let end = platform.now().saturating_add(ns);
    loop {
        let left = end.saturating_sub(platform.now());
        if left == 0 || core.is_killed() {
            return;
        }
        platform.park_for(core.kill_key(), left, &mut || !core.is_killed());
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
        match refusal {
            Refusal::File(page) => {
                // Its lock must not be held while the mmap lock or a page of a file is waited for. It was there
                // before a file was mapped, or made smaller, by another thread.
                drop(attempts.swapped.take());
                bring_page(caller, addr, page)?;
            }
            _ => caller.spaces.direct_reclaim().resolve_refusal(caller.core, refusal, &mut attempts)?,
        }
        if let (Refusal::Swapped(_), Some(came)) = (refusal, &attempts.swapped) {
            caller.faults().note_read_ahead(addr, came.head());
        }
        match caller.faults().attempt(addr, access, 0, attempts.swapped.as_ref()) {
            Some(Ok(())) => return Ok(()),
            Some(Err(next)) => refusal = next,
            None => {
                // The mmap lock comes before folio locks.
                attempts = Attempts::new();
                let resolve = |vma: &Vma| resolve_but_files(caller.spaces, caller.core, vma, (addr, access));
                match fault_locked(caller, addr, resolve) {
                    Ok(()) => return Ok(()),
                    Err(Unread::Fault(error)) => return Err(error),
                    // As in Linux, the mmap lock is not held while a file is read.
                    Err(Unread::Needs(page)) => refusal = Refusal::File(page),
                }
            }
        }
    }
}

/// Brings the page of a file that an attempt at a fault lacked into the cache, if it is mapped there still.
fn bring_page<P: Platform>(caller: Caller<'_, P>, addr: VirtAddr, page: FilePage) -> Result<(), FaultError> {
    let Some(held) = opening_at(caller, addr, page) else { return Ok(()) };
    // Nothing is locked while the page is read.
    match caller.spaces.direct_reclaim().bring_page(caller.core, held.opening(), page) {
        // The program may map something else there by now, and must not get an error of what it did map: the
        // next attempt finds out what is there.
        Err(FaultError::PastEnd | FaultError::Bus)
            if opening_at(caller, addr, page).is_none_or(|now| !ptr::eq(now.opening(), held.opening())) =>
        {
            Ok(())
        }
        result => result,
    }
}

/// The open file of which `page` is mapped at `addr`, if there is such a one, to be held without a lock.
fn opening_at<'s, P: Platform>(
    caller: Caller<'s, P>,
    addr: VirtAddr,
    page: FilePage,
) -> Option<HeldOpening<'s, P>> {
    let mappings = caller.core.read_mappings(caller.spaces.platform());
    let vma = mappings.find(addr)?.snapshot();
    let dirties = vma.notices_writes() && vma.flags.contains(VmFlags::WRITE);
    let is_it = vma.page_offset_at(addr) == page.index.get() && (dirties || !page.dirties);
    // SAFETY: the VMA holds its opening, and stays while the mmap lock is held.
    let opening = unsafe { vma.backing.opening() }.filter(|_| is_it)?;
    Some(HeldOpening::new(caller.spaces, opening))
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
    loop {
        match resolve_but_files(spaces, core, vma, (addr, access)) {
            Ok(()) => return Ok(()),
            Err(Unread::Fault(error)) => return Err(error),
            Err(Unread::Needs(page)) => {
                // SAFETY: the VMA holds its opening, and stays while the mmap lock is held.
                if let Some(opening) = unsafe { vma.backing().opening() } {
                    spaces.direct_reclaim().bring_page(core, opening, page)?;
                }
            }
        }
    }
}

/// Why a fault was not resolved.
enum Unread {
    Fault(FaultError),
    /// This page of a file is needed first.
    Needs(FilePage),
}

impl From<FaultError> for Unread {
    fn from(error: FaultError) -> Self {
        Self::Fault(error)
    }
}

/// As [`resolve_locked`], but for pages of files. No folio that was swapped in is locked when it returns.
fn resolve_but_files<P: Platform>(
    spaces: &Spaces<P>,
    core: &SpaceCore,
    vma: &Vma,
    (addr, access): (VirtAddr, Access),
) -> Result<(), Unread> {
    let faults = Faults::new(spaces.thp(), core);
    let mut attempts = Attempts::new();
    loop {
        // SAFETY: the callers of this function have found the VMA under the mmap lock, which they hold.
        let attempt = unsafe { faults.attempt_in(vma, addr, access, attempts.swapped.as_ref()) };
        match attempt {
            Ok(()) => return Ok(()),
            Err(_) if core.is_killed() => return Err(FaultError::Killed.into()),
            Err(Refusal::File(page)) => return Err(Unread::Needs(page)),
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

//! Swapping in everything from a device that is to be removed.
//!
//! No slots are allocated from the device any more. In rounds, each entry that names it is swapped in and
//! mapped as by a fault, and folios that only the cache holds are dropped, until no slot is in use. Entries
//! that a fork copied behind the scan, or that a fault was handling, are found by the next round.

use crate::calls::swap_in::Unreadable;
use crate::calls::swap_in::swap_in_entry;
use crate::space::Space;
use crate::spaces::Spaces;
use quire_arch::{Platform, SwapEntry, VirtAddr, VirtRange};
use quire_fault::SwapInError;
use quire_file::{HeldFile, IndexRange};
use quire_frame::AllocError;
use quire_memcg::Membership;
use quire_pagetable::Walker;
use quire_swap::{DeviceId, SlotId, SwapDevice, SwapOnError, SwapOnOptions};
use quire_vma::Vma;

/// Pages that are swapped in before the mmap lock is released for a moment.
const AT_ONCE: u64 = 32;

/// Why a device is still in use. All that was swapped in stays in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SwapOffError {
    /// There is no such device, or it is being removed already.
    #[error("the device is not in use")]
    NotOn,
    /// Memory is too short for its pages.
    #[error("memory does not hold what is on the device: {0}")]
    OutOfMemory(AllocError),
    /// The caller gave up.
    #[error("interrupted")]
    Interrupted,
}

/// Takes a device into use.
///
/// # Errors
///
/// [`SwapOnError`]; nothing has changed.
pub fn swapon<P: Platform, D: SwapDevice<P>>(
    spaces: &Spaces<P>,
    device: D,
    options: SwapOnOptions,
) -> Result<DeviceId, SwapOnError> {
    let id = spaces.swap().devices().swapon(device, options)?;
    spaces.memcgs().folios().start_listing();
    Ok(id)
}

/// Removes a device: all its pages are swapped in. `goes_on` is called periodically; the call stops if it
/// returns false.
///
/// # Errors
///
/// [`SwapOffError`]; the device is in use again.
pub fn swapoff<P: Platform>(
    spaces: &Spaces<P>,
    id: DeviceId,
    mut goes_on: impl FnMut() -> bool,
) -> Result<(), SwapOffError> {
    if !spaces.swap().swapoff().begin_swapoff(id) {
        return Err(SwapOffError::NotOn);
    }
    let emptied = empty_device(spaces, id, &mut goes_on);
    if emptied.is_err() {
        spaces.swap().swapoff().cancel_swapoff(id);
        return emptied;
    }
    let gone = spaces.swap().swapoff().finish_swapoff(id);
    debug_assert!(gone.is_ok(), "a slot of an empty device is in use");
    Ok(())
}

fn empty_device<P: Platform>(
    spaces: &Spaces<P>,
    id: DeviceId,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<(), SwapOffError> {
    let mut attempt = 0;
    while spaces.swap().swapoff().next_used(id, 0).is_some() {
        if !goes_on() {
            return Err(SwapOffError::Interrupted);
        }
        let mut next = Space::next(spaces, None);
        while let Some(space) = next {
            unuse_space(&space, id, goes_on)?;
            next = Space::next(spaces, Some(&space));
        }
        unuse_files(spaces, id, goes_on)?;
        // A folio does not leave the cache while a device reads or writes it, and perhaps no other thread
        // reaps completions.
        spaces.swap().io().reap();
        let mut from = 0;
        while let Some(number) = spaces.swap().swapoff().next_used(id, from) {
            let left = |head| spaces.memcgs().splits().left_swap_cache(head);
            spaces.swap().cache().drop_unnamed(SlotId::new(id, number), 1, left);
            from = number + 1;
        }
        // Other threads are working on what is left.
        if spaces.swap().swapoff().next_used(id, 0).is_some() {
            P::relax(attempt);
            attempt = attempt.saturating_add(1);
        }
    }
    Ok(())
}

/// Swaps in everything that shared memory has on the device.
fn unuse_files<P: Platform>(
    spaces: &Spaces<P>,
    id: DeviceId,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<(), SwapOffError> {
    let cache = spaces.page_cache().shmem();
    let mut next = HeldFile::next_swapped(spaces.page_cache(), None);
    while let Some(file) = next {
        let mut from = 0;
        while let Some(page) = cache.next(&file, (from, IndexRange::ALL.end()), |slot| slot.device() == id) {
            if !goes_on() {
                return Err(SwapOffError::Interrupted);
            }
            from = page.index.get() + 1;
            match spaces.direct_reclaim().swap_in_shmem(&Membership::default(), &file, page) {
                Ok(()) => {}
                Err(SwapInError::Unreadable) => {
                    cache.lose(&file, page).map_err(SwapOffError::OutOfMemory)?;
                }
                Err(SwapInError::Short(cause, need)) => {
                    // It is asked before each page whether to go on.
                    if !spaces.direct_reclaim().make_room_or_fail(cause, need) {
                        return Err(SwapOffError::OutOfMemory(cause));
                    }
                    from = page.index.get();
                }
            }
        }
        next = HeldFile::next_swapped(spaces.page_cache(), Some(&file));
    }
    Ok(())
}

/// Swaps in everything that this space has on the device.
fn unuse_space<P: Platform>(
    space: &Space<'_, P>,
    id: DeviceId,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<(), SwapOffError> {
    let core = space.core();
    let mut at = VirtAddr(0);
    if core.tables.residency.figures().swapped == 0 {
        return Ok(());
    }
    loop {
        if !goes_on() {
            return Err(SwapOffError::Interrupted);
        }
        // The mmap lock is released between VMAs, so that others can proceed.
        let mappings = core.read_mappings(space.spaces.platform());
        let Some(vma) = mappings.first_ending_after(at) else { return Ok(()) };
        let range = VirtRange::new(vma.range().start().max(at), vma.range().end());
        at = unuse_vma(space, vma, range, id)?;
    }
}

/// The same for `range` of one mapping, for a few entries at a time. Returns where to continue.
fn unuse_vma<P: Platform>(
    space: &Space<'_, P>,
    vma: &Vma,
    range: VirtRange,
    id: DeviceId,
) -> Result<VirtAddr, SwapOffError> {
    let Some(run) = Walker::new(&space.caller().tables()).first_swapped(range) else {
        return Ok(range.end());
    };
    if SlotId::of(run.entry).device() != id {
        return Ok(run.page(run.pages));
    }
    let pages = run.pages.min(AT_ONCE);
    for nth in 0..pages {
        let entry = SwapEntry { slot: run.entry.slot + nth, ..run.entry };
        swap_in_entry(space.caller(), vma, run.page(nth), entry, Unreadable::Poison)
            .map_err(SwapOffError::OutOfMemory)?;
    }
    Ok(run.page(pages))
}

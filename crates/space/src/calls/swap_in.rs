//! Swapping pages in without a fault: before a collapse, and for swapoff.

use crate::caller::Caller;
use crate::calls::collapse::may_collapse;
use quire_arch::paging::PteMarker;
use quire_arch::{Access, Entry, Level, OrderSet, PagingFormat, Platform, SwapEntry, VirtAddr, VirtRange};
use quire_fault::{FaultError, Refusal, Swapped, VmFault};
use quire_frame::AllocError;
use quire_pagetable::{Found, Walker};
use quire_swap::SlotId;
use quire_thp::HugeUse;
use quire_vma::Vma;

/// What happens to an entry whose page cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unreadable {
    /// It stays: the device may do better later.
    Stays,
    /// The page is lost, and the program gets an error when it accesses it.
    Poison,
}

/// Maps the page that `entry` of `vma` at `addr` names, as a fault that reads it would. Nothing is done
/// where another thread was faster. False if it stays out: it cannot be read, or the program is killed.
/// The mmap lock is held for reading.
///
/// # Errors
///
/// When there is no memory.
pub(crate) fn swap_in_entry<P: Platform>(
    caller: Caller<'_, P>,
    vma: &Vma,
    addr: VirtAddr,
    entry: SwapEntry,
    unreadable: Unreadable,
) -> Result<bool, AllocError> {
    let snapshot = vma.snapshot();
    let (tables, swap) = (caller.tables(), caller.spaces.swap());
    loop {
        let wanted = Swapped { entry, orders: OrderSet::EMPTY };
        let (held, failed) = match caller.spaces.direct_reclaim().swap_in_or_fail(caller.core, wanted) {
            Ok(held) => (held, false),
            Err(FaultError::OutOfMemory(cause)) => return Err(cause),
            // Its exit frees the slot: that is no shortage.
            Err(FaultError::Killed) => return Ok(false),
            Err(_) => (None, true),
        };
        let pin = tables.pin();
        let Found::Table(table) = tables.lookup(addr) else { return Ok(true) };
        let locked = tables.lock(&pin, table, Level::PTE);
        let index = P::Paging::index(addr, Level::PTE);
        match locked.get(index) {
            Entry::Swap(now) if SlotId::of(now) == SlotId::of(entry) => {}
            // Another thread was faster.
            _ => return Ok(true),
        }
        if held.is_none() && (!failed || swap.counts().is_cached(SlotId::of(entry))) {
            continue;
        }
        if held.is_none() {
            if unreadable == Unreadable::Poison {
                locked.replace(index, Entry::Marker(PteMarker::Poisoned));
                let _ = swap.counts().drop_counts(SlotId::of(entry), 1);
                caller.core.tables.residency.swap_gone(1);
            }
            return Ok(unreadable == Unreadable::Poison);
        }
        let fault = VmFault {
            space: caller.core,
            vma: &snapshot,
            addr,
            access: Access::Read,
            swapped: held.as_ref(),
            window: &vma.swap_window,
            huge: caller.spaces.huge(),
        };
        match fault.map_swapped(&tables, &locked, index, entry) {
            Ok(_) => return Ok(true),
            Err(Refusal::Fault(FaultError::OutOfMemory(cause))) => return Err(cause),
            Err(_) => {}
        }
    }
}

/// Swaps in the swapped-out pages of the aligned block at `start` in `vma`, one after the other. As in
/// Linux it ends at a marker, and at a page that cannot be read or finds no memory: then it returns
/// false. The mmap lock is held for reading.
pub(crate) fn swap_in_block<P: Platform>(caller: Caller<'_, P>, vma: &Vma, start: VirtAddr) -> bool {
    let tables = caller.tables();
    let end = VirtAddr(start.0 + P::Paging::entry_bytes(Level::PMD));
    let (mut from, mut marker) = (start, None);
    Walker::new(&tables).look(VirtRange::new(start, end), |pages, entry| {
        if marker.is_none() && matches!(entry, Entry::Marker(_)) {
            marker = Some(pages.start());
        }
    });
    while let Some(run) = Walker::new(&tables).first_swapped(VirtRange::new(from, marker.unwrap_or(end))) {
        for nth in 0..run.pages {
            let entry = SwapEntry { slot: run.entry.slot + nth, ..run.entry };
            if swap_in_entry(caller, vma, run.page(nth), entry, Unreadable::Stays) != Ok(true) {
                return false;
            }
        }
        from = run.page(run.pages);
    }
    marker.is_none()
}

/// Swaps in the pages of the aligned block at `start` for `MADV_COLLAPSE`. False if they cannot be.
pub(crate) fn swap_in_for_collapse<P: Platform>(caller: Caller<'_, P>, start: VirtAddr) -> bool {
    let core = caller.core;
    let mappings = core.read_mappings(caller.spaces.platform());
    // Where the mapping has changed, the call finds that.
    let found = mappings
        .first_ending_after(start)
        .filter(|vma| may_collapse(caller.spaces, core, &vma.snapshot(), start, HugeUse::Collapse));
    found.is_none_or(|vma| swap_in_block(caller, vma, start))
}

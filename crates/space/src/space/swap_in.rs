//! Swapping pages in without a fault: before a collapse, and for swapoff.

use crate::space::Space;
use quire_arch::paging::PteMarker;
use quire_arch::{Access, Entry, Level, PagingFormat, Platform, SwapEntry, VirtAddr, VirtRange};
use quire_frame::AllocError;
use quire_pagetable::Found;
use quire_paging::{FaultError, Refusal, Swapped, VmFault};
use quire_rmap::Vma;
use quire_swap::SlotId;
use quire_thp::{Collapse, CollapseError, CollapseLimits, HugeUse, OrderSet};

/// What happens to an entry whose page cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unreadable {
    /// It stays: the device may do better later.
    Stays,
    /// The page is lost, and the program gets an error when it accesses it.
    Poison,
}

impl<P: Platform> Space<'_, P> {
    /// Maps the page that `entry` of `vma` at `addr` names, as a fault that reads it would. Nothing is done
    /// where another thread was faster. The mmap lock is held for reading.
    ///
    /// # Errors
    ///
    /// When there is no memory.
    pub(crate) fn swap_in_entry(
        &self,
        vma: &Vma,
        addr: VirtAddr,
        entry: SwapEntry,
        unreadable: Unreadable,
    ) -> Result<(), AllocError> {
        let snapshot = vma.snapshot();
        let (tables, swap) = (self.tables(), self.spaces.swap());
        loop {
            let wanted = Swapped { entry, orders: OrderSet::EMPTY };
            let (held, failed) = match self.spaces.swap_in_or_fail(self.core(), wanted) {
                Ok(held) => (held, false),
                Err(FaultError::OutOfMemory(cause)) => return Err(cause),
                // Its exit frees the slot: that is no shortage.
                Err(FaultError::Killed) => return Ok(()),
                Err(_) => (None, true),
            };
            let pin = tables.pin();
            let Found::Table(table) = tables.lookup(addr) else { return Ok(()) };
            let locked = tables.lock(&pin, table, Level::PTE);
            let index = P::Paging::index(addr, Level::PTE);
            match locked.get(index) {
                Entry::Swap(now) if SlotId::of(now) == SlotId::of(entry) => {}
                // Another thread was faster.
                _ => return Ok(()),
            }
            if held.is_none() && (!failed || swap.is_cached(SlotId::of(entry))) {
                continue;
            }
            if held.is_none() {
                if unreadable == Unreadable::Poison {
                    locked.replace(index, Entry::Marker(PteMarker::Poisoned));
                    let _ = swap.drop_counts(SlotId::of(entry), 1);
                    self.core().tables.residency.swap_gone(1);
                }
                return Ok(());
            }
            let fault = VmFault {
                space: self.core(),
                vma: &snapshot,
                addr,
                access: Access::Read,
                swapped: held.as_ref(),
                window: &vma.swap_window,
                huge: self.spaces.huge(),
            };
            match fault.map_swapped(&tables, &locked, index, entry) {
                Ok(_) => return Ok(()),
                Err(Refusal::Fault(FaultError::OutOfMemory(cause))) => return Err(cause),
                Err(_) => {}
            }
        }
    }

    /// Swaps in the swapped-out pages of the aligned `block` in `vma`, if the block could be collapsed then.
    /// The mmap lock is held for reading.
    ///
    /// # Errors
    ///
    /// Why it cannot be collapsed as it is afterwards.
    pub(crate) fn make_collapsible(
        &self,
        vma: &Vma,
        block: VirtRange,
        limits: CollapseLimits,
    ) -> Result<(), CollapseError> {
        if self.core().is_killed() {
            return Err(CollapseError::Unfit);
        }
        let tables = self.tables();
        let check = || {
            // The table stays while the CPU is pinned.
            let _pin = tables.pin();
            match tables.lookup(block.start()) {
                Found::Huge(_) => Ok(()),
                Found::Nothing => Err(CollapseError::NoTable),
                Found::Table(table) => Collapse(tables).check(table, limits),
            }
        };
        let checked = check();
        if checked != Err(CollapseError::Swapped) {
            return checked;
        }
        // Linux takes one entry after the other, and fails at a marker.
        let (mut from, mut end) = (block.start(), block.end());
        tables.look(block, |pages, entry| {
            if matches!(entry, Entry::Marker(_)) {
                end = end.min(pages.start());
            }
        });
        while let Some(run) = tables.first_swapped(VirtRange::new(from, end)) {
            for nth in 0..run.pages {
                let entry = SwapEntry { slot: run.entry.slot + nth, ..run.entry };
                self.swap_in_entry(vma, run.page(nth), entry, Unreadable::Stays)
                    .map_err(CollapseError::OutOfMemory)?;
            }
            from = run.page(run.pages);
        }
        check()
    }

    /// Swaps in the pages of the aligned `block` for `MADV_COLLAPSE`. False if they cannot be.
    pub(super) fn swap_in_for_collapse(&self, block: VirtRange) -> bool {
        let core = self.core();
        let mappings = core.read_mappings(self.spaces.platform());
        // Where the mapping has changed, the call finds that.
        let found = mappings.first_ending_after(block.start()).filter(|vma| vma.range().covers(block));
        let Some(vma) = found else { return true };
        let snapshot = vma.snapshot();
        let policy = self.spaces.huge().policy();
        let orders = policy.orders(HugeUse::Collapse, snapshot.flags, core.huge_disable.load());
        let private = snapshot.backing.is_anonymous() && snapshot.anon.is_some();
        if !private || orders.fitting(snapshot.range).is_empty() {
            return true;
        }
        let made = self.make_collapsible(vma, block, CollapseLimits::NONE);
        !matches!(made, Err(CollapseError::Swapped | CollapseError::OutOfMemory(_)))
    }
}

//! The policy for one address space.

use super::Space;
use crate::huge::{HugeDisable, HugeUse, OrderSet};
use quire_arch::{Platform, VirtAddr};

impl<P: Platform> Space<'_, P> {
    /// Whether the process did without large folios.
    pub fn huge_disable(&self) -> HugeDisable {
        self.core().huge_disable.load()
    }

    /// Does without large folios from now on, or no longer (`prctl(PR_SET_THP_DISABLE)`). What is mapped
    /// stays.
    pub fn set_huge_disable(&self, disable: HugeDisable) {
        self.core().huge_disable.store(disable);
    }

    /// The orders that `purpose` may use for a block around `addr` at this moment; for [`HugeUse::Smaps`],
    /// anywhere in the mapping at `addr`. None where no private anonymous memory is mapped. What is populated
    /// is not looked at.
    pub fn huge_orders(&self, purpose: HugeUse, addr: VirtAddr) -> OrderSet {
        let core = self.core();
        let _guard = core.mmap_lock.read(self.spaces.platform());
        // SAFETY: the mmap lock is held.
        let found = unsafe { core.vmas.view() }.first_ending_after(addr);
        let Some(entry) = found.filter(|entry| entry.range.contains(addr)) else { return OrderSet::EMPTY };
        // SAFETY: a VMA in the tree is live while the mmap lock is held.
        let facts = unsafe { entry.value.as_ref() }.facts();
        let has_pages = facts.anon.is_some() || matches!(purpose, HugeUse::Fault | HugeUse::Smaps);
        if !facts.backing.is_anonymous() || !has_pages {
            return OrderSet::EMPTY;
        }
        let orders = self.spaces.huge().policy().orders(purpose, facts.flags, core.huge_disable.load());
        match purpose {
            HugeUse::Smaps => orders.fitting(facts.range),
            HugeUse::Fault | HugeUse::Khugepaged | HugeUse::Collapse => orders.around(addr, facts.range),
        }
    }
}

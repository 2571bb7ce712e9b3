//! The large-folio policy of one address space.

use super::Space;
use quire_arch::{Platform, VirtAddr};
use quire_rmap::{HugeDisable, Vma};
use quire_thp::{HugeUse, OrderSet};

impl<P: Platform> Space<'_, P> {
    /// Whether the process disabled large folios.
    pub fn huge_disable(&self) -> HugeDisable {
        self.core().huge_disable.load()
    }

    /// Disables or enables large folios (`prctl(PR_SET_THP_DISABLE)`). Existing mappings stay.
    pub fn set_huge_disable(&self, disable: HugeDisable) {
        self.core().huge_disable.store(disable);
    }

    /// The orders that `purpose` may use for a block around `addr` at this moment; for [`HugeUse::Smaps`],
    /// anywhere in the mapping at `addr`. None where no private anonymous memory is mapped. Present entries
    /// are not considered.
    #[doc(hidden)]
    pub fn huge_orders(&self, purpose: HugeUse, addr: VirtAddr) -> OrderSet {
        let core = self.core();
        let mappings = core.read_mappings(self.spaces.platform());
        let Some(snapshot) = mappings.find(addr).map(Vma::snapshot) else { return OrderSet::EMPTY };
        let has_pages = snapshot.anon.is_some() || matches!(purpose, HugeUse::Fault | HugeUse::Smaps);
        if !snapshot.backing.is_anonymous() || !has_pages {
            return OrderSet::EMPTY;
        }
        let orders = self.spaces.huge().policy().orders(purpose, snapshot.flags, core.huge_disable.load());
        match purpose {
            HugeUse::Smaps => orders.fitting(snapshot.range),
            HugeUse::Fault | HugeUse::Khugepaged | HugeUse::Collapse => orders.around(addr, snapshot.range),
        }
    }
}

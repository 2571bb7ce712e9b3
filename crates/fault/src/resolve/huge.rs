//! Large leaves: what a fault does where there is one, or may be one.

use super::Resolver;
use crate::cached::FileFault;
use crate::cow::charge_new;
use crate::error::{FaultError, Refusal};
use crate::step::{HugeFault, Step};
use quire_arch::{Access, Leaf, LeafFlags, Order, Pfn, Platform};
use quire_frame::{FolioCounter, VmEvent};
use quire_memcg::MemcgStat;
use quire_pagetable::{HugeLeaves, HugeSlot, Tables};
use quire_vma::VmFlags;

impl<P: Platform> Resolver<'_, '_, P> {
    /// Makes the access possible to what a large leaf maps. [`Step::LookAgain`] if the leaf is gone, or was
    /// split, since a write needs a copy of one page.
    pub(super) fn resolve_huge(&self, slot: HugeSlot) -> Result<Step, Refusal> {
        let Self { tables, pin, ref fault, .. } = *self;
        let zero = {
            let locked = tables.lock_slot(pin, slot);
            let Some(leaf) = Tables::<P>::huge_leaf(&locked, slot) else { return Ok(Step::LookAgain) };
            if leaf.flags.contains(fault.access.needs()) {
                if fault.is_write() {
                    // As in `upgrade`.
                    locked.widen(slot.index, LeafFlags::DIRTY);
                }
                return Ok(Step::Done);
            }
            if fault.access == Access::Execute && !fault.vma.flags.contains(VmFlags::EXEC) {
                return Err(FaultError::AccessDenied.into());
            }
            if fault.is_write()
                && fault.vma.notices_writes()
                && let Some(of_file) = FileFault::of(tables, pin, fault)
            {
                return of_file.notice_write(&locked, slot.index, leaf).map(|()| Step::Done);
            }
            let zero = leaf.flags.contains(LeafFlags::SPECIAL);
            let own = !fault.is_write() || !zero && self.is_own_huge(leaf);
            if own {
                if fault.is_write() {
                    tables.memory().frames().events().add(pin, VmEvent::Pgreuse, 1);
                }
                locked.widen(slot.index, fault.allowed());
                return Ok(Step::Done);
            }
            zero
        };
        if let Some(order) = Tables::<P>::huge_order().filter(|_| zero) {
            return Ok(self.write_huge_zero(slot, order));
        }
        HugeLeaves::new(&tables).split_huge(slot);
        Ok(Step::LookAgain)
    }

    /// Whether the folio that a large leaf maps may be written to as it is.
    fn is_own_huge(&self, leaf: Leaf) -> bool {
        let folio = self.tables.memory().frames().folios().lock_head(leaf.pfn);
        !self.fault.is_private() || folio.is_exclusive() || folio.claim(Tables::<P>::huge_pages())
    }

    /// Maps a folio of the PMD's order where no table is, or for a read the huge zero page, if the policy
    /// allows it and memory is available, and the program was not killed.
    pub(super) fn fault_huge(&self) -> Result<HugeFault, Refusal> {
        let Self { tables, pin, ref fault, .. } = *self;
        if fault.vma.backing.is_opened() {
            return FileFault::of(tables, pin, fault)
                .map_or(Ok(HugeFault::ByTable), |of_file| of_file.resolve_huge());
        }
        let Some(order) = Tables::<P>::huge_order().filter(|&order| fault.orders().contains(order)) else {
            return Ok(HugeFault::ByTable);
        };
        // Also for zeros, as in Linux: a later collapse of them finds the anon_vma.
        if !fault.vma.anon.is_some() {
            return Err(Refusal::NeedsAnonVma);
        }
        if !fault.is_write() && fault.huge.policy().zero_page() {
            return Ok(self.fault_huge_zero(order));
        }
        let frames = tables.memory().frames();
        let Some(head) = self.allocate_huge(order) else { return Ok(HugeFault::ByTable) };
        match HugeLeaves::new(&tables).place_huge(pin, fault.addr) {
            Ok(Some((slot, deposit))) => {
                let new = fault.vma.new_page(tables.slot_range(slot).start());
                let installed = {
                    let locked = tables.lock_slot(pin, slot);
                    !fault.space.is_killed()
                        && HugeLeaves::new(&tables).install_huge(pin, (&locked, slot), (head, deposit), &new)
                };
                if installed {
                    self.count_huge_fault(order);
                    return Ok(HugeFault::Mapped);
                }
                tables.memory().memcgs().folios().release_unused(pin, deposit, Order::ZERO);
            }
            Ok(None) => {}
            Err(_) => frames.events().count_folio(pin, order, FolioCounter::AnonFaultFallback, 1),
        }
        tables.memory().memcgs().folios().release_unused(pin, head, order);
        Ok(HugeFault::ByTable)
    }

    /// A folio of the PMD's order for `fault`, charged to its memcg. A failure is counted.
    fn allocate_huge(&self, order: Order) -> Option<Pfn> {
        let Self { tables, pin, ref fault, .. } = *self;
        let frames = tables.memory().frames();
        let allocated = frames.allocate(pin, fault.large_request(order)).ok();
        let head = allocated.filter(|&head| charge_new(&tables, pin, head, order).is_ok());
        if head.is_none() {
            frames.events().count_folio(pin, order, FolioCounter::AnonFaultFallback, 1);
        }
        head
    }

    fn count_huge_fault(&self, order: Order) {
        let Self { tables, pin, .. } = *self;
        let events = tables.memory().frames().events();
        events.count_folio(pin, order, FolioCounter::AnonFaultAlloc, 1);
        events.count_folio(pin, order, FolioCounter::NrAnon, 1);
        tables.memory().memcgs().programs().count(pin, &tables.space().membership, MemcgStat::ThpFaultAlloc);
    }

    /// Maps the huge zero page where no table is.
    fn fault_huge_zero(&self, order: Order) -> HugeFault {
        let Self { tables, thp, pin, ref fault } = *self;
        let leaves = HugeLeaves::new(&tables);
        let Ok(Some((slot, deposit))) = leaves.place_huge(pin, fault.addr) else { return HugeFault::ByTable };
        match thp.hold_huge_zero(pin, order) {
            Ok(zero) => {
                let new = fault.vma.new_page(fault.addr);
                let installed = {
                    let locked = tables.lock_slot(pin, slot);
                    !fault.space.is_killed()
                        && leaves.install_huge_zero(pin, (&locked, slot), (zero, deposit), &new)
                };
                if installed {
                    return HugeFault::Mapped;
                }
                tables.memory().put_huge_zero(zero, 1);
            }
            // Linux counts this only in vmstat, not per folio size.
            Err(_) => tables.memory().frames().events().add(pin, VmEvent::ThpFaultFallback, 1),
        }
        tables.memory().memcgs().folios().release_unused(pin, deposit, Order::ZERO);
        HugeFault::ByTable
    }

    /// Replaces the huge zero page, mapped at `slot`, by a new folio for a write; as in Linux whatever the
    /// policy is by now. If there is no folio the leaf is split.
    fn write_huge_zero(&self, slot: HugeSlot, order: Order) -> Step {
        let Self { tables, pin, ref fault, .. } = *self;
        let Some(head) = self.allocate_huge(order) else {
            HugeLeaves::new(&tables).split_huge(slot);
            return Step::LookAgain;
        };
        let new = fault.vma.new_page(tables.slot_range(slot).start());
        let replaced = HugeLeaves::new(&tables).replace_huge_zero(pin, slot, head, &new);
        if replaced {
            self.count_huge_fault(order);
            return Step::Done;
        }
        tables.memory().memcgs().folios().release_unused(pin, head, order);
        Step::LookAgain
    }
}

//! Making a page available where a fault asks for it.
//!
//! Memory is allocated before a table is locked, according to a lock-free read, which is checked again under
//! the lock. A new page of private memory is part of a folio as large as the policy, the mapping and the
//! empty entries allow; if memory is short the folio is smaller.

mod spare;

use self::spare::Spare;
use crate::cached::FileFault;
use crate::cow::{charge_new, copy_on_write, hold_page, is_pinned_and_cached, must_copy};
use crate::error::{FaultError, Refusal};
use crate::step::{HugeFault, Step};
use crate::vm_fault::VmFault;
use quire_arch::paging::PteMarker;
use quire_arch::{Access, Entry, Leaf, LeafFlags, Level, Order, PagingFormat, Pfn, Pin, Platform, VirtAddr};
use quire_frame::{FolioCounter, Kind, VmEvent};
use quire_memcg::MemcgStat;
use quire_pagetable::{FlushCause, Found, HugeLeaves, HugeSlot, LockedTable, Tables, page_of, pages_from};
use quire_sync::atomic::raw::Ordering;
use quire_thp::Thp;
use quire_vma::VmFlags;

/// A fault that is being resolved. The VMA is held by its own lock or by the mmap lock.
pub(crate) struct Resolver<'s, 'p, P: Platform> {
    pub(crate) tables: Tables<'s, P>,
    pub(crate) thp: Thp<'s, P>,
    pub(crate) pin: &'s Pin<'p, P>,
    pub(crate) fault: VmFault<'s, P>,
}

impl<P: Platform> Resolver<'_, '_, P> {
    /// Makes the access possible.
    #[inline]
    pub(crate) fn resolve(&self) -> Result<(), Refusal> {
        let fault = &self.fault;
        let may = if fault.is_write() { VmFlags::WRITE } else { VmFlags::ACCESS };
        if !fault.vma.flags.intersects(may) {
            return Err(FaultError::AccessDenied.into());
        }
        if fault.vma.flags.contains(VmFlags::HUGETLB) {
            // The pool is empty.
            return Err(FaultError::Bus.into());
        }
        if fault.is_write() && fault.is_private() && !fault.vma.anon.is_some() {
            return Err(self.before_anon_vma());
        }
        let mut attempt = 0;
        loop {
            let step = match self.tables.lookup(fault.addr) {
                Found::Table(table) => self.resolve_in_table(table)?,
                Found::Huge(slot) => self.resolve_huge(slot)?,
                // The page, and its table with it, may have been removed already.
                Found::Nothing if fault.space.is_killed() => return Err(FaultError::Killed.into()),
                Found::Nothing => match self.fault_huge()? {
                    HugeFault::Mapped => Step::Done,
                    way => match self.tables.make(self.pin, fault.addr, Level::PTE)? {
                        Some(table) if way == HugeFault::Alone => self.resolve_alone(table)?,
                        Some(table) => self.resolve_in_table(table)?,
                        None => Step::LookAgain,
                    },
                },
            };
            if step == Step::Done {
                return Ok(());
            }
            P::relax(attempt);
            attempt = attempt.saturating_add(1);
        }
    }

    /// Why a fault that needs an anon_vma fails first. As in Linux one in a guard page gives the mapping
    /// none, which would keep it from merging with others.
    #[cold]
    fn before_anon_vma(&self) -> Refusal {
        let Found::Table(table) = self.tables.lookup(self.fault.addr) else { return Refusal::NeedsAnonVma };
        let entry = &self.tables.entries(table)[P::Paging::index(self.fault.addr, Level::PTE)];
        match P::Paging::decode(entry.load(Ordering::Relaxed), Level::PTE) {
            Entry::Marker(PteMarker::Guard) => FaultError::NotMapped.into(),
            _ => Refusal::NeedsAnonVma,
        }
    }

    /// Maps the folio of a file that has the page by `table`, which was just made, and nothing around it.
    fn resolve_alone(&self, table: Pfn) -> Result<Step, Refusal> {
        let index = P::Paging::index(self.fault.addr, Level::PTE);
        let of_file = FileFault::of(self.tables, self.pin, &self.fault);
        of_file.map_or(Ok(Step::LookAgain), |of_file| of_file.resolve_alone((table, index)))
    }

    /// Makes the access possible through `table`. [`Step::LookAgain`] where it is dead: there is another, or
    /// none, by now; and where an entry is not none any more, or is by now.
    #[inline]
    fn resolve_in_table(&self, table: Pfn) -> Result<Step, Refusal> {
        let index = P::Paging::index(self.fault.addr, Level::PTE);
        match self.tables.entries(table)[index].load(Ordering::Relaxed) {
            0 => self.resolve_none((table, index)),
            seen => self.resolve_entry((table, index), P::Paging::decode(seen, Level::PTE)),
        }
    }

    /// Maps a new page by entry `index` of `table`, which was none.
    fn resolve_none(&self, (table, index): (Pfn, usize)) -> Result<Step, Refusal> {
        let Self { tables, pin, ref fault, .. } = *self;
        if let Some(of_file) = FileFault::of(tables, pin, fault) {
            return of_file.resolve((table, index));
        }
        let entries = tables.entries(table);
        let needs_folio = fault.needs_first_folio();
        let mut spare = Spare::new(self);
        loop {
            if needs_folio {
                spare.fill(entries, index)?;
            }
            let locked = tables.lock(pin, table, Level::PTE);
            if locked.entries[index].load(Ordering::Relaxed) != 0 || locked.is_dead() {
                return Ok(Step::LookAgain);
            }
            // As where no table is: under the lock, under which the page was removed.
            if fault.space.is_killed() {
                return Err(FaultError::Killed.into());
            }
            // Entries around it may have changed since the lock-free read.
            if !needs_folio || spare.fits(entries, index) {
                self.install_new(&locked, index, spare.folio.take());
                return Ok(Step::Done);
            }
        }
    }

    /// Makes the access possible through entry `index` of `table`, which was `seen`.
    fn resolve_entry(&self, (table, index): (Pfn, usize), seen: Entry) -> Result<Step, Refusal> {
        let Self { tables, pin, ref fault, .. } = *self;
        let entries = tables.entries(table);
        let mut spare = Spare::new(self);
        let mut zeros = None;
        match seen {
            Entry::Swap(swap) => zeros = fault.zeros_for(tables.memory(), pin, swap),
            entry if fault.needs_folio(entry) => spare.fill(entries, index)?,
            _ => {}
        }
        loop {
            let locked = tables.lock(pin, table, Level::PTE);
            let entry = locked.get(index);
            if entry == Entry::None {
                return Ok(Step::LookAgain);
            }
            if fault.needs_folio(entry) && !spare.fits(entries, index) {
                // The entries changed since the lock-free read.
                drop(locked);
                spare.fill(entries, index)?;
                continue;
            }
            if let Entry::Leaf(leaf) = entry
                && fault.is_write()
                && must_copy(&tables, &locked, index, leaf, fault.vma)
            {
                return self.copy_page(locked, (table, index), leaf);
            }
            return match entry {
                Entry::Leaf(leaf) => {
                    self.upgrade(&locked, index, leaf, &mut spare)?;
                    Ok(Step::Done)
                }
                Entry::Swap(swap)
                    if zeros
                        .as_mut()
                        .is_some_and(|zeros| fault.map_zeros(&tables, &locked, (index, swap), zeros)) =>
                {
                    Ok(Step::Done)
                }
                Entry::Swap(swap) => {
                    let step = fault.map_swapped(&tables, &locked, index, swap)?;
                    if step == Step::LookAgain {
                        // A write needs a copy.
                        drop(locked);
                        continue;
                    }
                    Ok(step)
                }
                Entry::Marker(PteMarker::Guard) => Err(FaultError::NotMapped.into()),
                _ => Err(FaultError::Bus.into()),
            };
        }
    }

    /// Copies the page that the entry `index` of the locked `table` maps.
    fn copy_page(
        &self,
        locked: LockedTable<'_, P>,
        (table, index): (Pfn, usize),
        leaf: Leaf,
    ) -> Result<Step, Refusal> {
        let Self { tables, ref fault, .. } = *self;
        if is_pinned_and_cached(&tables, leaf.pfn) {
            // The thread that pages it out fails because of the pin, and puts the folio back.
            return Ok(Step::LookAgain);
        }
        let held = hold_page(&tables, leaf.pfn);
        drop(locked);
        match held {
            Some(held) => copy_on_write(&tables, held, (table, index), fault.vma, fault.addr),
            None => Ok(Step::Done),
        }
    }

    /// Maps a new folio, or the zero page if there is no folio, around the empty entry `index`.
    // As a call of its own, which compilers make of it, it costs a fault fifty instructions.
    #[inline(always)]
    fn install_new(&self, locked: &LockedTable<'_, P>, index: usize, folio: Option<(Pfn, Order)>) {
        let Self { tables, pin, ref fault, .. } = *self;
        if tables.space().pageouts.is_discarding() {
            self.flush_discarded(folio.map_or(Order::ZERO, |(_, order)| order));
        }
        let new = fault.vma.new_page(fault.addr);
        let mut flags = new.leaf | LeafFlags::ACCESSED;
        let Some((pfn, order)) = folio else {
            flags = (flags - LeafFlags::WRITE) | LeafFlags::SPECIAL;
            locked.install(index, Entry::Leaf(Leaf { pfn: tables.memory().zero_page(), flags }));
            return;
        };
        let anonymous = fault.kind() == Kind::Anonymous;
        flags.set(LeafFlags::DIRTY, fault.is_write());
        if !anonymous {
            if fault.is_private() {
                // The first write makes the page the program's own, so it must fault.
                flags.remove(LeafFlags::WRITE);
            } else if fault.is_write() {
                flags |= fault.allowed();
            }
        }
        if order == Order::ZERO {
            new.init_page(tables.memory().frames().known(pfn));
            tables.space().residency.page_mapped(anonymous);
            locked.install(index, Entry::Leaf(Leaf { pfn, flags }));
            if anonymous {
                tables.memory().memcgs().folios().list_new(pin, pfn, new.locked);
            }
            return;
        }
        self.install_large(locked, index, (pfn, order), flags);
    }

    // A frame of its own: most folios are pages.
    #[inline(never)]
    fn install_large(
        &self,
        locked: &LockedTable<'_, P>,
        index: usize,
        (pfn, order): (Pfn, Order),
        flags: LeafFlags,
    ) {
        let Self { tables, pin, ref fault, .. } = *self;
        let pages = order.pages();
        let first = index & !(pages as usize - 1);
        let start = VirtAddr(fault.addr.0 & !(order.bytes() - 1));
        let new = fault.vma.new_page(start);
        new.init_folio(tables.memory().frames().known(pfn), pages as u32);
        tables.space().residency.anonymous_mapped(pages);
        let raw = P::Paging::encode(Entry::Leaf(Leaf { pfn, flags }), Level::PTE);
        for nth in 0..pages {
            LockedTable::<P>::put_raw(&locked.entries[first + nth as usize], P::Paging::frames_on(raw, nth));
        }
        locked.count_installed(pages as usize);
        {
            // The entries' reference is not this thread's: a split would lose a flag that is set meanwhile.
            let _whole = tables.memory().frames().folios().lock_head(pfn);
            tables.memory().memcgs().folios().list_new(pin, pfn, new.locked);
        }
        let events = tables.memory().frames().events();
        events.count_folio(pin, order, FolioCounter::AnonFaultAlloc, 1);
        events.count_folio(pin, order, FolioCounter::NrAnon, 1);
    }

    /// As [`SpaceTables::flush_discarded`](quire_pagetable::SpaceTables::flush_discarded), for the block of
    /// `order` around the address.
    #[cold]
    fn flush_discarded(&self, order: Order) {
        let start = VirtAddr(self.fault.addr.0 & !(order.bytes() - 1));
        let range = pages_from(start, order.pages() as usize);
        self.tables.space().flush_discarded(self.tables.memory().frames(), self.pin, range);
    }

    /// Makes a mapped page allow the access.
    fn upgrade(
        &self,
        locked: &LockedTable<'_, P>,
        index: usize,
        leaf: Leaf,
        spare: &mut Spare<'_, '_, '_, P>,
    ) -> Result<(), Refusal> {
        let Self { tables, pin, ref fault, .. } = *self;
        let vma = fault.vma;
        if leaf.flags.contains(fault.access.needs()) {
            // Another thread was faster, or the TLB held a stale entry. Or memory is populated for writes,
            // and the dirty bit must be set.
            if fault.is_write() {
                locked.widen(index, LeafFlags::DIRTY);
            }
            return Ok(());
        }
        if leaf.flags.contains(LeafFlags::GUARD) {
            return Err(FaultError::NotMapped.into());
        }
        if fault.access == Access::Execute && !vma.flags.contains(VmFlags::EXEC) {
            return Err(FaultError::AccessDenied.into());
        }
        if fault.is_write()
            && vma.notices_writes()
            && let Some(of_file) = FileFault::of(tables, pin, fault)
        {
            return of_file.notice_write(locked, index, leaf);
        }
        if leaf.flags.contains(LeafFlags::SPECIAL) {
            if let Some((pfn, _)) = spare.folio.take() {
                // First empty, then the flush, then the new page: no CPU may still read zeros from the shared
                // page after another has written to the new one.
                locked.replace(index, Entry::None);
                let page = page_of(fault.addr);
                tables.space().flush(tables.memory().frames(), pin, page, FlushCause::CopyOnWrite);
                let new = vma.new_page(fault.addr);
                new.init_page(tables.memory().frames().known(pfn));
                tables.space().residency.page_mapped(true);
                let flags = new.leaf | LeafFlags::ACCESSED | LeafFlags::DIRTY;
                locked.replace(index, Entry::Leaf(Leaf { pfn, flags }));
                tables.memory().memcgs().folios().list_new(pin, pfn, new.locked);
            }
            return Ok(());
        }
        if fault.is_write() && fault.is_private() {
            let frame = tables.memory().frames().folio(leaf.pfn).frame();
            if frame.kind() == Kind::File {
                // The page is not shared (docs/differences.md), so it becomes anonymous where it is.
                frame.as_folio().set_owner(vma.anon.owner_word());
                let taken = frame.classify(Kind::Allocated).and_then(|()| frame.classify(Kind::Anonymous));
                debug_assert!(taken.is_ok(), "a file page could not become anonymous");
                tables.space().residency.file_page_made_anonymous();
                tables.memory().memcgs().folios().disown_file_page(pin, frame);
                tables.memory().memcgs().folios().list_new(pin, leaf.pfn, vma.is_locked());
            }
            tables.memory().frames().events().add(pin, VmEvent::Pgreuse, 1);
        }
        locked.widen(index, fault.allowed());
        Ok(())
    }

    /// Makes the access possible to what a large leaf maps. [`Step::LookAgain`] if the leaf is gone, or was
    /// split, since a write needs a copy of one page.
    fn resolve_huge(&self, slot: HugeSlot) -> Result<Step, Refusal> {
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
    fn fault_huge(&self) -> Result<HugeFault, Refusal> {
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

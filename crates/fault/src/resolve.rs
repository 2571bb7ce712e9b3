//! Making a page available where a fault asks for it.
//!
//! Memory is allocated before a table is locked, according to a lock-free read, which is checked again under
//! the lock. A new page of private memory is part of a folio as large as the policy, the mapping and the
//! empty entries allow; if memory is short the folio is smaller.

mod huge;
mod spare;

use self::spare::Spare;
use crate::cached::FileFault;
use crate::cow::{copy_on_write, hold_page, is_pinned_and_cached, must_copy};
use crate::error::{FaultError, Refusal};
use crate::new_page::{allocate_new_page, map_new_page};
use crate::step::{HugeFault, Step};
use crate::vm_fault::VmFault;
use quire_arch::paging::PteMarker;
use quire_arch::{Access, Entry, Leaf, LeafFlags, Level, Order, PagingFormat, Pfn, Pin, Platform, VirtAddr};
use quire_frame::{FolioCounter, Kind, VmEvent};
use quire_pagetable::{FlushCause, Found, LockedTable, Tables, page_of, pages_from};
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
    /// Makes the access possible; `found` is what leads to the page.
    #[inline]
    pub(crate) fn resolve(&self, found: Found) -> Result<(), Refusal> {
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
        match self.step(found)? {
            Step::Done => Ok(()),
            Step::LookAgain => self.resolve_again(),
        }
    }

    /// The same where something changed under the first step.
    #[cold]
    fn resolve_again(&self) -> Result<(), Refusal> {
        let mut attempt = 0;
        loop {
            P::relax(attempt);
            attempt = attempt.saturating_add(1);
            if self.step(self.tables.lookup(self.fault.addr))? == Step::Done {
                return Ok(());
            }
        }
    }

    /// Makes the access possible by what leads to the page.
    #[inline(always)]
    fn step(&self, found: Found) -> Result<Step, Refusal> {
        match found {
            Found::Table(table) => self.resolve_in_table(table),
            Found::Huge(slot) => self.resolve_huge(slot),
            // The page, and its table with it, may have been removed already.
            Found::Nothing if self.fault.space.is_killed() => Err(FaultError::Killed.into()),
            Found::Nothing => self.resolve_without_table(),
        }
    }

    /// Makes the access possible where no table is.
    fn resolve_without_table(&self) -> Result<Step, Refusal> {
        let way = self.fault_huge()?;
        if way == HugeFault::Mapped {
            return Ok(Step::Done);
        }
        match self.tables.make(self.pin, self.fault.addr, Level::PTE)? {
            Some(table) if way == HugeFault::Alone => self.resolve_alone(table),
            Some(table) => self.resolve_in_table(table),
            None => Ok(Step::LookAgain),
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
            seen => self.resolve_entry((table, index), seen),
        }
    }

    /// Maps a new page by entry `index` of `table`, which was none.
    fn resolve_none(&self, (table, index): (Pfn, usize)) -> Result<Step, Refusal> {
        let Self { tables, pin, ref fault, .. } = *self;
        if let Some(of_file) = FileFault::of(tables, pin, fault) {
            return of_file.resolve((table, index));
        }
        if fault.kind() == Kind::Anonymous && fault.orders().is_empty() {
            let page = (allocate_new_page(&tables, pin)?, fault.vma.new_page(fault.addr));
            return map_new_page((&tables, fault.space), pin, (table, index), fault.addr, page);
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
    fn resolve_entry(&self, (table, index): (Pfn, usize), seen: u64) -> Result<Step, Refusal> {
        if let Entry::Swap(swap) = P::Paging::decode(seen, Level::PTE)
            && self.fault.swap_zeros_in(&self.tables, self.pin, (table, index), (seen, swap))
        {
            return Ok(Step::Done);
        }
        self.resolve_live((table, index), seen)
    }

    /// The same for what was no page of zeros.
    // A frame of its own, which those do not need.
    #[inline(never)]
    fn resolve_live(&self, (table, index): (Pfn, usize), seen: u64) -> Result<Step, Refusal> {
        let Self { tables, pin, ref fault, .. } = *self;
        let entries = tables.entries(table);
        let mut spare = Spare::new(self);
        if fault.needs_folio(P::Paging::decode(seen, Level::PTE)) {
            spare.fill(entries, index)?;
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
            let kind = frame.kind();
            if kind == Kind::File {
                // The page is not shared (docs/differences.md), so it becomes anonymous where it is.
                frame.as_folio().set_owner(vma.anon.owner_word());
                let taken = frame.classify(Kind::Allocated).and_then(|()| frame.classify(Kind::Anonymous));
                debug_assert!(taken.is_ok(), "a file page could not become anonymous");
                tables.space().residency.file_page_made_anonymous(kind);
                tables.memory().memcgs().folios().disown_file_page(pin, frame);
                tables.memory().memcgs().folios().list_new(pin, leaf.pfn, vma.is_locked());
            }
            tables.memory().frames().events().add(pin, VmEvent::Pgreuse, 1);
        }
        locked.widen(index, fault.allowed());
        Ok(())
    }
}

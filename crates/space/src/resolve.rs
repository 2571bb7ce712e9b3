//! Making a page available where a fault asks for it.
//!
//! Memory is allocated before a table is locked, according to a look without the lock, and what was seen is
//! checked again under it. A new page of private memory is part of a folio as large as the policy allows, the
//! mapping has room for, and the table is empty for; where memory is short it is a smaller one.

use crate::cpus::FlushCause;
use crate::error::FaultError;
use crate::fault::Refusal;
use crate::huge::{HugeUse, OrderSet};
use crate::rmap::set_owner;
use crate::space::page_of;
use crate::swap_in::SwappedIn;
use crate::table::{Entries, Found, HugeSlot, LockedTable, Tables};
use crate::vma::{SwapInWindow, VmFlags, Vma, VmaSnapshot};
use quire_arch::paging::PteMarker;
use quire_arch::{Access, Entry, Leaf, LeafFlags, Level, Order, PagingFormat, Pfn, Pin, Platform, VirtAddr};
use quire_frame::{AllocRequest, FolioCounter, Kind, VmEvent};
use quire_memcg::MemcgStat;
use quire_sync::atomic::raw::Ordering;

/// One fault: where, for what, and in which mapping.
pub(crate) struct Fault<'f, P: Platform> {
    pub(crate) facts: &'f VmaSnapshot,
    pub(crate) addr: VirtAddr,
    pub(crate) access: Access,
    /// What was swapped in for it.
    pub(crate) swapped: Option<&'f SwappedIn<'f, P>>,
    /// How far the mapping's swap-ins reach.
    pub(crate) window: &'f SwapInWindow,
}

impl<P: Platform> Fault<'_, P> {
    fn is_write(&self) -> bool {
        self.access == Access::Write
    }

    fn is_private(&self) -> bool {
        !self.facts.flags.contains(VmFlags::SHARED)
    }

    /// What a new page will be. This depends on the mapping and the access, not on the entry.
    fn kind(&self) -> Kind {
        if self.is_write() && self.is_private() { Kind::Anonymous } else { Kind::File }
    }

    /// Whether the access to a page in this state takes memory of its own.
    #[inline]
    fn needs_folio(&self, entry: Entry) -> bool {
        match entry {
            Entry::None => self.is_write() || !self.facts.backing.is_anonymous(),
            Entry::Leaf(leaf) => self.is_write() && leaf.flags.contains(LeafFlags::SPECIAL),
            _ => false,
        }
    }
}

/// A folio that was allocated before the lock was taken. It is freed if it turns out not to be needed.
struct Spare<'s, 'p, P: Platform> {
    tables: Tables<'s, P>,
    pin: &'s Pin<'p, P>,
    fault: &'s Fault<'s, P>,
    folio: Option<(Pfn, Order)>,
}

impl<P: Platform> Spare<'_, '_, P> {
    /// Gets a folio of the largest order that is allowed, fits the empty entries around `index`, and is
    /// available.
    #[inline]
    fn fill(&mut self, entries: &Entries, index: usize) -> Result<(), Refusal> {
        self.empty();
        let orders = self.tables.orders(self.fault);
        if !orders.is_empty() && self.fill_large(orders, entries, index) {
            return Ok(());
        }
        let request = AllocRequest::anonymous().kind(self.fault.kind());
        let pfn = self.tables.spaces.frames().allocate(self.pin, request)?;
        self.tables.charge_new(self.pin, pfn, Order::ZERO)?;
        self.folio = Some((pfn, Order::ZERO));
        Ok(())
    }

    #[cold]
    fn fill_large(&mut self, orders: OrderSet, entries: &Entries, index: usize) -> bool {
        let frames = self.tables.spaces.frames();
        let huge = Tables::<P>::huge_order().map_or(OrderSet::EMPTY, OrderSet::of);
        // Tables of some formats are smaller than the largest folio.
        let fitting = OrderSet::from_bits((2 << P::Paging::INDEX_BITS[0]) - 1);
        for order in orders.intersection(fitting).difference(huge).iter() {
            if !is_empty(entries, index, order) {
                continue;
            }
            if let Ok(pfn) = frames.allocate(self.pin, self.tables.large_request(self.fault, order))
                && self.tables.charge_new(self.pin, pfn, order).is_ok()
            {
                self.folio = Some((pfn, order));
                return true;
            }
            frames.events().count_folio(self.pin, order, FolioCounter::AnonFaultFallback, 1);
        }
        false
    }

    /// Whether there is a folio, and the entries for all its pages are empty, or it is one page.
    #[inline]
    fn fits(&self, entries: &Entries, index: usize) -> bool {
        self.folio.is_some_and(|(_, order)| order == Order::ZERO || is_empty(entries, index, order))
    }

    #[inline]
    fn empty(&mut self) {
        if let Some((pfn, order)) = self.folio.take() {
            self.tables.spaces.memcgs().release_unused(self.pin, pfn, order);
        }
    }
}

impl<P: Platform> Drop for Spare<'_, '_, P> {
    fn drop(&mut self) {
        self.empty();
    }
}

/// Whether all entries of the aligned block of `order` around `index` are none.
fn is_empty(entries: &Entries, index: usize, order: Order) -> bool {
    let first = index & !(order.pages() as usize - 1);
    entries[first..first + order.pages() as usize].iter().all(|entry| entry.load(Ordering::Relaxed) == 0)
}

impl<P: Platform> Tables<'_, P> {
    /// Makes `access` to `addr` in `vma` possible. The VMA is held by its own lock or by the mmap lock.
    #[inline]
    pub(crate) fn resolve(
        &self,
        pin: &Pin<'_, P>,
        vma: &Vma,
        addr: VirtAddr,
        access: Access,
        swapped: Option<&SwappedIn<'_, P>>,
    ) -> Result<(), Refusal> {
        let facts = vma.facts();
        let fault = Fault { facts: &facts, addr, access, swapped, window: &vma.swap_window };
        let may = if fault.is_write() { VmFlags::WRITE } else { VmFlags::ACCESS };
        if !facts.flags.intersects(may) {
            return Err(FaultError::AccessDenied.into());
        }
        if facts.flags.contains(VmFlags::HUGETLB) {
            // The pool is empty.
            return Err(FaultError::Bus.into());
        }
        if fault.is_write() && fault.is_private() && !facts.anon.is_some() {
            return Err(Refusal::NeedsAnonVma);
        }
        let mut attempt = 0;
        loop {
            match self.lookup(addr) {
                Found::Table(table) => {
                    if self.resolve_in_table(pin, table, &fault)? {
                        return Ok(());
                    }
                }
                Found::Huge(slot) => {
                    if self.resolve_huge(pin, slot, &fault)? {
                        return Ok(());
                    }
                }
                Found::Nothing => {
                    if self.fault_huge(pin, &fault)? {
                        return Ok(());
                    }
                    if let Some(table) = self.make(pin, addr, Level::PTE)?
                        && self.resolve_in_table(pin, table, &fault)?
                    {
                        return Ok(());
                    }
                }
            }
            P::relax(attempt);
            attempt = attempt.saturating_add(1);
        }
    }

    /// The orders that a new folio for `fault` may have, besides order 0.
    #[inline]
    pub(crate) fn orders(&self, fault: &Fault<'_, P>) -> OrderSet {
        if !self.spaces.huge().any_size(fault.facts.flags) {
            OrderSet::EMPTY
        } else {
            self.large_orders(fault)
        }
    }

    #[cold]
    fn large_orders(&self, fault: &Fault<'_, P>) -> OrderSet {
        if !fault.is_private() || !fault.facts.backing.is_anonymous() {
            return OrderSet::EMPTY;
        }
        let policy = self.spaces.huge().policy();
        let orders = policy.orders(HugeUse::Fault, fault.facts.flags, self.core.huge_disable.load());
        if orders.is_empty() { orders } else { orders.around(fault.addr, fault.facts.range) }
    }

    /// A request for a new large folio, with the effort that the policy allows.
    fn large_request(&self, fault: &Fault<'_, P>, order: Order) -> AllocRequest {
        let request = AllocRequest::anonymous().kind(Kind::Anonymous).order(order);
        let effort = self.spaces.huge().policy().fault_effort(fault.facts.flags);
        if effort.may_drain() { request } else { request.without_drain() }
    }

    /// Makes the access possible through `table`. Returns false where it is dead: there is another, or none,
    /// by now.
    fn resolve_in_table(&self, pin: &Pin<'_, P>, table: Pfn, fault: &Fault<'_, P>) -> Result<bool, Refusal> {
        let index = P::Paging::index(fault.addr, Level::PTE);
        let entries = self.entries(table);
        let mut spare = Spare { tables: *self, pin, fault, folio: None };
        let seen = entries[index].load(Ordering::Relaxed);
        let mut zeros = None;
        match P::Paging::decode(seen, Level::PTE) {
            Entry::Swap(swap) => zeros = self.zeros_for(pin, swap, fault),
            entry if fault.needs_folio(entry) => spare.fill(entries, index)?,
            _ => {}
        }
        loop {
            let locked = self.lock(pin, table, Level::PTE);
            let entry = locked.get(index);
            if fault.needs_folio(entry) && !spare.fits(entries, index) {
                // The entries changed since the look.
                drop(locked);
                spare.fill(entries, index)?;
                continue;
            }
            if let Entry::Leaf(leaf) = entry
                && fault.is_write()
                && self.must_copy(&locked, index, leaf, fault.facts)
            {
                if self.is_pinned_and_cached(leaf.pfn) {
                    // The thread that pages it out fails because of the pin, and puts the folio back.
                    return Ok(false);
                }
                let held = self.hold(leaf.pfn);
                drop(locked);
                if let Some(held) = held {
                    self.copy_on_write(&held, (table, index), fault.facts, fault.addr)?;
                }
                return Ok(true);
            }
            return match entry {
                Entry::None if locked.is_dead() => Ok(false),
                // What was there may have been taken already.
                Entry::None if self.core.is_killed() => Err(FaultError::Killed.into()),
                Entry::None => {
                    self.install_new(pin, &locked, index, fault, spare.folio.take());
                    Ok(true)
                }
                Entry::Leaf(leaf) => {
                    self.upgrade(&locked, index, leaf, fault, &mut spare)?;
                    Ok(true)
                }
                Entry::Swap(swap)
                    if zeros
                        .as_mut()
                        .is_some_and(|zeros| self.map_zeros(&locked, (index, swap), zeros, fault)) =>
                {
                    Ok(true)
                }
                Entry::Swap(swap) => match self.map_swapped(&locked, index, swap, fault)? {
                    true => Ok(true),
                    // It was mapped for reading, and is to be written to.
                    false => {
                        drop(locked);
                        continue;
                    }
                },
                Entry::Marker(PteMarker::Guard) => Err(FaultError::NotMapped.into()),
                _ => Err(FaultError::Bus.into()),
            };
        }
    }

    /// Maps a new folio, or the page of zeros where there is none, around the empty entry `index`.
    #[inline]
    fn install_new(
        &self,
        pin: &Pin<'_, P>,
        locked: &LockedTable<'_, P>,
        index: usize,
        fault: &Fault<'_, P>,
        folio: Option<(Pfn, Order)>,
    ) {
        let mut flags = fault.facts.flags.leaf_flags() | LeafFlags::ACCESSED;
        let Some((pfn, order)) = folio else {
            flags = (flags - LeafFlags::WRITE) | LeafFlags::SPECIAL;
            locked.install(index, Entry::Leaf(Leaf { pfn: self.spaces.zero_page(), flags }));
            return;
        };
        let anonymous = fault.kind() == Kind::Anonymous;
        flags.set(LeafFlags::DIRTY, fault.is_write());
        if fault.is_private() && !anonymous {
            // The first write makes the page the program's own, so it must fault.
            flags.remove(LeafFlags::WRITE);
        }
        if order == Order::ZERO {
            self.spaces.init_page(pfn, fault.facts, fault.addr);
            self.core.usage.page_mapped(anonymous);
            locked.install(index, Entry::Leaf(Leaf { pfn, flags }));
            if anonymous {
                self.list_new(pin, pfn, fault.facts);
            }
            return;
        }
        let pages = order.pages();
        let first = index & !(pages as usize - 1);
        let start = VirtAddr(fault.addr.0 & !(order.bytes() - 1));
        self.spaces.init_folio(pfn, pages as u32, fault.facts, start);
        self.core.usage.anonymous_mapped(pages);
        let raw = P::Paging::encode(Entry::Leaf(Leaf { pfn, flags }), Level::PTE);
        for nth in 0..pages {
            LockedTable::<P>::put_raw(&locked.entries[first + nth as usize], P::Paging::frames_on(raw, nth));
        }
        locked.count_installed(pages as usize);
        self.list_new(pin, pfn, fault.facts);
        let events = self.spaces.frames().events();
        events.count_folio(pin, order, FolioCounter::AnonFaultAlloc, 1);
        events.count_folio(pin, order, FolioCounter::NrAnon, 1);
    }

    /// Makes a page that is there allow the access.
    fn upgrade(
        &self,
        locked: &LockedTable<'_, P>,
        index: usize,
        leaf: Leaf,
        fault: &Fault<'_, P>,
        spare: &mut Spare<'_, '_, P>,
    ) -> Result<(), FaultError> {
        let facts = fault.facts;
        if leaf.flags.contains(fault.access.needs()) {
            // Another thread was faster, or the TLB held an older entry. Or memory is populated for writes,
            // which are to be noted.
            if fault.is_write() {
                locked.widen(index, LeafFlags::DIRTY);
            }
            return Ok(());
        }
        if fault.access == Access::Execute && !facts.flags.contains(VmFlags::EXEC) {
            return Err(FaultError::AccessDenied);
        }
        if leaf.flags.contains(LeafFlags::SPECIAL) {
            if let Some((pfn, _)) = spare.folio.take() {
                // First nothing, then the flush, then the new page: no CPU may go on reading zeros from the
                // shared page after another has written to the new one.
                locked.replace(index, Entry::None);
                let page = page_of(fault.addr);
                self.core.flush(self.spaces.frames(), spare.pin, page, FlushCause::CopyOnWrite);
                self.spaces.init_page(pfn, facts, fault.addr);
                self.core.usage.page_mapped(true);
                let flags = facts.flags.leaf_flags() | LeafFlags::ACCESSED | LeafFlags::DIRTY;
                locked.replace(index, Entry::Leaf(Leaf { pfn, flags }));
                self.list_new(spare.pin, pfn, facts);
            }
            return Ok(());
        }
        if fault.is_write() && fault.is_private() {
            let frame = self.spaces.frames().folio(leaf.pfn).frame();
            if frame.kind() == Kind::File {
                // The page is not shared (docs/differences.md), so it becomes anonymous where it is.
                set_owner(frame, facts.anon);
                let taken = frame.classify(Kind::Allocated).and_then(|()| frame.classify(Kind::Anonymous));
                debug_assert!(taken.is_ok(), "a file page could not become anonymous");
                self.core.usage.file_page_made_anonymous();
                self.list_new(spare.pin, leaf.pfn, facts);
            }
            self.spaces.frames().events().add(spare.pin, VmEvent::Pgreuse, 1);
        }
        locked.widen(index, fault.allowed());
        Ok(())
    }

    /// Makes the access possible to what a large leaf maps. Returns false where it is to be tried again: the
    /// leaf is gone, or was split, since a write needs a copy of one page.
    fn resolve_huge(&self, pin: &Pin<'_, P>, slot: HugeSlot, fault: &Fault<'_, P>) -> Result<bool, Refusal> {
        let zero = {
            let locked = self.lock_slot(pin, slot);
            let Some(leaf) = Self::huge_leaf(&locked, slot) else { return Ok(false) };
            if leaf.flags.contains(fault.access.needs()) {
                if fault.is_write() {
                    // As in `upgrade`.
                    locked.widen(slot.index, LeafFlags::DIRTY);
                }
                return Ok(true);
            }
            if fault.access == Access::Execute && !fault.facts.flags.contains(VmFlags::EXEC) {
                return Err(FaultError::AccessDenied.into());
            }
            let zero = leaf.flags.contains(LeafFlags::SPECIAL);
            let own = !fault.is_write() || !zero && self.is_own_huge(leaf, fault);
            if own {
                if fault.is_write() {
                    self.spaces.frames().events().add(pin, VmEvent::Pgreuse, 1);
                }
                locked.widen(slot.index, fault.allowed());
                return Ok(true);
            }
            zero
        };
        if let Some(order) = Self::huge_order().filter(|_| zero) {
            return Ok(self.write_huge_zero(pin, slot, fault, order));
        }
        self.split_huge(slot);
        Ok(false)
    }

    /// Whether the folio that a large leaf maps may be written to as it is.
    fn is_own_huge(&self, leaf: Leaf, fault: &Fault<'_, P>) -> bool {
        let folio = self.spaces.frames().lock_folio(leaf.pfn);
        !fault.is_private() || folio.is_exclusive() || folio.claim(Self::huge_pages())
    }

    /// Maps a folio of the PMD's order where no table is, or for a read the huge page of zeros, if the policy
    /// wants that and memory is there. Returns whether it did.
    fn fault_huge(&self, pin: &Pin<'_, P>, fault: &Fault<'_, P>) -> Result<bool, Refusal> {
        let Some(order) = Self::huge_order().filter(|&order| self.orders(fault).contains(order)) else {
            return Ok(false);
        };
        // Also for zeros, as in Linux: a later collapse of them finds the anon_vma.
        if !fault.facts.anon.is_some() {
            return Err(Refusal::NeedsAnonVma);
        }
        if !fault.is_write() && self.spaces.huge().policy().zero_page() {
            return Ok(self.fault_huge_zero(pin, fault, order));
        }
        let frames = self.spaces.frames();
        let Some(head) = self.allocate_huge(pin, fault, order) else { return Ok(false) };
        match self.place_huge(pin, fault.addr) {
            Ok(Some((slot, deposit))) => {
                if self.install_huge(pin, slot, (head, deposit), fault.facts) {
                    self.list_new(pin, head, fault.facts);
                    self.count_huge_fault(pin, order);
                    return Ok(true);
                }
                self.spaces.memcgs().release_unused(pin, deposit, Order::ZERO);
            }
            Ok(None) => {}
            Err(_) => frames.events().count_folio(pin, order, FolioCounter::AnonFaultFallback, 1),
        }
        self.spaces.memcgs().release_unused(pin, head, order);
        Ok(false)
    }

    /// A folio of the PMD's order for `fault`, charged to its memcg. Where there is none that is counted.
    fn allocate_huge(&self, pin: &Pin<'_, P>, fault: &Fault<'_, P>, order: Order) -> Option<Pfn> {
        let frames = self.spaces.frames();
        let allocated = frames.allocate(pin, self.large_request(fault, order)).ok();
        let head = allocated.filter(|&head| self.charge_new(pin, head, order).is_ok());
        if head.is_none() {
            frames.events().count_folio(pin, order, FolioCounter::AnonFaultFallback, 1);
        }
        head
    }

    fn count_huge_fault(&self, pin: &Pin<'_, P>, order: Order) {
        let events = self.spaces.frames().events();
        events.count_folio(pin, order, FolioCounter::AnonFaultAlloc, 1);
        events.count_folio(pin, order, FolioCounter::NrAnon, 1);
        self.count_for_memcg(pin, MemcgStat::ThpFaultAlloc);
    }

    /// Maps the huge page of zeros where no table is. Returns whether it did.
    fn fault_huge_zero(&self, pin: &Pin<'_, P>, fault: &Fault<'_, P>, order: Order) -> bool {
        let Ok(Some((slot, deposit))) = self.place_huge(pin, fault.addr) else { return false };
        match self.spaces.hold_huge_zero(pin, order) {
            Ok(zero) => {
                if self.install_huge_zero(pin, slot, (zero, deposit), fault.facts) {
                    return true;
                }
                self.spaces.put_huge_zero(zero, 1);
            }
            // Linux counts this in vmstat alone, not with the folios of the size.
            Err(_) => self.spaces.frames().events().add(pin, VmEvent::ThpFaultFallback, 1),
        }
        self.spaces.memcgs().release_unused(pin, deposit, Order::ZERO);
        false
    }

    /// Gives a program that writes to the huge page of zeros, mapped at `slot`, a folio in its place; as
    /// Linux whatever the policy is by now. Where there is none the leaf of zeros is split. Returns whether
    /// the access is possible.
    fn write_huge_zero(&self, pin: &Pin<'_, P>, slot: HugeSlot, fault: &Fault<'_, P>, order: Order) -> bool {
        let Some(head) = self.allocate_huge(pin, fault, order) else {
            self.split_huge(slot);
            return false;
        };
        let replaced = self.replace_huge_zero(pin, slot, head, fault.facts);
        if replaced {
            self.list_new(pin, head, fault.facts);
            self.count_huge_fault(pin, order);
        } else {
            self.spaces.memcgs().release_unused(pin, head, order);
        }
        replaced
    }
}

impl<P: Platform> Fault<'_, P> {
    /// The permissions that the entry gets. More is allowed than before, so older translations do no harm:
    /// they fault and find this. What is not known to be the program's own stays write-protected on a read.
    fn allowed(&self) -> LeafFlags {
        let mut allowed = self.facts.flags.leaf_flags();
        if !self.is_write() && self.is_private() {
            allowed.remove(LeafFlags::WRITE);
        }
        allowed.set(LeafFlags::DIRTY, self.is_write());
        allowed
    }
}

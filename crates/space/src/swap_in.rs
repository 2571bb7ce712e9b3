//! Swap-in: a fault that finds a swap entry.
//!
//! The fault drops all that it holds, brings the folio into the swap cache, and retries with it under its
//! folio lock. Only then, and if the entry still names the slot, the page is mapped
//! ([`Tables::map_swapped`]): as long as the cache has the folio its slots are not free, so they cannot stand
//! for other contents in the meantime.
//!
//! The thread that inserts the folio reads it. Every other thread that wants it finds it in the cache and
//! sleeps until the reader releases the folio lock. What the technique before does otherwise is in
//! [`before`], how much is read at once is up to [`SwapInWindow`](crate::vma::SwapInWindow), and pages that
//! need not be read are in [`zeros`].

mod before;
mod zeros;

use crate::error::FaultError;
use crate::fault::Refusal;
use crate::gather::pages_from;
use crate::huge::OrderSet;
use crate::resolve::Fault;
use crate::rmap::{set_owner, set_owner_to_root};
use crate::spaces::{Need, Spaces};
use crate::table::{LockedTable, Tables};
use core::cell::Cell;
use core::fmt;
use quire_arch::{
    Access, Entry, Leaf, LeafFlags, Level, Order, PAGE_SIZE, PagingFormat, Pfn, Pin, Platform, SwapEntry,
    VirtAddr,
};
use quire_frame::{AllocError, AllocRequest, FolioCounter, FolioGuard, FrameFlags, Kind, VmEvent};
use quire_memcg::{MemcgId, MemcgStat, OverLimit};
use quire_swap::{DeviceError, Inserted, IoState, Seen, Shadow, SlotId};
use quire_sync::atomic::raw::Ordering;

/// What a fault found in the place of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Swapped {
    /// The entry.
    pub(crate) entry: SwapEntry,
    /// The orders that a folio for it may have, besides order 0: the policy allows them, and the entries
    /// around it name the slots around it.
    pub(crate) orders: OrderSet,
}

/// A folio of the swap cache, or one that was read past it, under its folio lock, with a reference.
pub(crate) struct SwappedIn<'s, P: Platform> {
    spaces: &'s Spaces<P>,
    head: Pfn,
    order: Order,
    slot: SlotId,
    guard: Option<FolioGuard<'s, P>>,
    /// What its mapping left to be done.
    then: Cell<CacheFate>,
}

/// What there is to do about a folio after its page was mapped, or was not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CacheFate {
    /// The cache keeps it.
    Kept,
    /// No entry names the slots any more, so it leaves the cache.
    Removable,
    /// It left the cache with the last entry that named it.
    Removed,
    /// It never was in the cache.
    PastCache,
    /// It could not be read, and has left the cache.
    Failed,
}

impl<P: Platform> Drop for SwappedIn<'_, P> {
    fn drop(&mut self) {
        // If the folio is exclusive to the program now, a synchronous device writes it again as fast as it
        // would be found. And a thread that cleared the last swap entry while this had the lock leaves the
        // folio to this.
        let then = self.then.get();
        let left = match then {
            CacheFate::Kept | CacheFate::Removable => {
                !self.is_being_written() && self.spaces.swap().remove_unnamed(self.head)
            }
            CacheFate::Removed => true,
            CacheFate::PastCache => {
                self.spaces.end_past_cache(self.slot);
                false
            }
            CacheFate::Failed => false,
        };
        drop(self.guard.take());
        if left {
            // The cache's reference; this one's own is still there.
            let last = self.spaces.frames().known(self.head).put(1);
            debug_assert!(!last, "{:?} is held twice", self.head);
        } else if matches!(then, CacheFate::Kept | CacheFate::Removable) {
            self.spaces.swap().leave_if_unnamed(self.head);
        }
        self.spaces.memcgs().release_folio(self.head);
    }
}

impl<P: Platform> fmt::Debug for SwappedIn<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SwappedIn")
            .field("head", &self.head)
            .field("slot", &self.slot)
            .finish_non_exhaustive()
    }
}

impl<P: Platform> SwappedIn<'_, P> {
    /// Its first frame.
    pub(crate) fn head(&self) -> Pfn {
        self.head
    }

    fn is_being_written(&self) -> bool {
        self.spaces.frames().known(self.head).word().flags().contains(FrameFlags::WRITEBACK)
    }

    /// Entries that named `pages` slots from `start` on are gone. The lock of their table is held.
    fn names_gone(&self, start: SlotId, pages: u64) {
        let swap = self.spaces.swap();
        let is_all = pages == self.order.pages();
        match self.then.get() {
            CacheFate::Kept if is_all && swap.technique().leaves_when_mapped() => {
                if swap.drop_counts_and_leave(self.head) {
                    self.then.set(CacheFate::Removed);
                }
            }
            CacheFate::Kept | CacheFate::Removable => {
                if swap.drop_counts(start, pages as u32).cached_only {
                    self.then.set(CacheFate::Removable);
                }
            }
            CacheFate::PastCache => {
                let _ = swap.drop_counts(start, pages as u32);
            }
            CacheFate::Removed | CacheFate::Failed => {
                debug_assert!(false, "{start} was named once more after it was free");
            }
        }
    }

    /// Which page of the folio `slot` is. None once the folio has left the cache: the slot may be another
    /// page's by now.
    fn page_of(&self, slot: SlotId) -> Option<u64> {
        if matches!(self.then.get(), CacheFate::Removed | CacheFate::Failed) {
            return None;
        }
        let nth = slot.raw().wrapping_sub(self.slot.raw());
        (nth < self.order.pages()).then_some(nth)
    }
}

impl<'s, P: Platform> Spaces<P> {
    /// Brings what `wanted` names into the cache. `None` where it is to be looked for again. The caller is
    /// not pinned and holds no locks but those of mappings.
    #[cold]
    pub(crate) fn swap_in(&'s self, wanted: Swapped) -> Result<Option<SwappedIn<'s, P>>, FaultError> {
        let slot = SlotId::of(wanted.entry);
        let technique = self.swap().technique();
        let orders = if technique.leaves_when_mapped() { wanted.orders } else { OrderSet::EMPTY };
        // Counted where it turns out to be so: a fault that finds the folio in the cache is a minor one.
        let (mut order, group) = match self.swap().look(slot, orders.most()) {
            Seen::Cached(page) => return self.join(page, slot),
            // The slots may be alike up to an order that the policy does not allow.
            Seen::Out { order, group } => (orders.up_to(order).most(), MemcgId::from_bits(group)),
            Seen::Gone => {
                self.wait_for_bypass();
                return Ok(None);
            }
        };
        if technique.bypasses() && self.may_bypass(slot) {
            return self.read_past_cache(slot, group);
        }
        loop {
            let Some((head, charged)) = self.new_swap_folio(order, (slot, group))? else {
                self.frames().events().count_folio(
                    &self.platform().pin(),
                    order,
                    FolioCounter::SwpinFallback,
                    1,
                );
                order = orders.below(order).most();
                continue;
            };
            let Some(guard) = self.frames().try_lock_folio_long(head) else {
                self.memcgs().release_folio(head);
                return Ok(None);
            };
            let first = slot.block_start(order);
            match self.swap().insert(first, head) {
                Inserted::Won { shadow, zero, group: now } => {
                    self.settle_charge(order, charged, MemcgId::from_bits(now));
                    self.note_major(&self.platform().pin(), head, shadow);
                    let read = match self.swap().read_inserted(head, zero) {
                        IoState::Done(result) => result,
                        IoState::Begun => self.swap().wait_read(head),
                    };
                    let then = Cell::new(CacheFate::Kept);
                    let held = SwappedIn { spaces: self, head, order, slot: first, guard: Some(guard), then };
                    return self.read_completed(held, read).map(Some);
                }
                other => {
                    drop(guard);
                    self.memcgs().release_folio(head);
                    match other {
                        Inserted::Found(page) => return self.join(page, slot),
                        // Each order is tried once.
                        Inserted::Conflict | Inserted::NoMemory if order > Order::ZERO => {
                            order = orders.below(order).most();
                        }
                        _ => return Ok(None),
                    }
                }
            }
        }
    }

    /// Makes the descriptor of a new folio that of an unmapped one.
    pub(crate) fn init_unmapped(&self, head: Pfn) {
        let frame = self.frames().known(head);
        frame.map_count().store(0, Ordering::Relaxed);
        frame.live().store(0, Ordering::Relaxed);
        frame.owner().store(0, Ordering::Relaxed);
    }

    /// A folio of `order` for what is in a slot, and the memcg that it is charged to: that of the slot, which
    /// was seen before. `None` where there is no folio of an order above 0.
    fn new_swap_folio(
        &self,
        order: Order,
        slot: (SlotId, MemcgId),
    ) -> Result<Option<(Pfn, MemcgId)>, FaultError> {
        loop {
            match self.try_swap_folio(order, slot, order == Order::ZERO) {
                Ok(had) => return Ok(Some(had)),
                Err(_) if order > Order::ZERO => return Ok(None),
                Err((cause, need)) if !self.make_room(cause, need) => {
                    return Err(FaultError::OutOfMemory(cause));
                }
                Err(_) => {}
            }
        }
    }

    /// The same, or what is short. Per-CPU lists are drained for it only with `drains`.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn try_swap_folio(
        &self,
        order: Order,
        slot: (SlotId, MemcgId),
        drains: bool,
    ) -> Result<(Pfn, MemcgId), (AllocError, Need)> {
        let request = AllocRequest::anonymous().uninitialised().kind(Kind::Anonymous).order(order);
        let request = if drains { request } else { request.without_drain() };
        let pin = self.platform().pin();
        let head = self.frames().allocate(&pin, request).map_err(|cause| (cause, Need::Frames(order)))?;
        self.init_unmapped(head);
        let group = match self.charge_for_slot(&pin, slot, order) {
            Ok(group) => group,
            Err(over) => {
                self.memcgs().release_unused(&pin, head, order);
                if order > Order::ZERO {
                    self.frames().events().count_folio(&pin, order, FolioCounter::SwpinFallbackCharge, 1);
                }
                return Err((AllocError::OutOfMemory, Need::Memcg(over.memcg, order.pages())));
            }
        };
        self.frames().known(head).memcg().store(group.get(), Ordering::Relaxed);
        if order > Order::ZERO {
            self.frames().events().count_folio(&pin, order, FolioCounter::NrAnon, 1);
        }
        Ok((head, group))
    }

    /// Charges a folio to the memcg that has `slot`, which was `seen`, and returns which one it is by now:
    /// since the look the slot may have been freed, and its memcg may have been removed. The slot keeps its
    /// memcg, and the section keeps the number.
    fn charge_for_slot(
        &self,
        pin: &Pin<'_, P>,
        (slot, seen): (SlotId, MemcgId),
        order: Order,
    ) -> Result<MemcgId, OverLimit> {
        if seen.is_root() {
            return Ok(seen);
        }
        let _section = self.frames().epoch().enter(pin);
        let group = MemcgId::from_bits(self.swap().group_of(slot));
        self.memcgs().try_charge(pin, group, order.pages()).map(|()| group)
    }

    /// A folio that was charged to `charged` is in the cache for slots that may have been given to another
    /// memcg since: that one has it now.
    pub(crate) fn settle_charge(&self, order: Order, charged: MemcgId, group: MemcgId) {
        if group != charged {
            let pin = self.platform().pin();
            self.memcgs().charge_anyway(&pin, group, order.pages());
            self.memcgs().uncharge(&pin, charged, order.pages());
        }
    }

    /// A folio is about to be read for a fault: a major one.
    fn note_major(&self, pin: &Pin<'_, P>, head: Pfn, shadow: Option<Shadow>) {
        self.frames().events().add(pin, VmEvent::Pgmajfault, 1);
        let group = MemcgId::from_bits(self.frames().known(head).memcg().load(Ordering::Relaxed));
        self.memcgs().add_stat(pin, group, MemcgStat::Pgmajfault, 1);
        self.note_wanted(pin, head, shadow);
    }

    /// A folio is about to be read that a program wants: its page goes on an LRU list.
    pub(crate) fn note_wanted(&self, pin: &Pin<'_, P>, head: Pfn, shadow: Option<Shadow>) {
        let list = self.refault(pin, head, shadow);
        self.memcgs().list_folio(pin, head, list);
    }

    /// The device has completed the read of a folio of the cache.
    fn read_completed(
        &self,
        mut held: SwappedIn<'s, P>,
        read: Result<(), DeviceError>,
    ) -> Result<SwappedIn<'s, P>, FaultError> {
        if read.is_ok() {
            return Ok(held);
        }
        // A thread that waits for the lock sees that it failed; a later fault tries the device again.
        let left = self.swap().discard_failed(held.head);
        held.then.set(CacheFate::Failed);
        drop(held.guard.take());
        if left {
            self.memcgs().release_folio(held.head);
        }
        Err(FaultError::Bus)
    }

    /// Waits for the folio of `page`, to which the caller has a reference: another thread may be reading it.
    /// It may have left the cache meanwhile.
    fn join(&'s self, page: Pfn, slot: SlotId) -> Result<Option<SwappedIn<'s, P>>, FaultError> {
        let head = self.frames().folio(page).head();
        // No thread waits for a folio that was read ahead but one that wants it, so this one must reap the
        // completion.
        let _ = self.swap().wait_read(head);
        let guard = self.frames().lock_folio_long(head);
        let folio = self.frames().folio(page);
        let flags = folio.frame().word().flags();
        let first = SlotId::from_raw(folio.frame().private().load(Ordering::Relaxed));
        let joined = SwappedIn {
            spaces: self,
            head: folio.head(),
            order: folio.order(),
            slot: first,
            guard,
            then: Cell::new(CacheFate::Kept),
        };
        if folio.head() != head {
            // It was split: the reference is to its first part.
            let mut joined = joined;
            joined.head = head;
            return Ok(None);
        }
        if flags.contains(FrameFlags::READ_FAILED) {
            return Err(FaultError::Bus);
        }
        let is_it = flags.contains(FrameFlags::SWAP_CACHE) && joined.page_of(slot).is_some();
        Ok(is_it.then_some(joined))
    }
}

impl<P: Platform> Tables<'_, P> {
    /// Maps the page that entry `index` names, or all of its folio if the entries around name the rest.
    /// Returns whether the access is possible now.
    pub(crate) fn map_swapped(
        &self,
        locked: &LockedTable<'_, P>,
        index: usize,
        entry: SwapEntry,
        fault: &Fault<'_, P>,
    ) -> Result<bool, Refusal> {
        let slot = SlotId::of(entry);
        let found = fault.swapped.and_then(|held| held.page_of(slot).map(|nth| (held, nth)));
        let Some((held, nth)) = found else {
            return Err(Refusal::Swapped(self.look_around(locked, index, entry, fault)));
        };
        let frames = self.spaces.frames();
        let whole = self.names_whole_folio(locked, index, (entry, nth), held, fault);
        let (first, page, pages) =
            if whole { (index - nth as usize, 0, held.order.pages()) } else { (index, nth, 1) };
        let start = held.slot.plus(page);
        let folio = frames.lock_folio(held.head);
        let frame = folio.folio().frame();
        let unmapped = folio.maps() == 0;
        let large = folio.folio().is_large();
        let exclusive = unmapped
            && (entry.exclusive && (whole || !large) || !large && self.spaces.swap().count(start) == 1);
        if !folio.may_add(pages as u32) {
            return Err(FaultError::OutOfMemory(AllocError::OutOfMemory).into());
        }
        let first_addr = VirtAddr(fault.addr.page_start().0 - (index - first) as u64 * PAGE_SIZE);
        if unmapped {
            let offset = fault.facts.page_offset_at(first_addr) - page;
            frame.index().store(offset, Ordering::Relaxed);
            if exclusive {
                set_owner(frame, fault.facts.anon);
            } else {
                set_owner_to_root(frame, fault.facts.anon);
            }
        }
        // Others may have unmapped the folio since the look. It keeps its anon_vma then, which is an ancestor
        // of this VMA's.
        if folio.add_cached_maps(pages as u32) {
            // The mappings' reference; the caller has one, so this cannot fail but past the most.
            frame.get(1);
        }
        let mut flags = fault.facts.flags.leaf_flags() | LeafFlags::ACCESSED;
        if exclusive {
            if large {
                frame.set_flags(FrameFlags::ANONYMOUS_EXCLUSIVE);
            }
            flags.set(LeafFlags::DIRTY, fault.access == Access::Write);
        } else {
            // The mark may be older than a fork that shared the entries while nothing mapped the folio.
            folio.no_longer_exclusive();
            flags.remove(LeafFlags::WRITE);
        }
        let raw = P::Paging::encode(Entry::Leaf(Leaf { pfn: held.head.offset(page), flags }), Level::PTE);
        for (entry, nth) in locked.entries[first..first + pages as usize].iter().zip(0..) {
            // Release: a walker that reads it sees the page filled.
            entry.store(P::Paging::frames_on(raw, nth), Ordering::Release);
        }
        self.core.usage.swap_gone(pages);
        self.core.usage.anonymous_mapped(pages);
        held.names_gone(start, pages);
        drop(folio);
        Ok(exclusive || fault.access != Access::Write)
    }

    /// Whether the entries around `index`, which names page `nth` of `held`, name all its pages, in one table
    /// and one mapping.
    fn names_whole_folio(
        &self,
        locked: &LockedTable<'_, P>,
        index: usize,
        (entry, nth): (SwapEntry, u64),
        held: &SwappedIn<'_, P>,
        fault: &Fault<'_, P>,
    ) -> bool {
        let pages = held.order.pages();
        if pages == 1 {
            return false;
        }
        let Some(first) = index.checked_sub(nth as usize) else { return false };
        let last = first + pages as usize;
        let start = fault.addr.page_start().0.wrapping_sub(nth * PAGE_SIZE);
        let range = pages_from(VirtAddr(start), pages as usize);
        let head = SwapEntry { slot: entry.slot - nth, ..entry };
        last <= P::Paging::entries(Level::PTE)
            && fault.facts.range.covers(range)
            && Self::swap_run(locked.entries, (first, last), head) as u64 == pages
    }

    /// The orders of a folio for the slot that entry `index` names: aligned in the table, in the mapping and
    /// among the slots alike, with the entries to match, and allowed by the policy and by what the program
    /// does.
    fn look_around(
        &self,
        locked: &LockedTable<'_, P>,
        index: usize,
        entry: SwapEntry,
        fault: &Fault<'_, P>,
    ) -> Swapped {
        let fits = |order: &Order| {
            let pages = order.pages();
            let nth = entry.slot & (pages - 1);
            let Some(first) = index.checked_sub(nth as usize) else { return false };
            let last = first + pages as usize;
            let start = fault.addr.page_start().0.wrapping_sub(nth * PAGE_SIZE);
            start.is_multiple_of(order.bytes())
                && last <= P::Paging::entries(Level::PTE)
                && fault.facts.range.covers(pages_from(VirtAddr(start), pages as usize))
                && Self::swap_run(
                    locked.entries,
                    (first, last),
                    SwapEntry { slot: entry.slot - nth, ..entry },
                ) as u64
                    == pages
        };
        let allowed = self.orders(fault);
        let largest = if allowed.is_empty() {
            None
        } else {
            let most = fault.window.order(fault.addr, fault.facts.flags);
            allowed.up_to(most).iter().find(|order| fits(order))
        };
        // A block that fits is made of smaller ones that do.
        Swapped { entry, orders: largest.map_or(OrderSet::EMPTY, |order| allowed.up_to(order)) }
    }
}

//! Swap-in: a fault that finds the name of a slot.
//!
//! The fault lets go of all that it holds, brings the folio into the swap cache, and comes back with it under its folio lock. Only
//! then, and if the entry still names the slot, the page is mapped ([`Tables::map_swapped`]): as long as the cache has the folio
//! its slots are not free, so they cannot stand for other contents in the meantime.
//!
//! Whoever inserts the folio reads it. Everybody else who wants it finds it in the cache and sleeps until the reader lets go
//! of the folio lock.

use crate::error::FaultError;
use crate::fault::Refusal;
use crate::gather::pages_from;
use crate::reclaim::Need;
use crate::resolve::Fault;
use crate::rmap::{set_owner, set_owner_to_root};
use crate::spaces::Spaces;
use crate::table::{LockedTable, Tables};
use core::cell::Cell;
use core::fmt;
use quire_arch::{
    Access, Entry, Leaf, LeafFlags, Level, Order, PAGE_SIZE, PagingFormat, Pfn, Platform, SwapEntry, VirtAddr,
};
use quire_frame::{AllocError, AllocRequest, FolioCounter, FolioGuard, FrameFlags, Kind, VmEvent};
use quire_group::GroupId;
use quire_swap::{Inserted, IoState, Shadow, SlotId};
use quire_sync::atomic::raw::Ordering;

/// What a fault found in the place of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Swapped {
    /// The entry.
    pub(crate) entry: SwapEntry,
    /// The largest order that a folio for it may have: the entries around it name the slots around it.
    pub(crate) order: Order,
}

/// A folio of the swap cache under its folio lock, with a reference.
pub(crate) struct SwappedIn<'s, P: Platform> {
    spaces: &'s Spaces<P>,
    head: Pfn,
    order: Order,
    slot: SlotId,
    guard: Option<FolioGuard<'s, P>>,
    /// Whether nobody names the slots any more.
    unnamed: Cell<bool>,
}

impl<P: Platform> Drop for SwappedIn<'_, P> {
    fn drop(&mut self) {
        let swap = self.spaces.swap();
        // The folio is the program's alone now, and a device that answers at once writes it again as fast as it would be found.
        let leaves = self.unnamed.get() && !self.is_being_written() && swap.remove_unnamed(self.head);
        drop(self.guard.take());
        if leaves {
            self.spaces.let_go(self.head);
        }
        self.spaces.let_go(self.head);
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
    fn is_being_written(&self) -> bool {
        self.spaces.frames().known(self.head).word().flags().contains(FrameFlags::WRITEBACK)
    }

    /// Which page of the folio `slot` is.
    fn page_of(&self, slot: SlotId) -> Option<u64> {
        let nth = slot.raw().wrapping_sub(self.slot.raw());
        (nth < self.order.pages()).then_some(nth)
    }
}

impl<'s, P: Platform> Spaces<P> {
    /// Brings what `wanted` names into the cache. `None` where it is to be looked for again. The caller is not pinned and holds no
    /// locks but those of mappings.
    #[cold]
    pub(crate) fn swap_in(&'s self, wanted: Swapped) -> Result<Option<SwappedIn<'s, P>>, FaultError> {
        let slot = SlotId::of(wanted.entry);
        // Counted where it turns out to be so: whoever finds the folio in the cache had a minor fault.
        if let Some(page) = self.swap().lookup(slot) {
            return self.join(page, slot);
        }
        let mut order = self.swap().peek_order(slot).map_or(Order::ZERO, |order| order.min(wanted.order));
        loop {
            let Some((head, charged)) = self.new_swap_folio(order, slot)? else {
                self.frames().events().count_folio(
                    &self.platform().pin(),
                    order,
                    FolioCounter::SwpinFallback,
                    1,
                );
                order = order.smaller().unwrap_or(Order::ZERO);
                continue;
            };
            let Some(guard) = self.frames().try_lock_folio_long(head) else {
                self.let_go(head);
                return Ok(None);
            };
            let first = slot.block_start(order);
            match self.swap().insert(first, head) {
                Inserted::Won { shadow, .. } => {
                    self.settle_charge(head, order, charged);
                    return self.fill(first, (head, order), shadow, guard).map(Some);
                }
                other => {
                    drop(guard);
                    self.let_go(head);
                    match other {
                        Inserted::Found(page) => return self.join(page, slot),
                        // Each order is tried once.
                        Inserted::Conflict | Inserted::NoMemory if order > Order::ZERO => {
                            order = order.smaller().unwrap_or(Order::ZERO);
                        }
                        _ => return Ok(None),
                    }
                }
            }
        }
    }

    /// A folio of `order` for the slots around `slot`, charged to the group whose page it was. `None` where there is none of an
    /// order above 0.
    fn new_swap_folio(&self, order: Order, slot: SlotId) -> Result<Option<(Pfn, GroupId)>, FaultError> {
        let request = AllocRequest::anonymous().uninitialised().kind(Kind::Anonymous).order(order);
        let request = if order > Order::ZERO { request.without_drain() } else { request };
        let group = GroupId::from_bits(self.swap().group_of(slot));
        loop {
            let made = self.frames().allocate(&self.platform().pin(), request);
            let head = match made {
                Ok(head) => head,
                Err(_) if order > Order::ZERO => return Ok(None),
                Err(cause) if self.make_room(cause, Need::Frames(order)) => continue,
                Err(cause) => return Err(FaultError::OutOfMemory(cause)),
            };
            let frame = self.frames().known(head);
            frame.map_count().store(0, Ordering::Relaxed);
            frame.live().store(0, Ordering::Relaxed);
            frame.owner().store(0, Ordering::Relaxed);
            let charged = self.memory_groups().try_charge(&self.platform().pin(), group, order.pages());
            match charged {
                Ok(()) => {
                    frame.memory_group().store(group.get(), Ordering::Relaxed);
                    self.count_new_folio(order);
                    return Ok(Some((head, group)));
                }
                Err(over) => {
                    let pin = self.platform().pin();
                    self.release_unused(&pin, head, order);
                    drop(pin);
                    if order > Order::ZERO {
                        return Ok(None);
                    }
                    let need = Need::Group(over.group, order.pages());
                    if !self.make_room(AllocError::OutOfMemory, need) {
                        return Err(FaultError::OutOfMemory(AllocError::OutOfMemory));
                    }
                }
            }
        }
    }

    /// A folio that was charged to `charged` is in the cache for slots that may have been given to another group since: that one
    /// has it now.
    fn settle_charge(&self, head: Pfn, order: Order, charged: GroupId) {
        let group = GroupId::from_bits(self.frames().known(head).memory_group().load(Ordering::Relaxed));
        if group != charged {
            let pin = self.platform().pin();
            self.memory_groups().charge_anyway(&pin, group, order.pages());
            self.memory_groups().uncharge(&pin, charged, order.pages());
        }
    }

    /// Reads a folio that the caller has put into the cache.
    fn fill(
        &'s self,
        slot: SlotId,
        (head, order): (Pfn, Order),
        shadow: Option<Shadow>,
        guard: FolioGuard<'s, P>,
    ) -> Result<SwappedIn<'s, P>, FaultError> {
        {
            let pin = self.platform().pin();
            self.frames().events().add(&pin, VmEvent::Pgmajfault, 1);
            self.frames().events().add(&pin, VmEvent::Pswpin, order.pages());
            let list = self.refault(&pin, head, shadow);
            self.memory_groups().list_folio(&pin, head, list);
        }
        if order > Order::ZERO {
            self.frames().events().count_folio(&self.platform().pin(), order, FolioCounter::Swpin, 1);
        }
        let read = match self.swap().read_folio(head) {
            IoState::Done(result) => result,
            IoState::Begun => self.swap().wait_read(head),
        };
        if read.is_err() {
            // Whoever waits for the lock sees that it failed; who comes later tries the device again.
            let left = self.swap().discard_failed(head);
            drop(guard);
            if left {
                self.let_go(head);
            }
            self.let_go(head);
            return Err(FaultError::Bus);
        }
        Ok(SwappedIn { spaces: self, head, order, slot, guard: Some(guard), unnamed: Cell::new(false) })
    }

    /// Waits for the folio of `page`, to which the caller has a reference: somebody may be reading it. It may have left the cache
    /// meanwhile.
    fn join(&'s self, page: Pfn, slot: SlotId) -> Result<Option<SwappedIn<'s, P>>, FaultError> {
        let head = self.frames().folio(page).head();
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
            unnamed: Cell::new(false),
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

    /// `pages` slots from `slot` on are named by nobody any more. If the cache has a folio for them that somebody else is not just
    /// busy with, it leaves the cache.
    pub(crate) fn drop_cached(&self, slot: SlotId, pages: u32) {
        let mut nth = 0;
        while nth < u64::from(pages) {
            let Some(page) = self.swap().lookup(slot.plus(nth)) else {
                nth += 1;
                continue;
            };
            let folio = self.frames().folio(page);
            nth += folio.pages_from(page);
            self.leave_cache_if_unnamed(folio.head());
            self.let_go(folio.head());
        }
    }

    /// Takes the folio at `head`, to which the caller has a reference, out of the swap cache, if nobody names its slots and
    /// nobody is busy with it.
    pub(crate) fn leave_cache_if_unnamed(&self, head: Pfn) -> bool {
        let Some(guard) = self.frames().try_lock_folio_long(head) else { return false };
        let flags = self.frames().known(head).word().flags();
        let leaves = flags & (FrameFlags::SWAP_CACHE | FrameFlags::WRITEBACK) == FrameFlags::SWAP_CACHE
            && self.swap().remove_unnamed(head);
        drop(guard);
        if leaves {
            self.let_go(head);
        }
        leaves
    }

    /// Counts a folio of `order` that was made.
    fn count_new_folio(&self, order: Order) {
        if order > Order::ZERO {
            let pin = self.platform().pin();
            self.frames().events().count_folio(&pin, order, FolioCounter::NrAnon, 1);
        }
    }
}

impl<P: Platform> Tables<'_, P> {
    /// Maps the page that entry `index` names, or all of its folio if the entries around name the rest. Answers whether the
    /// access is possible now.
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
        let sole = !folio.folio().is_large() && unmapped && self.spaces.swap().count(start) == 1;
        let exclusive = sole || entry.exclusive && unmapped && (whole || !folio.folio().is_large());
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
            // The mappings' reference; there is one already, so this cannot fail but past the most.
            frame.get(1);
            // Release, after the owner, as in `init_page`. Only who has the folio lock maps a folio that nobody maps.
            frame.map_count().store(pages as u32, Ordering::Release);
        } else {
            let added = folio.add_maps(pages as u32);
            debug_assert!(added, "there was room for more");
        }
        let mut flags = fault.facts.flags.leaf_flags() | LeafFlags::ACCESSED;
        if exclusive {
            if folio.folio().is_large() {
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
            // Release: whoever reads it sees the page filled.
            entry.store(P::Paging::frames_on(raw, nth), Ordering::Release);
        }
        self.core.usage.swap_gone(pages);
        self.core.usage.anonymous_mapped(pages);
        let dropped = self.spaces.swap().drop_counts(start, pages as u32);
        held.unnamed.set(held.unnamed.get() || dropped.cached_only);
        drop(folio);
        Ok(exclusive || fault.access != Access::Write)
    }

    /// Whether the entries around `index`, which names page `nth` of `held`, name all its pages, in one table and one mapping.
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

    /// The largest order of a folio for the slot that entry `index` names: aligned in the table, in the mapping and among the
    /// slots alike, with the entries to match, and allowed by the policy.
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
        let order = if allowed.is_empty() { None } else { allowed.iter().find(|order| fits(order)) };
        Swapped { entry, order: order.unwrap_or(Order::ZERO) }
    }
}

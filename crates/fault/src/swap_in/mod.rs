//! Swap-in: a fault that finds a swap entry.
//!
//! The fault drops all that it holds, brings the folio into the swap cache, and retries with it under its
//! folio lock. Only then, and if the entry still names the slot, the page is mapped
//! ([`VmFault::map_swapped`](crate::VmFault::map_swapped)): as long as the cache has the folio its slots are
//! not free, so they cannot stand for other contents in the meantime.
//!
//! The thread that inserts the folio reads it. Every other thread that wants it finds it in the cache and
//! sleeps until the reader releases the folio lock. The old technique is in [`before`].
//! [`SwapInWindow`](quire_vma::SwapInWindow) decides how much is read at once. Zero-filled pages, which need
//! no read, are in `vm_fault/zeros.rs`.

mod ahead;
mod before;
mod copy;

pub use ahead::Ahead;

use crate::error::{Need, SwapInError, Swapped};
use crate::refault::refault;
use crate::swapped_in::{CacheFate, SwappedIn};
use core::cell::Cell;
use core::fmt;
use quire_arch::{Order, OrderSet, Pfn, Pin, Platform};
use quire_frame::OwnerWord;
use quire_frame::{AllocError, AllocRequest, FolioCounter, FrameFlags, Kind, VmEvent};
use quire_memcg::{Membership, MemcgId, MemcgStat, OverLimit};
use quire_pagetable::MemoryCore;
use quire_swap::{DeviceError, Inserted, IoState, Seen, Shadow, SlotId};

/// Brings folios into the swap cache, for a program.
pub struct SwapIn<'s, 'p, P: Platform> {
    memory: &'s MemoryCore<P>,
    program: &'p Membership,
}

impl<P: Platform> Clone for SwapIn<'_, '_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for SwapIn<'_, '_, P> {}

impl<'s, 'p, P: Platform> SwapIn<'s, 'p, P> {
    /// Of the machine that `memory` belongs to, for this program.
    pub fn new(memory: &'s MemoryCore<P>, program: &'p Membership) -> Self {
        Self { memory, program }
    }
}

impl<P: Platform> fmt::Debug for SwapIn<'_, '_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SwapIn").finish_non_exhaustive()
    }
}

/// The memcgs of a folio that is to be swapped in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ForSlot {
    /// The one that the folio is charged to.
    pub(crate) charged: MemcgId,
    /// The one that the slot is charged to.
    pub(crate) of_slot: MemcgId,
}

impl<'s, P: Platform> SwapIn<'s, '_, P> {
    /// Brings what `wanted` names into the cache. `None` if the caller has to look it up again. The caller is
    /// not pinned and holds no locks but those of mappings.
    #[cold]
    pub fn swap_in(self, wanted: Swapped) -> Result<Option<SwappedIn<'s, P>>, SwapInError> {
        let slot = SlotId::of(wanted.entry);
        let technique = self.memory.swap().technique();
        let orders = if technique.leaves_when_mapped() { wanted.orders } else { OrderSet::EMPTY };
        // Counted only once it is known to be major: a fault that finds the folio in the cache is minor.
        let (mut order, memcg) = match self.memory.swap().cache().look(slot, orders.most()) {
            Seen::Cached(page) => return self.join(page, slot),
            // The slots may be alike up to an order that the policy does not allow.
            Seen::Out { order, memcg } => (orders.up_to(order).most(), MemcgId::from_bits(memcg)),
            Seen::Gone => {
                self.wait_for_bypass();
                return Ok(None);
            }
        };
        if technique.bypasses() && self.may_bypass(slot) {
            return self.read_past_cache(slot, memcg);
        }
        let (mut failed, mut drained) = (false, false);
        loop {
            let Some((head, charged)) = self.new_swap_folio(order, (slot, memcg))? else {
                self.memory.frames().events().count_folio(
                    &self.memory.platform().pin(),
                    order,
                    FolioCounter::SwpinFallback,
                    1,
                );
                order = orders.below(order).most();
                continue;
            };
            let Some(guard) = self.memory.frames().folios().try_lock_folio(head) else {
                self.memory.memcgs().folios().release_folio(head);
                return Ok(None);
            };
            let first = slot.block_start(order);
            match self.memory.swap().cache().insert(first, head) {
                Inserted::Won { shadow, zero, memcg: now } => {
                    self.settle_charge(order, charged, MemcgId::from_bits(now));
                    let pin = self.memory.platform().pin();
                    if failed {
                        self.note_wanted(&pin, head, shadow);
                    } else {
                        self.note_major(&pin, head, shadow);
                    }
                    drop(pin);
                    let read = match self.memory.swap().io().read_inserted(head, zero) {
                        IoState::Done(result) => result,
                        IoState::Begun => self.memory.swap().io().wait_read(head),
                    };
                    let then = Cell::new(CacheFate::Kept);
                    let held =
                        SwappedIn { memory: self.memory, head, order, slot: first, guard: Some(guard), then };
                    match self.read_completed(held, read) {
                        // Perhaps only another page of the folio cannot be read.
                        Err(SwapInError::Unreadable) if order > Order::ZERO => {
                            (order, failed) = (Order::ZERO, true);
                        }
                        result => return result.map(Some),
                    }
                }
                other => {
                    drop(guard);
                    self.memory.memcgs().folios().release_folio(head);
                    match other {
                        Inserted::Found(page) => return self.join(page, slot),
                        // Each order is tried once.
                        Inserted::Conflict | Inserted::NoMemory if order > Order::ZERO => {
                            order = orders.below(order).most();
                        }
                        // The words of the cluster are short of memory, not the page. They are allocated under
                        // a lock, from what is free: some may be on lists of CPUs.
                        Inserted::NoMemory if !drained => {
                            drained = true;
                            self.memory.frames().pcp().drain_all_in_portions();
                        }
                        Inserted::NoMemory => {
                            let need = Need::Frames(Order::ZERO);
                            return Err(SwapInError::Short(AllocError::OutOfMemory, need));
                        }
                        _ => return Ok(None),
                    }
                }
            }
        }
    }

    /// Sets up the descriptor of a new folio as that of an unmapped one.
    pub(crate) fn init_unmapped(self, head: Pfn) {
        let frame = self.memory.frames().known(head);
        frame.as_folio().set_maps(0);
        frame.as_folio().set_whole_maps(0);
        frame.as_folio().set_owner(OwnerWord::NONE);
    }

    /// A folio of `order` for what is in a slot, and the memcg that it is charged to: that of the slot, which
    /// was seen before, if it was not removed. `None` where there is no folio of an order above 0.
    fn new_swap_folio(
        self,
        order: Order,
        slot: (SlotId, MemcgId),
    ) -> Result<Option<(Pfn, MemcgId)>, SwapInError> {
        match self.try_swap_folio(order, slot, order == Order::ZERO) {
            Ok(had) => Ok(Some(had)),
            Err(_) if order > Order::ZERO => Ok(None),
            Err((cause, need)) => Err(SwapInError::Short(cause, need)),
        }
    }

    /// The same, or what is short. Per-CPU lists are drained for it only with `drains`.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn try_swap_folio(
        self,
        order: Order,
        slot: (SlotId, MemcgId),
        drains: bool,
    ) -> Result<(Pfn, MemcgId), (AllocError, Need)> {
        let request = AllocRequest::anonymous().uninitialised().kind(Kind::Anonymous).order(order);
        let request = if drains { request } else { request.without_drain() };
        let pin = self.memory.platform().pin();
        let head =
            self.memory.frames().allocate(&pin, request).map_err(|cause| (cause, Need::Frames(order)))?;
        self.init_unmapped(head);
        let memcg = match self.charge_for_slot(&pin, slot, order) {
            Ok(for_slot) => for_slot.charged,
            Err(over) => {
                self.memory.memcgs().folios().release_unused(&pin, head, order);
                if order > Order::ZERO {
                    self.memory.frames().events().count_folio(
                        &pin,
                        order,
                        FolioCounter::SwpinFallbackCharge,
                        1,
                    );
                }
                return Err((AllocError::OutOfMemory, Need::Memcg(over, order.pages())));
            }
        };
        self.memory.frames().known(head).as_folio().set_memcg(memcg.get());
        if order > Order::ZERO {
            self.memory.frames().events().count_folio(&pin, order, FolioCounter::NrAnon, 1);
        }
        Ok((head, memcg))
    }

    /// Charges a folio to the memcg of `slot`, which was `seen`: not to that, since the slot may have been
    /// freed, but to the current one. The slot keeps its memcg, and the section keeps the number. As in Linux
    /// the program's is charged where the slot's was removed: it would be kept for as long as the page is
    /// used.
    #[inline]
    pub(crate) fn charge_for_slot(
        self,
        pin: &Pin<'_, P>,
        slot: (SlotId, MemcgId),
        order: Order,
    ) -> Result<ForSlot, OverLimit> {
        let (_, seen) = slot;
        if seen.is_root() {
            return Ok(ForSlot { charged: seen, of_slot: seen });
        }
        self.charge_memcg_for_slot(pin, slot, order)
    }

    #[inline(never)]
    fn charge_memcg_for_slot(
        self,
        pin: &Pin<'_, P>,
        (slot, _): (SlotId, MemcgId),
        order: Order,
    ) -> Result<ForSlot, OverLimit> {
        let _section = self.memory.frames().epoch().enter(pin);
        let memcgs = self.memory.memcgs();
        let of_slot = MemcgId::from_bits(self.memory.swap().counts().memcg_of(slot));
        // It may also be removed after this look: then it is as if the page had come before.
        let charged = if memcgs.tree().is_removed(of_slot) { self.program.memcg() } else { of_slot };
        memcgs.charges().try_charge(pin, charged, order.pages()).map(|()| ForSlot { charged, of_slot })
    }

    /// A folio that was charged to `charged` is in the cache for slots that may have been given to another
    /// memcg since: that one has it now.
    pub(crate) fn settle_charge(self, order: Order, charged: MemcgId, memcg: MemcgId) {
        if memcg != charged {
            let pin = self.memory.platform().pin();
            self.memory.memcgs().charges().charge_anyway(&pin, memcg, order.pages());
            self.memory.memcgs().charges().uncharge(&pin, charged, order.pages());
        }
    }

    /// A folio is about to be read for a fault: a major one.
    pub(crate) fn note_major(self, pin: &Pin<'_, P>, head: Pfn, shadow: Option<Shadow>) {
        self.memory.frames().events().add(pin, VmEvent::Pgmajfault, 1);
        let memcg = MemcgId::from_bits(self.memory.frames().known(head).as_folio().memcg());
        self.memory.memcgs().counters().add_stat(pin, memcg, MemcgStat::Pgmajfault, 1);
        self.note_wanted(pin, head, shadow);
    }

    /// The same for a page of zeros, which needs no read.
    pub(crate) fn note_zeros(self, pin: &Pin<'_, P>, pfn: Pfn, shadow: Option<Shadow>) {
        let (events, counters) = (self.memory.frames().events(), self.memory.memcgs().counters());
        // Its charge keeps the memcg: the caller has locked the table or the folio, in an epoch section.
        let memcg = MemcgId::from_bits(self.memory.frames().known(pfn).as_folio().memcg());
        events.add(pin, VmEvent::SwpinZero, 1);
        counters.add_stat(pin, memcg, MemcgStat::SwpinZero, 1);
        events.add(pin, VmEvent::Pgmajfault, 1);
        counters.add_stat(pin, memcg, MemcgStat::Pgmajfault, 1);
        self.note_wanted(pin, pfn, shadow);
    }

    /// A folio is about to be read that a program wants: its page goes on an LRU list.
    #[inline]
    pub(crate) fn note_wanted(self, pin: &Pin<'_, P>, head: Pfn, shadow: Option<Shadow>) {
        let list = refault(self.memory, pin, head, shadow);
        self.memory.memcgs().folios().list_folio(pin, head, list);
    }

    /// The device has completed the read of a folio of the cache.
    fn read_completed(
        self,
        mut held: SwappedIn<'s, P>,
        read: Result<(), DeviceError>,
    ) -> Result<SwappedIn<'s, P>, SwapInError> {
        if read.is_ok() {
            return Ok(held);
        }
        // A thread that waits for the lock sees that it failed; a later fault tries the device again.
        let left = self.memory.swap().cache().discard_failed(held.head);
        held.then.set(CacheFate::Failed);
        drop(held.guard.take());
        if left {
            self.memory.memcgs().folios().release_folio(held.head);
        }
        Err(SwapInError::Unreadable)
    }

    /// Waits for the folio of `page`, to which the caller has a reference: another thread may be reading it.
    /// It may have left the cache meanwhile.
    fn join(self, page: Pfn, slot: SlotId) -> Result<Option<SwappedIn<'s, P>>, SwapInError> {
        let head = self.memory.frames().folio(page).head();
        // Only a thread that needs it waits for a folio that was read ahead, so this one must reap the
        // completion.
        let _ = self.memory.swap().io().wait_read(head);
        let guard = self.memory.frames().folios().lock_folio(head);
        let folio = self.memory.frames().folio(page);
        let flags = folio.frame().word().flags();
        let first = SlotId::from_raw(folio.frame().as_folio().slot());
        let joined = SwappedIn {
            memory: self.memory,
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
            // As for the thread that read it.
            return if joined.order > Order::ZERO { Ok(None) } else { Err(SwapInError::Unreadable) };
        }
        let is_it = flags.contains(FrameFlags::SWAP_CACHE) && joined.page_of(slot).is_some();
        Ok(is_it.then_some(joined))
    }
}

//! Allocating a folio's slots.
//!
//! Each CPU has a cluster of each device and order that it allocates from, on no list meanwhile. The CPU's
//! record of it is a hint, checked again under the cluster's lock. Next come clusters that have free blocks
//! of the order, then free clusters, and for single pages any free slot.

use crate::cluster::{CLUSTER_ORDER, NONE};
use crate::devices::{Device, SwapDevices};
use crate::discard::ClusterDiscard;
use crate::error::NoSlots;
use crate::held::{Held, Wanted};
use crate::lists::ListId;
use crate::reclaim::SlotReclaim;
use crate::slot::SlotId;
use quire_arch::{Order, Pfn, Pin, Platform};
use quire_frame::FrameFlags;
use quire_memcg::{MemcgEvent, MemcgId};
use quire_sync::atomic::Ordering;

/// Clusters that are tried where others empty and fill them at the same time.
const ATTEMPTS: usize = 64;

quire_arch::part_of! {
    /// Finds slots for folios that enter the swap cache.
    pub struct SlotAllocator { pub(crate) devices: SwapDevices }
}

impl<P: Platform> SlotAllocator<'_, P> {
    /// Finds slots for a folio and puts it into the cache: one step. The folio is dirty from then on, has
    /// [`FrameFlags::SWAP_CACHE`] and one more reference, which is the cache's; `private` is its first slot.
    /// Nothing names the slots yet. The caller holds the folio lock and a reference; the folio is not in the
    /// cache. `memcg` is the memcg that it is charged to.
    ///
    /// If slots run out, a freed cluster is discarded, or slots held only by the cache are reclaimed; and a
    /// single page waits for clusters that other threads discard, though not for long. May free folios and
    /// sleep, so the caller holds no spin lock.
    ///
    /// # Errors
    ///
    /// See [`NoSlots`].
    pub fn add_folio(self, head: Pfn, memcg: u16) -> Result<SlotId, NoSlots> {
        self.add_folio_for(head, memcg, &mut |_| {})
    }

    /// The same; `left` is called with each folio that leaves the cache for it: such a one may be mapped.
    ///
    /// # Errors
    ///
    /// See [`NoSlots`].
    pub fn add_folio_for(self, head: Pfn, memcg: u16, left: &mut dyn FnMut(Pfn)) -> Result<SlotId, NoSlots> {
        let frame = self.devices.frames().known(head);
        let wanted = Wanted { head, order: frame.word().order() };
        debug_assert!(!frame.word().flags().contains(FrameFlags::SWAP_CACHE));
        debug_assert_eq!(frame.as_folio().memcg(), memcg);
        if !self.devices.is_any_on() {
            self.note_failure(memcg);
            return Err(NoSlots::Full);
        }
        if !self.devices.charge_slots(memcg, wanted.order.pages()) {
            return Err(NoSlots::Limit);
        }
        let mut found = self.try_devices(wanted);
        // Slots that are freed may make a cluster free, which is discarded before it is used.
        for reclaims in [false, true, false] {
            let has_none = matches!(found, Err(NoSlots::Full | NoSlots::WrongOrder));
            if has_none && if reclaims { self.make_room(left) } else { self.discard_one() } {
                found = self.try_devices(wanted);
            }
        }
        if found == Err(NoSlots::Full) && wanted.order == Order::ZERO {
            found = self.look_beside_discards(wanted);
        }
        if found == Err(NoSlots::NoMemory) {
            self.devices.frames().pcp().drain_all_in_portions();
            found = self.try_devices(wanted);
        }
        if found.is_err() {
            self.devices.uncharge_slots(memcg, wanted.order.pages());
            self.note_failure(memcg);
        }
        found
    }

    /// As [`add_folio`](Self::add_folio), but it finds only what is free: what else could be done waits for
    /// devices, or takes folios from the cache. That there is nothing is no failure yet.
    ///
    /// # Errors
    ///
    /// See [`NoSlots`]; a limit is one for `add_folio`, too, and counts.
    pub fn add_folio_at_once(self, head: Pfn, memcg: u16) -> Result<SlotId, NoSlots> {
        let wanted = Wanted { head, order: self.devices.frames().known(head).word().order() };
        if !self.devices.is_any_on() {
            return Err(NoSlots::Full);
        }
        if !self.devices.charge_slots(memcg, wanted.order.pages()) {
            return Err(NoSlots::Limit);
        }
        let found = self.try_devices(wanted);
        if found.is_err() {
            self.devices.uncharge_slots(memcg, wanted.order.pages());
        }
        found
    }

    /// A folio of the memcg wanted slots, and there are none. The folio's charge keeps the memcg.
    #[cold]
    fn note_failure(self, memcg: u16) {
        self.devices.memcgs().counters().count(MemcgId::from_bits(memcg), MemcgEvent::SwapFail, 1);
    }

    /// Looks for a slot once more if other threads may have discarded clusters since, and while they do: else
    /// the last free slots look as if they were none, for as long as the device takes.
    #[cold]
    fn look_beside_discards(self, wanted: Wanted) -> Result<SlotId, NoSlots> {
        for _ in 0..ATTEMPTS {
            let Some(ended) = self.devices.discards.ended() else { break };
            let found = self.try_devices(wanted);
            if found != Err(NoSlots::Full) {
                return found;
            }
            if !self.discard_one() && !ClusterDiscard::new(self.devices).wait_for_discard(ended) {
                break;
            }
        }
        Err(NoSlots::Full)
    }

    /// Discards one freed cluster, if there is any: that is enough for a folio, and this thread waits for the
    /// device.
    #[cold]
    fn discard_one(self) -> bool {
        ClusterDiscard::new(self.devices).discard_free_clusters(1) > 0
    }

    /// Frees slots that are not needed, and returns whether there were any.
    #[cold]
    fn make_room(self, left: &mut dyn FnMut(Pfn)) -> bool {
        SlotReclaim::new(self.devices).reclaim_unnamed(left) > 0
    }

    /// Tries the devices in order.
    fn try_devices(self, wanted: Wanted) -> Result<SlotId, NoSlots> {
        if wanted.order > CLUSTER_ORDER {
            return Err(NoSlots::WrongOrder);
        }
        let pin = self.devices.platform().pin();
        let _epoch = self.devices.frames().epoch().enter(&pin);
        let ranked = |place: usize| {
            let id = self.devices.order.get(place)?.load(Ordering::Relaxed);
            self.devices.device(usize::from(id.checked_sub(1)?))
        };
        let mut why = NoSlots::Full;
        let mut first = 0;
        while let Some(leader) = ranked(first) {
            let mut equals = 1;
            while ranked(first + equals).is_some_and(|device| device.priority() == leader.priority()) {
                equals += 1;
            }
            let turn =
                if equals > 1 { self.devices.turn.fetch_add(1, Ordering::Relaxed) as usize } else { 0 };
            for nth in 0..equals {
                let device = if equals > 1 { ranked(first + (turn + nth) % equals) } else { Some(leader) };
                let Some(device) = device else { continue };
                match self.allocate_on(&pin, device, wanted) {
                    Ok(slot) => return Ok(slot),
                    Err(NoSlots::Full) => {}
                    Err(error) => why = error,
                }
            }
            first += equals;
        }
        Err(why)
    }

    fn allocate_on(self, pin: &Pin<'_, P>, device: &Device<P>, wanted: Wanted) -> Result<SlotId, NoSlots> {
        if !device.accepts() {
            return Err(NoSlots::Full);
        }
        if let Some(slot) = self.try_hint(pin, device, wanted) {
            return Ok(slot);
        }
        if let Some(slot) = self.try_lists(pin, device, wanted)? {
            return Ok(slot);
        }
        // A CPU that finds nothing may take the clusters of other CPUs.
        self.release_hints(pin, device);
        if let Some(slot) = self.try_lists(pin, device, wanted)? {
            return Ok(slot);
        }
        if wanted.order == Order::ZERO
            && let Some(slot) = self.try_pieces(pin, device, wanted)
        {
            return Ok(slot);
        }
        let free = device.slots.saturating_sub(device.used.load(Ordering::Relaxed));
        Err(if free > 0 && wanted.order > Order::ZERO { NoSlots::WrongOrder } else { NoSlots::Full })
    }

    /// The cluster that the CPU has for the order.
    #[inline]
    fn try_hint(self, pin: &Pin<'_, P>, device: &Device<P>, wanted: Wanted) -> Option<SlotId> {
        let hint = device.hints(pin).get(wanted.order.index())?;
        let index = hint.load(Ordering::Relaxed);
        if index == NONE {
            return None;
        }
        let mut held = Held::lock(self.devices, pin, device, index);
        if held.is_taken_for(wanted.order) {
            held.prepare(wanted.order);
            if let Some(slot) = held.place(wanted) {
                held.settle();
                return Some(slot);
            }
            held.put_away();
        }
        hint.store(NONE, Ordering::Relaxed);
        None
    }

    /// A cluster from the lists: one with free blocks of the order, or a free one.
    fn try_lists(
        self,
        pin: &Pin<'_, P>,
        device: &Device<P>,
        wanted: Wanted,
    ) -> Result<Option<SlotId>, NoSlots> {
        let mut seen_end = false;
        loop {
            let popped = {
                let mut lists = device.lists.lock();
                let cluster = |index| device.cluster(index);
                let partial = if wanted.order < CLUSTER_ORDER {
                    lists.pop(cluster, ListId::Nonfull(wanted.order))
                } else {
                    None
                };
                partial.or_else(|| lists.pop(cluster, ListId::Free))
            };
            let Some(index) = popped else { return Ok(None) };
            let mut held = Held::lock(self.devices, pin, device, index);
            // Another CPU that once had it may have put it back, and a third one may have taken it for
            // another order.
            if ListId::of(device.cluster(index).list()) != ListId::Taken {
                continue;
            }
            held.prepare(wanted.order);
            if held.guard.order != wanted.order {
                held.release();
                continue;
            }
            let one_word = wanted.order == CLUSTER_ORDER && self.devices.technique().whole_words();
            if !one_word && !held.ensure_table() {
                held.put_away();
                return Err(NoSlots::NoMemory);
            }
            let placed = held.place(wanted);
            held.settle();
            match device.hints(pin).get(wanted.order.index()) {
                Some(hint) if placed.is_some() => hint.store(index, Ordering::Relaxed),
                _ => held.put_away(),
            }
            if placed.is_some() {
                return Ok(placed);
            }
            if held.limit() < wanted.order.pages() as u32 && core::mem::replace(&mut seen_end, true) {
                // The end of the device is smaller than the folio, and would be found again and again.
                return Ok(None);
            }
        }
    }

    /// A single slot, from a cluster of whatever order.
    fn try_pieces(self, pin: &Pin<'_, P>, device: &Device<P>, wanted: Wanted) -> Option<SlotId> {
        for _ in 0..ATTEMPTS {
            let (index, list) = {
                let lists = device.lists.lock();
                let orders =
                    Order::ALL.into_iter().filter(|&order| Order::ZERO < order && order < CLUSTER_ORDER);
                let ids = [ListId::Frag].into_iter().chain(orders.map(ListId::Nonfull));
                ids.into_iter().find_map(|id| Some((lists.list(id).first()?, id)))?
            };
            let mut held = Held::lock(self.devices, pin, device, index);
            if ListId::of(device.cluster(index).list()) != list || held.guard.table.is_none() {
                continue;
            }
            let placed = held.place(wanted);
            held.settle();
            if placed.is_some() {
                return placed;
            }
        }
        None
    }

    /// Puts every cluster that a CPU allocates from back on a list.
    #[cold]
    fn release_hints(self, pin: &Pin<'_, P>, device: &Device<P>) {
        for hint in device.all_hints() {
            let index = hint.swap(NONE, Ordering::Relaxed);
            if index == NONE {
                continue;
            }
            let mut held = Held::lock(self.devices, pin, device, index);
            if ListId::of(device.cluster(index).list()) == ListId::Taken {
                held.release();
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::device::testing::{Machine, TEST, at_the_next_wait, frames, let_time_fly, run_on};
    use crate::{
        DeviceFlags, DeviceMemory, PageIo, Submitted, Swap, SwapDevice, SwapOnOptions, SwapTechnique,
    };
    use quire_frame::{AllocRequest, Kind, PcpTechnique};
    use quire_memcg::Memcgs;
    use std::boxed::Box;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, AtomicU32};
    use std::sync::{Arc, Mutex, OnceLock};
    use std::thread;

    /// The test's part of a device of one cluster.
    #[derive(Default)]
    struct Watch {
        swap: OnceLock<&'static Swap<Machine>>,
        /// A folio that wants a slot while the cluster is being discarded, and what it got.
        wanting: Mutex<Option<Pfn>>,
        found: Mutex<Option<Result<SlotId, NoSlots>>>,
        /// How many clusters could be discarded after that, in the same discard.
        again: AtomicU32,
        /// Whether a discard lasts until `goes_on`, and whether one was begun.
        lasts: AtomicBool,
        is_begun: AtomicBool,
        goes_on: AtomicBool,
        /// Whether the device panics in the next discard.
        panics: AtomicBool,
    }

    struct OneCluster(Arc<Watch>);

    impl SwapDevice<Machine> for OneCluster {
        fn kind(&self) -> &'static str {
            "test"
        }

        fn slots(&self) -> u64 {
            CLUSTER_ORDER.pages()
        }

        fn flags(&self) -> DeviceFlags {
            DeviceFlags::SYNCHRONOUS | DeviceFlags::DISCARD
        }

        unsafe fn submit(&self, _: DeviceMemory<'_, Machine>, _: PageIo) -> Submitted {
            Submitted::Done(Ok(()))
        }

        fn discard(&self, _: DeviceMemory<'_, Machine>, _: u64, _: u64) {
            let Watch { lasts, is_begun, goes_on, panics, .. } = &*self.0;
            assert!(!panics.swap(false, Ordering::Relaxed), "as a test wants it");
            is_begun.store(true, Ordering::Relaxed);
            while lasts.load(Ordering::Relaxed) && !goes_on.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            let Some(&swap) = self.0.swap.get() else { return };
            let Some(head) = self.0.wanting.lock().unwrap().take() else { return };
            // As if this CPU had taken the number from CPU 0 when that still had the cluster, and only now
            // took the cluster's lock.
            let mut hints = swap.devices().device(0).unwrap().all_hints();
            hints.next().unwrap().store(0, Ordering::Relaxed);
            let _lock = swap.frames().folios().try_lock_folio(head).unwrap();
            // `add_folio` waits for the end of this.
            let wanted = Wanted { head, order: Order::ZERO };
            *self.0.found.lock().unwrap() = Some(swap.allocator().try_devices(wanted));
            let again = ClusterDiscard::new(swap.devices()).discard_free_clusters(1);
            self.0.again.store(again, Ordering::Relaxed);
        }
    }

    fn folio(swap: &Swap<Machine>, order: Order) -> Pfn {
        let request = AllocRequest::new(order, TEST).kind(Kind::Anonymous);
        let head = swap.frames().allocate(&swap.platform().pin(), request).unwrap();
        swap.frames().known(head).as_folio().set_memcg(0);
        head
    }

    /// A machine with such a device, which wants discards.
    fn swap_on(watch: &Arc<Watch>) -> &'static Swap<Machine> {
        run_on(0);
        let memcgs = Memcgs::new(frames(&[(0, 4096)], 3, PcpTechnique::All)).unwrap();
        let swap: &'static Swap<Machine> = Box::leak(Box::new(Swap::new(memcgs, SwapTechnique::All)));
        let options = SwapOnOptions { discard: true, ..SwapOnOptions::default() };
        swap.devices().swapon(OneCluster(Arc::clone(watch)), options).unwrap();
        swap
    }

    /// Hazard: the slots of a page that nothing names make a cluster free, which no folio gets before its
    /// discard.
    #[test]
    fn what_is_reclaimed_for_a_folio_is_discarded_for_it() {
        let swap = swap_on(&Arc::default());
        let [large, small] = [CLUSTER_ORDER, Order::ZERO].map(|order| folio(swap, order));
        for head in [large, small] {
            let _lock = swap.frames().folios().try_lock_folio(head).unwrap();
            assert!(swap.allocator().add_folio(head, 0).is_ok(), "{head:?}");
        }
        assert_eq!(swap.devices().device(0).unwrap().used.load(Ordering::Relaxed), 1);
    }

    /// Gives the folio slots, on this CPU.
    fn add(swap: &Swap<Machine>, cpu: usize, head: Pfn) -> Result<SlotId, NoSlots> {
        run_on(cpu);
        let _lock = swap.frames().folios().try_lock_folio(head).unwrap();
        swap.allocator().add_folio(head, 0)
    }

    /// The same, and an entry names the slot: what nothing names another thread may take out of the cache for
    /// its own page.
    fn add_named(swap: &Swap<Machine>, cpu: usize, head: Pfn) -> Result<SlotId, NoSlots> {
        run_on(cpu);
        let _lock = swap.frames().folios().try_lock_folio(head).unwrap();
        let slot = swap.allocator().add_folio(head, 0)?;
        assert!(swap.counts().add_counts(slot, 1));
        Ok(slot)
    }

    /// The only cluster is empty again, but not discarded. CPU 0 has it.
    fn leave_to_discard(swap: &Swap<Machine>) {
        let head = folio(swap, Order::ZERO);
        add(swap, 0, head).unwrap();
        let _lock = swap.frames().folios().try_lock_folio(head).unwrap();
        assert!(swap.cache().remove_unnamed(head));
    }

    /// Hazard: while a thread discards the last free cluster no other one finds a slot: programs are killed
    /// with swap free.
    #[test]
    fn a_page_waits_for_the_discard_of_the_last_free_cluster() {
        let watch = Arc::<Watch>::default();
        let swap = swap_on(&watch);
        leave_to_discard(swap);
        watch.lasts.store(true, Ordering::Relaxed);
        let [first, second] = [(); 2].map(|()| folio(swap, Order::ZERO));
        thread::scope(|scope| {
            scope.spawn(|| assert!(add_named(swap, 1, first).is_ok()));
            scope.spawn(|| {
                while !watch.is_begun.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
                let goes_on = Arc::clone(&watch);
                at_the_next_wait(move || goes_on.goes_on.store(true, Ordering::Relaxed));
                let found = add_named(swap, 2, second);
                watch.goes_on.store(true, Ordering::Relaxed);
                assert!(found.is_ok(), "{found:?}");
            });
        });
        assert_eq!(swap.devices().device(0).unwrap().used.load(Ordering::Relaxed), 2);
    }

    /// Hazard: a device never ends a discard: a thread that needs a slot waits for ever, or for some time for
    /// each page.
    #[test]
    fn a_discard_that_does_not_end_is_waited_for_once() {
        let watch = Arc::<Watch>::default();
        let swap = swap_on(&watch);
        leave_to_discard(swap);
        watch.lasts.store(true, Ordering::Relaxed);
        let [first, second, third] = [(); 3].map(|()| folio(swap, Order::ZERO));
        thread::scope(|scope| {
            scope.spawn(|| assert!(add(swap, 1, first).is_ok()));
            while !watch.is_begun.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            let_time_fly();
            let waits = Arc::<AtomicBool>::default();
            let begins = Arc::clone(&waits);
            let found = catch_unwind(AssertUnwindSafe(|| {
                at_the_next_wait(move || {
                    begins.store(true, Ordering::Relaxed);
                    at_the_next_wait(|| panic!("it waits on"));
                });
                let second = add(swap, 2, second);
                at_the_next_wait(|| panic!("the next page waits, too"));
                [second, add(swap, 2, third)]
            }));
            watch.goes_on.store(true, Ordering::Relaxed);
            assert_eq!(found.ok(), Some([Err(NoSlots::Full); 2]));
            assert!(waits.load(Ordering::Relaxed), "it did not wait at all");
        });
        assert!(add(swap, 2, third).is_ok(), "after the discard there are slots");
    }

    /// Hazard: the device panics in a discard. The cluster is on no list for ever, and threads wait for it.
    #[test]
    fn a_cluster_is_free_after_a_discard_that_panics() {
        let watch = Arc::<Watch>::default();
        let swap = swap_on(&watch);
        leave_to_discard(swap);
        watch.panics.store(true, Ordering::Relaxed);
        let [first, second] = [(); 2].map(|()| folio(swap, Order::ZERO));
        assert!(catch_unwind(AssertUnwindSafe(|| add(swap, 1, first))).is_err());
        at_the_next_wait(|| panic!("it waits for a discard that does not end"));
        assert!(add(swap, 2, second).is_ok());
    }

    /// Hazard: a CPU that takes clusters from others puts one on a list while it is discarded: what is
    /// written there meanwhile is lost.
    #[test]
    fn a_cluster_that_is_being_discarded_stays_off_the_lists() {
        let watch = Arc::default();
        let swap = swap_on(&watch);
        leave_to_discard(swap);
        *watch.wanting.lock().unwrap() = Some(folio(swap, Order::ZERO));
        watch.swap.set(swap).ok().unwrap();
        // Another CPU takes the cluster, which is empty: it has to be discarded first.
        assert!(add(swap, 1, folio(swap, Order::ZERO)).is_ok(), "it gets a slot after the discard");
        assert_eq!(*watch.found.lock().unwrap(), Some(Err(NoSlots::Full)), "a slot that is being discarded");
        assert_eq!(watch.again.load(Ordering::Relaxed), 0, "what is being discarded waits for a discard");
        assert_eq!(swap.devices().device(0).unwrap().used.load(Ordering::Relaxed), 1);
    }
}

//! A locked cluster, with all that is needed to change it.

mod cached;
mod names;
mod place;
mod zeros;

pub use cached::Inserted;
pub(crate) use cached::Retry;
pub(crate) use place::Wanted;

use crate::cluster::{CLUSTER_SLOTS, ClusterGuard, State, Unit};
use crate::device::DeviceFlags;
use crate::devices::{Device, SwapDevices};
use crate::lists::ListId;
use crate::slot::SlotId;
use crate::word::SlotWord;
use quire_arch::{Pfn, Pin, Platform};
use quire_memcg::MemcgId;
use quire_sync::atomic::Ordering;

/// A locked cluster. [`settle`](Self::settle) finishes the change.
pub(crate) struct Held<'a, P: Platform> {
    pub(crate) devices: &'a SwapDevices<P>,
    pub(crate) pin: &'a Pin<'a, P>,
    pub(crate) device: &'a Device<P>,
    pub(crate) index: u32,
    pub(crate) guard: ClusterGuard<'a, P>,
    /// The slots that became free lie between these two.
    freed: (u32, u32),
}

/// Calls `work` with the cluster of `slot` under its lock, and with the slot's place in it. `None` if
/// there is no such slot.
#[inline]
pub(crate) fn with_cluster<P: Platform, R>(
    devices: &SwapDevices<P>,
    slot: SlotId,
    work: impl FnOnce(&mut Held<'_, P>, u32) -> R,
) -> Option<R> {
    with_cluster_on(devices, &devices.platform().pin(), slot, work)
}

/// The same, for a caller that is pinned.
#[inline]
pub(crate) fn with_cluster_on<P: Platform, R>(
    devices: &SwapDevices<P>,
    pin: &Pin<'_, P>,
    slot: SlotId,
    work: impl FnOnce(&mut Held<'_, P>, u32) -> R,
) -> Option<R> {
    let _epoch = devices.frames().epoch().enter(pin);
    let (device, index) = find(devices, slot)?;
    let mut held = Held::lock(devices, pin, device, index);
    let result = work(&mut held, slot.number() as u32 % CLUSTER_SLOTS);
    held.settle();
    Some(result)
}

/// The same for a `look` that changes nothing.
// Always a part of its callers: most looks are shorter than a call.
#[inline(always)]
pub(crate) fn look_at<P: Platform, R>(
    devices: &SwapDevices<P>,
    pin: &Pin<'_, P>,
    slot: SlotId,
    look: impl FnOnce(&State, u32) -> R,
) -> Option<R> {
    let _epoch = devices.frames().epoch().enter(pin);
    let (device, index) = find(devices, slot)?;
    Some(look(&device.cluster(index).lock::<P>(), slot.number() as u32 % CLUSTER_SLOTS))
}

/// The device of `slot`, and the number of its cluster. The caller is in a section of the epoch.
#[inline]
fn find<P: Platform>(devices: &SwapDevices<P>, slot: SlotId) -> Option<(&Device<P>, u32)> {
    let device = devices.device(slot.device_index())?;
    let is_there = slot.number() < device.slots;
    is_there.then(|| (device, (slot.number() / u64::from(CLUSTER_SLOTS)) as u32))
}

impl<'a, P: Platform> Held<'a, P> {
    pub(crate) fn lock(
        devices: &'a SwapDevices<P>,
        pin: &'a Pin<'a, P>,
        device: &'a Device<P>,
        index: u32,
    ) -> Self {
        Self { devices, pin, device, index, guard: device.cluster(index).lock(), freed: (CLUSTER_SLOTS, 0) }
    }

    /// Slots of the cluster that the device has.
    pub(crate) fn limit(&self) -> u32 {
        self.device.slots_of(self.index)
    }

    /// The slot at `place`.
    pub(crate) fn slot(&self, place: u32) -> SlotId {
        SlotId::new(self.device.id, u64::from(self.index) * u64::from(CLUSTER_SLOTS) + u64::from(place))
    }

    /// The frame that the cache has for a word.
    pub(crate) fn pfn(&self, word: SlotWord) -> Option<Pfn> {
        word.frame().map(|frame| self.devices.frames().map().span().start().offset(u64::from(frame)))
    }

    /// A frame's number in words.
    pub(crate) fn frame_number(&self, pfn: Pfn) -> u32 {
        (pfn.0 - self.devices.frames().map().span().start().0) as u32
    }

    /// Makes sure that each slot can have a word of its own.
    pub(crate) fn ensure_table(&mut self) -> bool {
        if self.guard.table.is_some() {
            return true;
        }
        match self.devices.allocate_table(self.pin) {
            Some(table) => {
                self.device.tables.fetch_add(1, Ordering::Relaxed);
                self.guard.attach(table);
                true
            }
            None => false,
        }
    }

    /// Makes words of the slots from `first` up to `end` theirs alone. False if that takes a table and there
    /// is none.
    pub(crate) fn own(&mut self, first: u32, end: u32) -> bool {
        if !self.guard.cuts(first, end) {
            return true;
        }
        if !self.ensure_table() {
            return false;
        }
        self.guard.split_borders(first, end);
        true
    }

    /// The memcg that slots of the unit are charged to.
    pub(crate) fn memcg(&self, unit: Unit) -> u16 {
        unit.word.memcg().unwrap_or_else(|| match self.pfn(unit.word) {
            Some(page) => {
                let folio = self.devices.frames().folio(page);
                folio.frame().as_folio().memcg()
            }
            None => 0,
        })
    }

    /// The slots of the unit, whose words are theirs alone, are free from now on.
    #[inline]
    pub(crate) fn free(&mut self, unit: Unit, memcg: u16) {
        if unit.word.is_free() {
            return;
        }
        self.guard.store(unit, SlotWord::FREE);
        self.freed = (self.freed.0.min(unit.first), self.freed.1.max(unit.first + unit.pages));
        let pages = u64::from(unit.pages);
        if !unit.word.is_zero() && self.device.flags.contains(DeviceFlags::NOTES_FREED) {
            let slot = self.slot(unit.first).number();
            self.device.backing().freed(self.devices.device_memory(), slot, pages);
        }
        self.device.used.fetch_sub(pages, Ordering::Relaxed);
        self.devices.uncharge_slots(memcg, pages);
    }

    /// The slots from `first` up to `end` are charged to another memcg now.
    pub(crate) fn recharged(&self, (first, end): (u32, u32), to: MemcgId) {
        if self.device.flags.contains(DeviceFlags::NOTES_FREED) {
            let slots = (self.slot(first).number(), u64::from(end - first));
            self.device.backing().recharged(self.devices.device_memory(), slots, to);
        }
    }

    /// Frees the unit if nothing needs it any more.
    pub(crate) fn free_if_unused(&mut self, slot: u32) -> Unit {
        let unit = self.guard.unit(slot);
        if !unit.word.is_cached() && !unit.word.is_busy() && !self.guard.is_named(unit) {
            let memcg = self.memcg(unit);
            self.free(unit, memcg);
        }
        unit
    }

    /// The list that the cluster belongs on.
    pub(crate) fn wanted_list(&self) -> ListId {
        let (used, limit) = (u32::from(self.guard.used), self.limit());
        if used == 0 {
            return if self.device.discard { ListId::Discard } else { ListId::Free };
        }
        if used == limit {
            return ListId::Full;
        }
        if self.guard.order == crate::cluster::CLUSTER_ORDER {
            return ListId::Frag;
        }
        ListId::Nonfull(self.guard.order)
    }

    /// Whether a block of the cluster's order is free where slots became free.
    fn freed_a_block(&self) -> bool {
        let pages = self.guard.block_pages();
        let (first, end) =
            (self.freed.0 / pages, self.freed.1.min(self.limit() / pages * pages).div_ceil(pages));
        (first..end).any(|block| self.guard.is_free_block(block * pages))
    }

    /// Moves the cluster to the list it belongs on, after its slots have changed.
    // Always a part of what holds a cluster: mostly it stays where it is.
    #[inline(always)]
    pub(crate) fn settle(&mut self) {
        if self.guard.torn && self.guard.sum == 0 {
            // Every count is exact again.
            self.guard.torn = false;
        }
        if !self.devices.technique().lazy_bookkeeping() {
            self.note_shadows();
        }
        let now = self.guard.cluster().list();
        if now != ListId::Taken.number() {
            let wanted = self.wanted_list();
            if wanted.number() != now {
                self.change_list(ListId::of(now), wanted);
            }
        }
    }

    // A frame of its own: most clusters stay where they are.
    #[inline(never)]
    fn change_list(&mut self, now: ListId, mut wanted: ListId) {
        if !now.is_list() {
            return;
        }
        // A cluster already free was not used since its discard.
        if now == ListId::Free && wanted == ListId::Discard {
            return;
        }
        if matches!(wanted, ListId::Nonfull(_)) && !self.freed_a_block() {
            if now == ListId::Frag {
                return;
            }
            wanted = ListId::Frag;
        }
        self.move_to(wanted, false);
    }

    /// Moves the cluster to a list; one that a thread has taken only if it is that thread (`taken`).
    pub(crate) fn move_to(&mut self, wanted: ListId, taken: bool) {
        let device = self.device;
        let mut lists = device.lists.lock();
        // It may have been taken since the look.
        if !taken && !ListId::of(device.cluster(self.index).list()).is_list() {
            return;
        }
        lists.take(|index| device.cluster(index), self.index);
        let empty = matches!(wanted, ListId::Free | ListId::Discard);
        // The table goes before a thread can take the cluster from the list and expect none.
        let table = if empty { self.guard.table.take() } else { None };
        lists.put(|index| device.cluster(index), self.index, wanted);
        drop(lists);
        if let Some(table) = table {
            device.tables.fetch_sub(1, Ordering::Relaxed);
            self.devices.free_table(self.pin, table);
        }
    }

    /// Keeps the list of clusters that hold nothing but shadows.
    #[inline]
    fn note_shadows(&self) {
        let only = self.guard.used > 0 && self.guard.cached == 0;
        if only != self.guard.cluster().is_listed_for_shadows() {
            self.list_for_shadows(only);
        }
    }

    #[cold]
    fn list_for_shadows(&self, only: bool) {
        let device = self.device;
        device.lists.lock().note_shadows(|index| device.cluster(index), self.index, only);
    }
}

//! How many page-table entries name a slot.

use crate::cluster::CLUSTER_SLOTS;
use crate::devices::SwapDevices;
use crate::held::{Held, look_at, with_cluster};
use crate::slot::SlotId;
use crate::word::Tag;
use quire_arch::Platform;
use quire_frame::FrameFlags;

/// The result of removing names of slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Dropped {
    /// Nothing names some of them any more, but the cache has their pages: a thread that can lock the folio
    /// should [`remove`](crate::SwapCache::remove_unnamed) it.
    pub cached_only: bool,
}

quire_arch::part_of! {
    /// The counts of the page-table entries that name slots.
    pub struct SlotCounts { pub(crate) devices: SwapDevices }
}

impl<P: Platform> SlotCounts<'_, P> {
    /// Calls `work` with each cluster of these slots, with the first and one past the last in it.
    fn each_cluster(self, slot: SlotId, pages: u32, mut work: impl FnMut(&mut Held<'_, P>, u32, u32)) {
        let (mut at, mut left) = (slot, pages);
        while left > 0 {
            let here = left.min(CLUSTER_SLOTS - at.number() as u32 % CLUSTER_SLOTS);
            let known = with_cluster(self.devices, at, |held, first| work(held, first, first + here));
            debug_assert!(known.is_some(), "{at} is of no device");
            at = at.plus(u64::from(here));
            left -= here;
        }
    }

    /// Adds a name to each of these slots, which are in use and stay so: their folio is in the cache and
    /// locked, or an entry that names them stays where it is meanwhile. Returns whether nothing named any of
    /// them before.
    pub fn add_counts(self, slot: SlotId, pages: u32) -> bool {
        let mut unnamed = true;
        self.each_cluster(slot, pages, |held, first, end| unnamed &= held.name(first, end));
        unnamed
    }

    /// Removes a name from each of these slots. Those no longer needed are freed at once.
    pub fn drop_counts(self, slot: SlotId, pages: u32) -> Dropped {
        let mut dropped = Dropped::default();
        self.each_cluster(slot, pages, |held, first, end| dropped.cached_only |= held.unname(first, end));
        dropped
    }

    /// How many entries name the slot. If slots could not be counted separately for lack of memory, the
    /// result is 1 as long as something names any of them.
    pub fn count(self, slot: SlotId) -> u32 {
        let count = look_at(self.devices, &self.devices.platform().pin(), slot, |state, at| {
            if state.torn { u32::from(state.sum > 0) } else { state.word_of(at).count() }
        });
        count.unwrap_or(0)
    }

    /// Whether the caller's entry alone names the slot. If slots could not be counted separately for lack of
    /// memory, this is known only if nothing else names any of them.
    pub fn is_named_once(self, slot: SlotId) -> bool {
        let once = look_at(self.devices, &self.devices.platform().pin(), slot, |state, at| {
            let names = if state.torn { state.sum } else { state.word_of(at).count() };
            names == 1
        });
        once.unwrap_or(false)
    }

    /// Whether the cache has the page of the slot: a snapshot.
    pub fn is_cached(self, slot: SlotId) -> bool {
        look_at(self.devices, &self.devices.platform().pin(), slot, |state, at| {
            state.word_of(at).tag() == Tag::Folio
        })
        .unwrap_or(false)
    }

    /// Whether the cache has the page of the slot and it has been read: a snapshot.
    pub fn is_in_memory(self, slot: SlotId) -> bool {
        let unread = FrameFlags::READING | FrameFlags::READ_FAILED;
        let read = |held: &mut Held<'_, P>, at: u32| {
            let page = held.pfn(held.guard.word_of(at))?;
            Some(!self.devices.frames().folio(page).frame().word().flags().intersects(unread))
        };
        with_cluster(self.devices, slot, read).flatten().unwrap_or(false)
    }

    /// Whether the cache has the pages of these slots, which are those of one folio, and nothing names any of
    /// them: a snapshot, of a device that may be gone.
    pub fn is_cached_only(self, slot: SlotId, pages: u32) -> bool {
        let only = with_cluster(self.devices, slot, |held, first| {
            let mut cached = true;
            held.each(first, first + pages, |_, unit| cached &= unit.word.is_cached());
            cached && held.guard.all_unnamed(first, first + pages)
        });
        only.unwrap_or(false)
    }

    /// The memcg that the slot is charged to; 0 if it is free.
    pub fn memcg_of(self, slot: SlotId) -> u16 {
        with_cluster(self.devices, slot, |held, at| held.memcg(held.guard.unit(at))).unwrap_or(0)
    }
}

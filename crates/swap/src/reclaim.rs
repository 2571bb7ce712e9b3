//! Freeing slots that are not needed: those whose pages only the cache holds. Also compacting devices in RAM.

use crate::cache::SwapCache;
use crate::cluster::CLUSTER_SLOTS;
use crate::devices::SwapDevices;
use crate::held::with_cluster;
use crate::slot::{MAX_DEVICES, SlotId};
use quire_arch::{Pfn, Platform};
use quire_frame::VmEvent;
use quire_sync::atomic::Ordering;

/// Clusters that one call scans on each device.
const CLUSTERS: u32 = 128;
/// Slots after which one call stops.
const ENOUGH: u64 = 512;

quire_arch::part_of! {
    /// Frees slots whose pages only the swap cache holds, and compacts devices in RAM.
    pub struct SlotReclaim { pub(crate) devices: SwapDevices }
}

impl<P: Platform> SlotReclaim<'_, P> {
    /// Compacts devices in RAM until about `wanted` frames are free, and returns how many were freed,
    /// `wanted` at most. What a device says counts only as far as frames were freed at all while it
    /// compacted. Not pinned.
    pub fn compact_devices(self, wanted: u64) -> u64 {
        let freed_so_far = || self.devices.frames().events().sum(VmEvent::Pgfree);
        let mut freed = 0;
        for device in (0..MAX_DEVICES).filter_map(|index| self.devices.use_device(index)) {
            if freed >= wanted {
                break;
            }
            let before = freed_so_far();
            let said = device.backing().compact(self.devices.device_memory(), wanted - freed);
            freed += said.min(freed_so_far().wrapping_sub(before)).min(wanted - freed);
        }
        freed
    }

    /// Removes folios from the cache whose slots nothing names, unless another thread uses them. Returns the
    /// number of slots freed. May free folios. If there are many, the next call continues. `left` is called
    /// with each of them: it may be mapped.
    pub fn reclaim_unnamed(self, left: &mut dyn FnMut(Pfn)) -> u64 {
        let mut freed = 0;
        for index in 0..MAX_DEVICES {
            let Some(device) = self.devices.use_device(index) else { continue };
            let count = device.clusters.min(CLUSTERS);
            let start = device.reclaim_cursor.fetch_add(count, Ordering::Relaxed) % device.clusters;
            for cluster in (0..count)
                .map(|nth| ((u64::from(start) + u64::from(nth)) % u64::from(device.clusters)) as u32)
            {
                let mut at = SlotId::new(device.id, u64::from(cluster) * u64::from(CLUSTER_SLOTS));
                let mut slots = device.slots_of(cluster);
                while let Some((page, skipped)) = self.next_unnamed(at, slots) {
                    freed += self.reclaim_folio(page, left);
                    at = at.plus(u64::from(skipped));
                    slots -= skipped;
                }
                if freed >= ENOUGH {
                    return freed;
                }
            }
        }
        freed
    }

    /// The next page among `slots` that only the cache holds, with a reference to its folio, and the slots up
    /// to behind it.
    fn next_unnamed(self, from: SlotId, slots: u32) -> Option<(Pfn, u32)> {
        if slots == 0 {
            return None;
        }
        with_cluster(self.devices, from, |held, first| {
            if held.guard.cached == 0 {
                return None;
            }
            let mut at = first;
            while let Some(unit) = held.guard.next_unit(at, first + slots) {
                if unit.word.is_cached()
                    && !held.guard.is_named(unit)
                    && let Some(page) = held.get_page(held.guard.word_of(at))
                {
                    return Some((page, unit.first + unit.pages - first));
                }
                at = unit.first + unit.pages;
            }
            None
        })?
    }

    /// Takes the folio of `page`, to which the caller has a reference that this drops, out of the cache if
    /// that can be done without waiting.
    fn reclaim_folio(self, page: Pfn, left: &mut dyn FnMut(Pfn)) -> u64 {
        let frames = self.devices.frames();
        // It is not split while the caller has its reference.
        let (head, order) = (frames.folio(page).head(), frames.folio(page).order());
        let removed = match frames.folios().try_lock_folio(head) {
            Some(_lock) => SwapCache::new(self.devices).remove_unnamed(head),
            None => false,
        };
        if removed {
            self.devices.memcgs().folios().release_folio(head);
            left(head);
        }
        self.devices.memcgs().folios().release_folio(head);
        if removed { order.pages() } else { 0 }
    }
}

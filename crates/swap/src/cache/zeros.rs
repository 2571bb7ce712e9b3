//! Zero-filled pages. They are not read: the slot's word has all their state. So such a page can be swapped
//! in without entering the cache: insertion, read and removal are one step under the cluster's lock.

use super::SwapCache;
use crate::held::{look_at, with_cluster_on};
use crate::shadow::Shadow;
use crate::slot::SlotId;
use quire_arch::{Pin, Platform};

impl<P: Platform> SwapCache<'_, P> {
    /// The memcg of a slot whose page is all zeros, on the device only, and named by one entry: a snapshot.
    /// `None` for any other slot, and with the old technique, which sends all pages to the device.
    pub fn zeros(self, pin: &Pin<'_, P>, slot: SlotId) -> Option<u16> {
        if !self.devices.technique().knows_zeros() {
            return None;
        }
        look_at(self.devices, pin, slot, |state, at| state.zeros(at)?.memcg()).flatten()
    }

    /// Frees a slot that is still as [`zeros`](Self::zeros) said, charged to `memcg`, and returns its shadow:
    /// the one entry that names it is about to lead to a zeroed page. None if it is not; nothing has
    /// changed. The caller holds the lock of the table that the entry is in.
    pub fn take_zeros(self, pin: &Pin<'_, P>, slot: SlotId, memcg: u16) -> Option<Option<Shadow>> {
        with_cluster_on(self.devices, pin, slot, |held, at| {
            let word = held.guard.zeros(at).filter(|word| word.memcg() == Some(memcg))?;
            let mut unit = held.guard.unit(at);
            if unit.pages > 1 {
                if !held.own(at, at + 1) {
                    return None;
                }
                unit = held.guard.unit(at);
            }
            held.free(unit, memcg);
            Some(word.shadow())
        })
        .flatten()
    }
}

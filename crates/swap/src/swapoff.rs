//! Removing a device (swapoff).
//!
//! No slots are allocated from it any more. The thread that removes it swaps in all pages, in rounds, and the
//! device is removed once no slot is in use.

use crate::cluster::CLUSTER_SLOTS;
use crate::devices::{Device, LEAVING, SwapDevices};
use crate::error::StillUsed;
use crate::held::with_cluster;
use crate::slot::{DeviceId, SlotId};
use core::ptr;
use quire_arch::Platform;
use quire_sync::atomic::Ordering;

quire_arch::part_of! {
    /// Removes devices.
    pub struct Swapoff { pub(crate) devices: SwapDevices }
}

impl<P: Platform> Swapoff<'_, P> {
    /// Stops allocation from the device. False if there is no such device, or it is being removed already.
    /// May sleep.
    pub fn begin_swapoff(self, id: DeviceId) -> bool {
        if !self.devices.set_accepts(id, false) {
            return false;
        }
        // A thread that asked for a slot before that has it now.
        self.devices.frames().epoch().wait_for_sections::<P>();
        true
    }

    /// Allows allocation from the device again.
    pub fn cancel_swapoff(self, id: DeviceId) {
        self.devices.set_accepts(id, true);
    }

    /// The first slot from number `from` on that is in use.
    pub fn next_used(self, id: DeviceId, from: u64) -> Option<u64> {
        let (slots, mut at) = (self.devices.use_device(id.index())?.slots, from);
        while at < slots {
            let found = with_cluster(self.devices, SlotId::new(id, at), |held, first| {
                if held.guard.used == 0 {
                    return None;
                }
                (first..held.limit()).find(|&place| !held.guard.unit(place).word.is_free())
            });
            let base = at - at % u64::from(CLUSTER_SLOTS);
            match found? {
                Some(place) => return Some(base + u64::from(place)),
                None => at = base + u64::from(CLUSTER_SLOTS),
            }
        }
        None
    }

    /// Removes the device: waits until no thread uses it, closes it and frees all its memory. Follows
    /// [`begin_swapoff`](Self::begin_swapoff), by the same caller. Sleeps.
    ///
    /// # Errors
    ///
    /// [`StillUsed`]; the device is still being removed, and nothing changed.
    pub fn finish_swapoff(self, id: DeviceId) -> Result<(), StillUsed> {
        let Some(device) = self.devices.use_device(id.index()) else { return Ok(()) };
        debug_assert!(!device.accepts());
        let slots = device.used.load(Ordering::Relaxed);
        if slots > 0 {
            return Err(StillUsed { slots });
        }
        let Some(gone) = self.devices.unlist(&device) else { return Ok(()) };
        drop(device);
        self.devices.frames().epoch().wait_for_sections::<P>();
        // SAFETY: only this call ends the device.
        let users = unsafe { &gone.as_ref().users };
        // In the same word: of this and the last user the second one knows of the other. Acquire: pairs with
        // the user's release.
        users.fetch_or(LEAVING, Ordering::Acquire);
        let used = || users.load(Ordering::Acquire) != LEAVING;
        while used() {
            self.devices.platform().park(ptr::from_ref(users).addr(), &mut || used());
        }
        // SAFETY: no thread can find the device any more, all that had found it have dropped it, and no slot
        // is in use or looked at again. It was built by `SwapDevices`, which alone has pointers to it.
        unsafe { Device::end(gone, self.devices) };
        self.devices.unreserve(id);
        Ok(())
    }
}

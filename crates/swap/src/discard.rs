//! Discarding free clusters, and waiting for another thread that does.

use crate::cluster::CLUSTER_SLOTS;
use crate::device::DeviceFlags;
use crate::devices::{Device, Discards, SwapDevices};
use crate::held::Held;
use crate::lists::ListId;
use quire_arch::Platform;
use quire_sync::atomic::Ordering;

/// For how long a thread waits for a discard to end. One that takes longer may never end.
const PATIENCE_NS: u64 = 100_000_000;

/// A cluster that this thread discards. No slot of it is allocated before this is dropped: also where the
/// device panics.
struct Discarding<'s, P: Platform> {
    devices: &'s SwapDevices<P>,
    device: &'s Device<P>,
    cluster: u32,
}

impl<P: Platform> Drop for Discarding<'_, P> {
    fn drop(&mut self) {
        let platform = self.devices.platform();
        {
            let pin = platform.pin();
            Held::lock(self.devices, &pin, self.device, self.cluster).move_to(ListId::Free, true);
        }
        // Release: a thread that sees this finds the cluster on its list.
        self.devices.discards.ended.fetch_add(1, Ordering::Release);
        platform.unpark(self.devices.discards.key());
    }
}

quire_arch::part_of! {
    /// Discards of free clusters.
    pub struct ClusterDiscard { pub(crate) devices: SwapDevices }
}

impl<'s, P: Platform> ClusterDiscard<'s, P> {
    /// Discards up to `most` freed clusters, first those of the devices that are filled first, and returns
    /// how many. Sleeps if a device does, which takes a while for each.
    pub fn discard_free_clusters(self, most: u32) -> u32 {
        let mut told = 0;
        for rank in &self.devices.order {
            let Some(index) = rank.load(Ordering::Relaxed).checked_sub(1) else { break };
            let Some(device) = self.devices.use_device(usize::from(index)) else { continue };
            if !device.flags.contains(DeviceFlags::DISCARD) || !device.discard {
                continue;
            }
            while told < most {
                let Some(discarding) = self.begin_discard(&device) else { break };
                let first = u64::from(discarding.cluster) * u64::from(CLUSTER_SLOTS);
                let slots = u64::from(device.slots_of(discarding.cluster));
                device.backing().discard(self.devices.device_memory(), first, slots);
                told += 1;
            }
        }
        told
    }

    fn begin_discard(self, device: &'s Device<P>) -> Option<Discarding<'s, P>> {
        let _pin = self.devices.platform().pin();
        let mut lists = device.lists.lock();
        let cluster = lists.pop_to_discard(|index| device.cluster(index))?;
        // Under the lock of the lists: a thread that does not find the cluster there sees this.
        self.devices.discards.begun.fetch_add(1, Ordering::Relaxed);
        Some(Discarding { devices: self.devices, device, cluster })
    }

    /// Whether a thread has waited in vain for a discard that is still under way.
    pub fn has_late_discard(self) -> bool {
        let Discards { begun, ended, given_up } = &self.devices.discards;
        // Acquire: pairs with the release of the end.
        let ended = ended.load(Ordering::Acquire);
        given_up.load(Ordering::Relaxed) > ended && begun.load(Ordering::Relaxed) > ended
    }

    /// How many discards have ended. What one has freed is on the lists before it is counted.
    pub fn discards_ended(self) -> u64 {
        // Acquire: pairs with the release of the end.
        self.devices.discards.ended.load(Ordering::Acquire)
    }

    /// If other threads discard clusters, sleeps until more discards than `ended` have ended, and returns
    /// true; but not for long, and only if no other thread has waited for that in vain. Not pinned, and no
    /// lock is held that a discard needs.
    pub(crate) fn wait_for_discard(self, ended: u64) -> bool {
        let Discards { begun, ended: now, given_up } = &self.devices.discards;
        let mut still = || now.load(Ordering::Acquire) == ended;
        if still() && (begun.load(Ordering::Relaxed) == ended || given_up.load(Ordering::Relaxed) > ended) {
            return false;
        }
        let platform = self.devices.platform();
        let until = platform.now().saturating_add(PATIENCE_NS);
        while still() {
            let left = until.saturating_sub(platform.now());
            if left == 0 {
                given_up.store(ended + 1, Ordering::Relaxed);
                return false;
            }
            platform.park_for(self.devices.discards.key(), left, &mut still);
        }
        true
    }
}

//! The devices in use, and their metadata in RAM.

mod block;
mod chunks;
mod device;
mod device_use;
mod registry;

pub(crate) use device::Device;
pub(crate) use device_use::LEAVING;
pub(crate) use registry::Registry;

use crate::Swap;
use crate::device::DeviceReport;
use crate::slot::{DeviceId, MAX_DEVICES};
use quire_arch::Platform;
use quire_sync::atomic::Ordering;

/// A swap device as reports show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwapReport {
    /// Its number.
    pub id: DeviceId,
    /// The kind of device, as a short name.
    pub kind: &'static str,
    /// All its slots.
    pub slots: u64,
    /// Of these, those in use.
    pub used: u64,
    /// Devices of higher priority are filled first.
    pub priority: i16,
    /// The device's statistics.
    pub device: DeviceReport,
    /// RAM for its metadata: cluster descriptors and tables of words.
    pub metadata_bytes: u64,
}

impl<P: Platform> Swap<P> {
    /// The device with this number. The caller is inside a section of the epoch, or keeps the device by a
    /// slot in use or a count of users.
    #[inline]
    pub(crate) fn device(&self, index: usize) -> Option<&Device<P>> {
        let device = self.devices.get(index)?.load(Ordering::Acquire);
        // SAFETY: a device that is taken off the table ends only after all sections that were open have
        // closed and its users are gone (`finish_swapoff`), and outlives the borrow by that.
        unsafe { device.as_ref() }
    }

    /// Whether there is any device. A cheap snapshot.
    #[inline]
    pub fn is_any_on(&self) -> bool {
        self.on.load(Ordering::Relaxed) != 0
    }

    /// Every device, by its number.
    pub fn devices(&self) -> impl Iterator<Item = SwapReport> {
        (0..MAX_DEVICES).filter_map(|index| {
            let device = self.use_device(index)?;
            Some(SwapReport {
                id: device.id,
                kind: device.backing().kind(),
                slots: device.slots,
                used: device.used.load(Ordering::Relaxed),
                priority: device.priority(),
                device: device.backing().report(),
                metadata_bytes: device.metadata_bytes(),
            })
        })
    }

    /// Slots of all devices.
    pub fn total_slots(&self) -> u64 {
        self.sum(|device| device.slots)
    }

    /// Of these, those that are free and can be allocated.
    pub fn free_slots(&self) -> u64 {
        self.sum(|device| {
            let used = device.used.load(Ordering::Relaxed);
            if device.accepts() { device.slots.saturating_sub(used) } else { 0 }
        })
    }

    /// Pages in the swap cache. Visits every cluster, under many pins: for reports. Not pinned.
    pub fn cached_pages(&self) -> u64 {
        let devices = (0..MAX_DEVICES).filter_map(|index| self.use_device(index));
        devices.map(|device| device.cached_pages(self.platform())).sum()
    }

    fn sum(&self, of: impl Fn(&Device<P>) -> u64) -> u64 {
        let pin = self.platform().pin();
        let _epoch = self.frames().epoch().enter(&pin);
        (0..MAX_DEVICES).filter_map(|index| self.device(index)).map(of).sum()
    }
}

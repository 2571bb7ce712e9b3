//! The devices in use, and their metadata in RAM.

mod block;
mod charge;
mod chunks;
mod device;
mod device_use;
mod discards;
mod registry;

pub(crate) use device::Device;
pub(crate) use device_use::LEAVING;
pub(crate) use discards::Discards;
use registry::Registry;
pub use registry::SwapOnOptions;

use crate::cluster::TableRef;
use crate::device::{DeviceMemory, DeviceReport};
use crate::shadow::Ages;
use crate::slot::{DeviceId, MAX_DEVICES};
use crate::technique::SwapTechnique;
use core::{fmt, ptr};
use quire_arch::{LockClass, Order, Pin, Platform};
use quire_frame::{AllocRequest, FailSite, Frames, Kind};
use quire_memcg::Memcgs;
use quire_sync::SpinLock;
use quire_sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};

/// Frames of words.
const TABLE_SITE: FailSite = FailSite::new("swap_table");

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

/// The devices of one machine that slots are allocated from, with the memcgs that pay for the slots.
pub struct SwapDevices<P: Platform> {
    memcgs: Memcgs<P>,
    ages: Ages,
    technique: SwapTechnique,
    devices: [AtomicPtr<Device<P>>; MAX_DEVICES],
    /// The devices that slots are allocated from, as number plus one, highest priority first; 0 ends it.
    pub(crate) order: [AtomicU8; MAX_DEVICES],
    /// Whose turn it is among devices of equal priority.
    pub(crate) turn: AtomicU32,
    /// Devices in use.
    on: AtomicU32,
    pub(crate) discards: Discards,
    registry: SpinLock<Registry, P>,
}

impl<P: Platform> SwapDevices<P> {
    /// Swap over `memcgs`. No device is in use, and nothing is allocated before there is one.
    pub(crate) fn new(memcgs: Memcgs<P>, technique: SwapTechnique) -> Self {
        Self {
            // What is not online yet may come.
            ages: Ages::for_memory(memcgs.frames().map().span().len()),
            memcgs,
            technique,
            devices: core::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            order: core::array::from_fn(|_| AtomicU8::new(0)),
            turn: AtomicU32::new(0),
            on: AtomicU32::new(0),
            discards: Discards::new(),
            registry: SpinLock::new(LockClass::SwapDevices, Registry::new()),
        }
    }

    /// How ages are kept in shadows.
    #[inline]
    pub fn ages(&self) -> Ages {
        self.ages
    }

    /// The memcgs.
    #[inline]
    pub fn memcgs(&self) -> &Memcgs<P> {
        &self.memcgs
    }

    /// The frames.
    #[inline]
    pub fn frames(&self) -> &Frames<P> {
        self.memcgs.frames()
    }

    /// The same, as passed to devices.
    #[inline]
    pub(crate) fn device_memory(&self) -> DeviceMemory<'_, P> {
        DeviceMemory::of(&self.memcgs)
    }

    /// The machine.
    #[inline]
    pub fn platform(&self) -> &P {
        self.frames().platform()
    }

    /// The technique in use.
    #[inline]
    pub fn technique(&self) -> SwapTechnique {
        self.technique
    }

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
    pub fn reports(&self) -> impl Iterator<Item = SwapReport> {
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

    /// A frame of words. A cluster's lock is held: it comes from what is free on the lists, or not at all.
    pub(crate) fn allocate_table(&self, pin: &Pin<'_, P>) -> Option<TableRef> {
        let request =
            AllocRequest::new(Order::ZERO, TABLE_SITE).kind(Kind::Swap).zeroed().below_min().without_drain();
        let pfn = self.frames().allocate(pin, request).ok()?;
        Some(TableRef { words: self.platform().direct_map(pfn).cast(), pfn })
    }

    pub(crate) fn free_table(&self, pin: &Pin<'_, P>, table: TableRef) {
        let freed = self.frames().free(pin, table.pfn, Order::ZERO);
        debug_assert!(freed.is_ok(), "a table of words: {freed:?}");
    }
}

impl<P: Platform> Drop for SwapDevices<P> {
    fn drop(&mut self) {
        for index in 0..MAX_DEVICES {
            let device = self.devices[index].swap(ptr::null_mut(), Ordering::Relaxed);
            if let Some(device) = ptr::NonNull::new(device) {
                // SAFETY: no thread has swap any more, so none uses the device or will.
                unsafe { Device::end(device, self) };
            }
        }
    }
}

impl<P: Platform> fmt::Debug for SwapDevices<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SwapDevices")
            .field("technique", &self.technique)
            .field("on", &self.on)
            .finish_non_exhaustive()
    }
}

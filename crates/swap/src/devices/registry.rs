//! Which devices there are, and in what order slots are allocated from them.

use super::SwapDevices;
use super::device::{Device, DeviceMetadata};
use crate::SwapOnError;
use crate::device::SwapDevice;
use crate::slot::{DeviceId, MAX_DEVICES};
use core::ptr::{self, NonNull};
use quire_arch::Platform;
use quire_sync::atomic::Ordering;

/// How a device is taken into use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwapOnOptions {
    /// Devices of higher priority are filled first, those of equal priority in turns. Without one a device
    /// comes after all that were there before.
    pub priority: Option<i16>,
    /// Whether freed clusters are discarded, if the device wants it
    /// ([`DeviceFlags::DISCARD`](crate::DeviceFlags::DISCARD)).
    pub discard: bool,
}

/// What changes as devices come and go; behind a lock of class `SwapDevices`.
#[derive(Debug)]
pub(crate) struct Registry {
    /// Numbers of devices that are coming or going.
    reserved: u32,
    /// The priority that the last device without one of its own got.
    least: i16,
}

impl Registry {
    pub(crate) const fn new() -> Self {
        Self { reserved: 0, least: -1 }
    }
}

impl<P: Platform> SwapDevices<P> {
    /// Takes a device into use.
    ///
    /// # Errors
    ///
    /// See [`SwapOnError`]; the device is closed and dropped then. What it has of another machine's memory
    /// stays allocated there.
    pub fn swapon<D: SwapDevice<P>>(
        &self,
        device: D,
        options: SwapOnOptions,
    ) -> Result<DeviceId, SwapOnError> {
        let frames = self.frames();
        if !device.is_of(self.device_memory()) {
            device.close(self.device_memory());
            return Err(SwapOnError::OtherMachine);
        }
        let Some(id) = self.reserve() else {
            device.close(self.device_memory());
            return Err(SwapOnError::TooManyDevices);
        };
        let metadata = DeviceMetadata::allocate::<P, D>(frames, device.slots());
        let metadata = match metadata {
            Ok(metadata) => metadata,
            Err(error) => {
                // Frees the device's own memory.
                device.close(self.device_memory());
                self.unreserve(id);
                return Err(error);
            }
        };
        let built = Device::build(frames, metadata, id, device, options.discard);
        let _pin = self.platform().pin();
        let mut registry = self.registry.lock();
        registry.reserved &= !(1 << id.index());
        // SAFETY: just built, and still this call's alone.
        let device = unsafe { built.as_ref() };
        device.set_priority(options.priority.unwrap_or_else(|| {
            registry.least -= 1;
            registry.least
        }));
        self.devices[id.index()].store(built.as_ptr(), Ordering::Release);
        self.on.fetch_add(1, Ordering::Relaxed);
        self.sort_devices();
        Ok(id)
    }

    /// A number that no device has.
    fn reserve(&self) -> Option<DeviceId> {
        let _pin = self.platform().pin();
        let mut registry = self.registry.lock();
        let free = |index: &usize| {
            registry.reserved >> index & 1 == 0 && self.devices[*index].load(Ordering::Relaxed).is_null()
        };
        let index = (0..MAX_DEVICES).find(free)?;
        registry.reserved |= 1 << index;
        DeviceId::new(index)
    }

    /// Whether slots of the device are allocated from now on. False if there is no such device, or that is so
    /// already.
    pub(crate) fn set_accepts(&self, id: DeviceId, accepts: bool) -> bool {
        let _pin = self.platform().pin();
        let _registry = self.registry.lock();
        match self.device(id.index()) {
            Some(device) if device.accepts() != accepts => device.set_accepts(accepts),
            _ => return false,
        }
        self.sort_devices();
        true
    }

    /// Recomputes the order in which devices are tried. The registry is locked. A concurrent reader may miss
    /// a device once.
    fn sort_devices(&self) {
        let mut sorted = arrayvec::ArrayVec::<(i16, u8), MAX_DEVICES>::new();
        for index in 0..MAX_DEVICES {
            if let Some(device) = self.device(index)
                && device.accepts()
            {
                sorted.push((device.priority(), index as u8 + 1));
            }
        }
        sorted.sort_unstable_by_key(|&(priority, id)| (core::cmp::Reverse(priority), id));
        for (place, rank) in self.order.iter().enumerate() {
            rank.store(sorted.get(place).map_or(0, |&(_, id)| id), Ordering::Relaxed);
        }
    }

    /// Takes a device off the table, so that no thread finds it any more.
    pub(crate) fn unlist(&self, device: &Device<P>) -> Option<NonNull<Device<P>>> {
        let _pin = self.platform().pin();
        let mut registry = self.registry.lock();
        let this = self.devices[device.id.index()].swap(ptr::null_mut(), Ordering::AcqRel);
        registry.reserved |= 1 << device.id.index();
        self.on.fetch_sub(1, Ordering::Relaxed);
        let gone = device.priority();
        if gone < 0 && gone >= registry.least {
            // Those after it move up, as in Linux.
            registry.least += 1;
            for other in (0..MAX_DEVICES).filter_map(|index| self.device(index)) {
                if other.priority() < gone {
                    other.set_priority(other.priority() + 1);
                }
            }
        }
        self.sort_devices();
        NonNull::new(this)
    }

    /// Releases a number that was reserved while its device was being removed.
    pub(crate) fn unreserve(&self, id: DeviceId) {
        let _pin = self.platform().pin();
        self.registry.lock().reserved &= !(1 << id.index());
    }
}

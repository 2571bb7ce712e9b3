//! Uses of a device by threads that may sleep.

use super::SwapDevices;
use super::device::Device;
use core::ops::Deref;
use core::ptr;
use quire_arch::Platform;
use quire_sync::atomic::Ordering;

/// In the number of a device's users: it goes as soon as there are none, and another thread waits for that.
pub(crate) const LEAVING: u32 = 1 << 31;

/// A device that does not go while this lives, so that its user may sleep.
pub(crate) struct DeviceUse<'s, P: Platform> {
    devices: &'s SwapDevices<P>,
    device: &'s Device<P>,
}

impl<P: Platform> Deref for DeviceUse<'_, P> {
    type Target = Device<P>;

    fn deref(&self) -> &Device<P> {
        self.device
    }
}

impl<P: Platform> Drop for DeviceUse<'_, P> {
    fn drop(&mut self) {
        let key = ptr::from_ref(&self.device.users).addr();
        // Release: a thread that ends the device sees all that was done with it. It may be gone after this.
        if self.device.users.fetch_sub(1, Ordering::Release) == LEAVING + 1 {
            self.devices.platform().unpark(key);
        }
    }
}

impl<P: Platform> SwapDevices<P> {
    /// The device with this number, which stays until the result is dropped.
    pub(crate) fn use_device(&self, index: usize) -> Option<DeviceUse<'_, P>> {
        let pin = self.platform().pin();
        let _epoch = self.frames().epoch().enter(&pin);
        let device = self.device(index)?;
        // Counted inside the section: a thread that takes the device off the table waits for that first, and
        // then for the count.
        device.users.fetch_add(1, Ordering::Relaxed);
        Some(DeviceUse { devices: self, device })
    }
}

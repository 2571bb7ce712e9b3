//! Slots of zero-filled pages.

use super::Held;
use crate::device::DeviceFlags;
use quire_arch::Platform;

impl<P: Platform> Held<'_, P> {
    /// Notes for the slots of a folio whether its pages are zeros.
    pub(crate) fn note_zero(&mut self, first: u32, end: u32, zero: bool) {
        self.each(first, end, |held, unit| {
            if unit.word.is_zero() == zero {
                return;
            }
            held.guard.store(unit, unit.word.with_zero(zero));
            if zero && held.device.flags.contains(DeviceFlags::NOTES_FREED) {
                // Whatever it has from an earlier write.
                let slot = held.slot(unit.first).number();
                held.device.backing().freed(held.devices.device_memory(), slot, u64::from(unit.pages));
            }
        });
    }
}

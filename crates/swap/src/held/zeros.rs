//! Slots of zero-filled pages.

use super::Held;
use crate::cluster::State;
use crate::device::DeviceFlags;
use crate::word::SlotWord;
use quire_arch::Platform;

impl State {
    /// The word of a slot for which [`SwapCache::zeros`](crate::SwapCache::zeros) returns a memcg.
    #[inline]
    pub(crate) fn zeros(&self, at: u32) -> Option<SlotWord> {
        let word = self.word_of(at);
        let out = !word.is_free() && !word.is_cached() && !word.is_busy();
        // Of a torn cluster it is not known how often the slot alone is named.
        (out && word.is_zero() && word.count() == 1 && !self.torn).then_some(word)
    }
}

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

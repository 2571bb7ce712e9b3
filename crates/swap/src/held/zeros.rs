//! Slots of zero-filled pages.

use super::Held;
use crate::word::SlotWord;
use quire_arch::Platform;

impl<P: Platform> Held<'_, P> {
    /// The word of a slot for which [`SwapCache::zeros`](crate::SwapCache::zeros) returns a memcg.
    pub(crate) fn zeros(&self, at: u32) -> Option<SlotWord> {
        let word = self.guard.word_of(at);
        let out = !word.is_free() && !word.is_cached() && !word.is_busy();
        // Of a torn cluster it is not known how often the slot alone is named.
        (out && word.is_zero() && word.count() == 1 && !self.guard.torn).then_some(word)
    }
}

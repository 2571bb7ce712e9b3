//! For the old technique: reading a page without the swap cache from a synchronous device, and separate
//! lookup and removal of shadows.

use super::SwapCache;
use crate::held::{look_at, with_cluster};
use crate::shadow::Shadow;
use crate::slot::SlotId;
use crate::word::Out;
use quire_arch::Platform;

impl<P: Platform> SwapCache<'_, P> {
    /// Begins to read the page of `slot`, bypassing the cache. False if the cache has it, another thread does
    /// the same, nothing names the slot, or it has no word of its own and there is no memory for one: never
    /// with the technique that bypasses, whose clusters have words for all slots. Until
    /// [`end_bypass`](Self::end_bypass) the slot is not freed, and no thread can insert a folio for it.
    pub fn try_begin_bypass(self, slot: SlotId) -> bool {
        let begun = with_cluster(self.devices, slot, |held, at| {
            let unit = held.guard.unit(at);
            let out = !unit.word.is_free() && !unit.word.is_cached() && !unit.word.is_busy();
            if !out || !held.guard.is_named(unit) || !held.own(at, at + 1) {
                return false;
            }
            let unit = held.guard.unit(at);
            held.guard.store(unit, unit.word.with_busy(true));
            true
        });
        begun.unwrap_or(false)
    }

    /// Ends what [`try_begin_bypass`](Self::try_begin_bypass) began. If nothing names the slot any more it is
    /// free.
    pub fn end_bypass(self, slot: SlotId) {
        with_cluster(self.devices, slot, |held, at| {
            let unit = held.guard.unit(at);
            debug_assert!(unit.word.is_busy());
            held.guard.store(unit, unit.word.with_busy(false));
            held.free_if_unused(at);
        });
    }

    /// The slot's shadow, if its page is swapped out.
    pub fn shadow_of(self, slot: SlotId) -> Option<Shadow> {
        look_at(self.devices, &self.devices.platform().pin(), slot, |state, at| state.word_of(at).shadow())
            .flatten()
    }

    /// Clears the slot's shadow, if it has its own word. The slot is about to be replaced or freed, which
    /// would drop the shadow too.
    pub fn clear_shadow(self, slot: SlotId) {
        with_cluster(self.devices, slot, |held, at| {
            let unit = held.guard.unit(at);
            if unit.pages == 1
                && let Some(shadow) = unit.word.shadow()
            {
                let busy = unit.word.is_busy();
                held.guard.store(unit, unit.word.left(Out::Bare(shadow.memcg())).with_busy(busy));
            }
        });
    }
}

//! Reading a page past the cache: what the techniques before this one do where a device answers at once.

use crate::Swap;
use crate::slot::SlotId;
use quire_arch::Platform;

impl<P: Platform> Swap<P> {
    /// Begins to read the page of `slot` past the cache. False if the cache has it, somebody else does the same, nothing
    /// names the slot, or its word cannot be told from others'. Until [`end_bypass`](Self::end_bypass) the slot is not freed,
    /// and nobody can insert a folio for it.
    pub fn try_begin_bypass(&self, slot: SlotId) -> bool {
        let begun = self.with_cluster(slot, |held, at| {
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

    /// Ends what [`try_begin_bypass`](Self::try_begin_bypass) began. If nothing names the slot any more it is free.
    pub fn end_bypass(&self, slot: SlotId) {
        self.with_cluster(slot, |held, at| {
            let unit = held.guard.unit(at);
            debug_assert!(unit.word.is_busy());
            held.guard.store(unit, unit.word.with_busy(false));
            held.free_if_unused(at);
        });
    }
}

//! Unmapping swap entries.
//!
//! The MMU does not write to them, so they change by stores under the lock of their table.

use super::Unmapper;
use crate::table::{LockedTable, Tables};
use quire_arch::{Platform, SwapEntry};
use quire_swap::SlotId;
use quire_sync::atomic::raw::Ordering;

impl<P: Platform> Unmapper<'_, P> {
    /// Empties the run that starts with `first` at `index`, and returns its length.
    pub fn zap_swapped(
        &mut self,
        locked: &LockedTable<'_, P>,
        (index, end): (usize, usize),
        first: SwapEntry,
    ) -> usize {
        let pages = Tables::<P>::swap_run(locked.entries, (index, end), first);
        for entry in &locked.entries[index..index + pages] {
            entry.store(0, Ordering::Relaxed);
        }
        locked.count_taken(pages);
        self.drop_swapped(first, pages);
        pages
    }

    /// `pages` entries that named slots from `first` on are gone.
    pub(super) fn drop_swapped(&mut self, first: SwapEntry, pages: usize) {
        let tables = self.gather.tables;
        let slot = SlotId::of(first);
        if tables.memory().swap().counts().drop_counts(slot, pages as u32).cached_only {
            self.gather.add_cached(slot, pages as u32);
        }
        tables.space().residency.swap_gone(pages as u64);
    }
}

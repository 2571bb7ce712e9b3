//! `memory.swap.high`: how long a program that charges is held up while its memcg, or one above it, has more
//! swap.

use super::{BATCH, MemcgCharges};
use crate::counters::MemcgCounters;
use crate::event::MemcgEvent;
use crate::id::MemcgId;
use quire_arch::Platform;
use quire_sync::atomic::Ordering;

const SECOND: u128 = 1_000_000_000;
/// Binary places of the part of the limit by which it is exceeded.
const PRECISION: u32 = 20;

/// Linux's `calculate_high_delay`, in nanoseconds: it grows with the square of what is too much, as a part of
/// the limit, and with the pages that were charged; 2 s at most. None if it is not worth it.
fn delay(over: u64, high: u64, charged: u64) -> u64 {
    let part = (u128::from(over) << PRECISION) / u128::from(high.max(1));
    // A fault beyond this takes the longest time in any case.
    let part = part.min(1 << 32);
    let for_batch = (part * part * SECOND) >> (PRECISION + 14);
    let ns = for_batch * u128::from(charged.min(1 << 20)) / u128::from(BATCH);
    if ns <= SECOND / 100 { 0 } else { ns.min(2 * SECOND) as u64 }
}

impl<P: Platform> MemcgCharges<'_, P> {
    /// How long a program of the memcg, which begins a fault, has to wait, in nanoseconds, for what was
    /// charged above `memory.swap.high` since this was last called. Counts the event.
    #[inline]
    pub fn swap_delay(self, id: MemcgId) -> u64 {
        match self.tree.table.get(id) {
            Some(memcg) if memcg.over_swap_high.load(Ordering::Relaxed) != 0 => self.take_swap_delay(id),
            _ => 0,
        }
    }

    /// `pages` are charged to the memcg.
    pub(super) fn note_swap_high(self, id: MemcgId, pages: u64) {
        let is_over =
            self.tree.up(id).any(|memcg| memcg.swap.usage() > memcg.swap_high.load(Ordering::Relaxed));
        if is_over && let Some(memcg) = self.tree.table.get(id) {
            memcg.over_swap_high.fetch_add(pages, Ordering::Relaxed);
        }
    }

    #[cold]
    fn take_swap_delay(self, id: MemcgId) -> u64 {
        let charged =
            self.tree.table.get(id).map_or(0, |memcg| memcg.over_swap_high.swap(0, Ordering::Relaxed));
        let mut longest = 0;
        for memcg in self.tree.up(id) {
            let high = memcg.swap_high.load(Ordering::Relaxed);
            let over = memcg.swap.usage().saturating_sub(high);
            if over > 0 && charged > 0 {
                MemcgCounters::new(self.tree).count(memcg.id, MemcgEvent::SwapHigh, 1);
                longest = longest.max(delay(over, high, charged));
            }
        }
        longest
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_delay_is_linuxs() {
        // A tenth too much: 0.64 s for a batch, and so on with the square.
        for (over, high, charged, milliseconds) in [
            (100, 1000, 64, 639),
            (50, 1000, 64, 159),
            (50, 1000, 128, 319),
            (10, 1000, 64, 0),
            (10, 1000, 512, 51),
            (500, 1000, 64, 2000),
            (1, 0, 64, 2000),
            (u64::MAX, 1, u64::MAX, 2000),
        ] {
            assert_eq!(delay(over, high, charged) / 1_000_000, milliseconds, "{over} over {high}, {charged}");
        }
    }
}

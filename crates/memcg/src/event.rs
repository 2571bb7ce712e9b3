//! Events of memcgs, as `memory.events` and `memory.swap.events` tell them.

use crate::Memcgs;
use crate::id::MemcgId;
use quire_arch::Platform;
use quire_sync::atomic::Ordering;

/// Something rare that happened to a memcg.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(usize)]
pub enum MemcgEvent {
    /// Reclaim took from it though it was below `memory.low`.
    Low,
    /// It was above `memory.high`, and reclaimed for that.
    High,
    /// A charge would have gone past `memory.max`.
    Max,
    /// It was at `memory.max`, and reclaim found nothing.
    Oom,
    /// A process was killed for that.
    OomKill,
    /// All processes of it were killed together.
    OomGroupKill,
    /// Swap in use would have gone past `memory.swap.max`.
    SwapMax,
    /// No swap could be had, for that or because no device has room.
    SwapFail,
}

impl MemcgEvent {
    /// How many there are.
    pub const COUNT: usize = Self::SwapFail as usize + 1;
}

impl<P: Platform> Memcgs<P> {
    /// Counts `count` events at the memcg.
    pub fn count(&self, id: MemcgId, event: MemcgEvent, count: u64) {
        if id.is_root() {
            return;
        }
        if let Some(memcg) = self.table.get(id) {
            memcg.events[event as usize].fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Events at the memcg itself.
    pub fn local_events(&self, id: MemcgId, event: MemcgEvent) -> u64 {
        self.table.get(id).map_or(0, |memcg| memcg.events[event as usize].load(Ordering::Relaxed))
    }

    /// Events at the memcg and at all memcgs below it that there are or were.
    pub fn events(&self, id: MemcgId, event: MemcgEvent) -> u64 {
        let mut sum = 0;
        self.for_each_in_subtree(id, |below| {
            if let Some(memcg) = self.table.get(below) {
                sum += memcg.events[event as usize].load(Ordering::Relaxed)
                    + memcg.events_of_gone[event as usize].load(Ordering::Relaxed);
            }
        });
        sum
    }
}

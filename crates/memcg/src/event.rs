//! Events of memcgs, as in `memory.events` and `memory.swap.events`.

use crate::Memcgs;
use crate::id::MemcgId;
use quire_arch::Platform;
use quire_sync::atomic::Ordering;

/// Something rare that happened to a memcg.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(usize)]
pub enum MemcgEvent {
    /// It was reclaimed from while below `memory.low`.
    Low,
    /// It was above `memory.high`, and was reclaimed from.
    High,
    /// A charge would have exceeded `memory.max`.
    Max,
    /// It was at `memory.max`, and reclaim freed nothing.
    Oom,
    /// A process was OOM-killed.
    OomKill,
    /// All its processes were OOM-killed together.
    OomGroupKill,
    /// A swap charge would have exceeded `memory.swap.max`.
    SwapMax,
    /// A swap allocation failed, at that limit or because no device has free slots.
    SwapFail,
}

impl MemcgEvent {
    /// How many there are.
    pub const COUNT: usize = Self::SwapFail as usize + 1;
}

impl<P: Platform> Memcgs<P> {
    /// Counts `count` events at the memcg, and for all above it.
    pub fn count(&self, id: MemcgId, event: MemcgEvent, count: u64) {
        if id.is_root() {
            return;
        }
        if let Some(memcg) = self.table.get(id) {
            memcg.local_events[event as usize].fetch_add(count, Ordering::Relaxed);
        }
        for memcg in self.up_to_root(id) {
            memcg.events[event as usize].fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Events at the memcg itself.
    pub fn local_events(&self, id: MemcgId, event: MemcgEvent) -> u64 {
        self.table.get(id).map_or(0, |memcg| memcg.local_events[event as usize].load(Ordering::Relaxed))
    }

    /// Events at the memcg and at all its present and former descendants.
    pub fn events(&self, id: MemcgId, event: MemcgEvent) -> u64 {
        self.table.get(id).map_or(0, |memcg| memcg.events[event as usize].load(Ordering::Relaxed))
    }
}

//! What is counted for each memcg: events, and the statistics of `memory.stat`.

use crate::event::MemcgEvent;
use crate::id::MemcgId;
use crate::memcg::Memcg;
use crate::stat::{MemcgStat, MemcgStats};
use crate::tree::MemcgTree;
use quire_arch::{Pin, Platform};
use quire_frame::VmEvent;
use quire_sync::atomic::Ordering;

quire_arch::part_of! {
    /// Events and statistics of memcgs.
    pub struct MemcgCounters { pub(crate) tree: MemcgTree }
}

impl<P: Platform> MemcgCounters<'_, P> {
    /// Counts `count` events at the memcg, and for all above it.
    pub fn count(self, id: MemcgId, event: MemcgEvent, count: u64) {
        if id.is_root() {
            return;
        }
        if let Some(memcg) = self.tree.table.get(id) {
            memcg.local_events[event as usize].fetch_add(count, Ordering::Relaxed);
        }
        for memcg in self.tree.up_to_root(id) {
            memcg.events[event as usize].fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Events at the memcg itself.
    pub fn local_events(self, id: MemcgId, event: MemcgEvent) -> u64 {
        self.tree.table.get(id).map_or(0, |memcg| memcg.local_events[event as usize].load(Ordering::Relaxed))
    }

    /// Events at the memcg and at all its present and former descendants.
    pub fn events(self, id: MemcgId, event: MemcgEvent) -> u64 {
        self.tree.table.get(id).map_or(0, |memcg| memcg.events[event as usize].load(Ordering::Relaxed))
    }

    /// Counts `change` for the memcg, which a space or a charge of the caller keeps. The change is held back
    /// on the caller's CPU until it counts for another memcg. For the root only what the machine does not
    /// count in the same way is counted.
    #[inline]
    pub fn add_stat(self, pin: &Pin<'_, P>, id: MemcgId, stat: MemcgStat, change: i64) {
        if id.is_root() && !stat.is_by_cause() {
            return;
        }
        let cell = &self.tree.cpus.mine(pin).stats[stat as usize];
        if cell.try_add(id, change, 1 << 32) {
            return;
        }
        self.evict_stat(pin, id, stat, change);
    }

    /// The memcg whose amount has to make room is kept only by this epoch section (see `sweep`).
    #[cold]
    fn evict_stat(self, pin: &Pin<'_, P>, id: MemcgId, stat: MemcgStat, change: i64) {
        let _section = self.tree.frames.epoch().enter(pin);
        if let Some((whose, amount)) = self.tree.cpus.mine(pin).stats[stat as usize].add(id, change) {
            self.put_stat(whose, stat, amount);
        }
    }

    /// Adds an amount to the memcg and all above it.
    pub(crate) fn put_stat(self, id: MemcgId, stat: MemcgStat, amount: i64) {
        for memcg in self.tree.up_to_root(id) {
            memcg.stats[stat as usize].fetch_add(amount, Ordering::Relaxed);
        }
    }

    /// Flushes what CPUs hold back for the memcgs that are `wanted`, and returns whether there was anything.
    /// There may be many CPUs, so each is looked at under a pin of its own.
    pub(crate) fn drain_stats_of(self, wanted: impl Fn(MemcgId) -> bool) -> bool {
        let mut any = false;
        for cells in self.tree.cpus.iter() {
            let pin = self.tree.frames.platform().pin();
            let _section = self.tree.frames.epoch().enter(&pin);
            for &stat in MemcgStat::ALL {
                if let Some((whose, amount)) = cells.stats[stat as usize].drain(&wanted) {
                    self.put_stat(whose, stat, amount);
                    any = true;
                }
            }
        }
        any
    }

    /// The counts of the memcg itself. On a quiet machine.
    pub(crate) fn own_stat(self, id: MemcgId, stat: MemcgStat) -> i64 {
        let kept = self.own(id, |memcg| memcg.stats[stat as usize].load(Ordering::Relaxed));
        let held_back = self.tree.cpus.iter().map(|cells| cells.stats[stat as usize].get());
        kept + held_back.filter(|&(whose, _)| whose == id).map(|(_, amount)| amount).sum::<i64>()
    }

    /// The counts of the memcg and of all its present and former descendants. On a busy machine not a
    /// consistent snapshot; but what only rises is never read lower than before. Of what the root's own
    /// programs did only scanned and freed pages are counted.
    pub fn stats(self, id: MemcgId) -> MemcgStats {
        // What is held back is added, not summed up beside it: another thread may be just moving it.
        self.drain_stats_of(|whose| self.tree.is_below(whose, id));
        let stat = |nth: usize| self.tree.table.get(id).map(|memcg| memcg.stats[nth].load(Ordering::Relaxed));
        core::array::from_fn(|nth| stat(nth).unwrap_or(0))
    }

    /// As [`stats`](Self::stats) for the whole machine: the root with its own programs.
    pub(crate) fn machine_stats(self) -> MemcgStats {
        let stats = self.stats(MemcgId::ROOT);
        let events = self.tree.frames.events();
        let counted = |stat: MemcgStat| VmEvent::ALL.iter().find(|event| event.name() == stat.name());
        core::array::from_fn(|nth| match counted(MemcgStat::ALL[nth]) {
            Some(&event) if !MemcgStat::ALL[nth].is_by_cause() => events.sum(event) as i64,
            _ => stats[nth],
        })
    }

    /// What `count` is at the memcg and at none of its children. On a quiet machine.
    pub(crate) fn own(self, id: MemcgId, count: impl Fn(&Memcg<P>) -> i64) -> i64 {
        let mut own = self.tree.table.get(id).map_or(0, &count);
        self.tree.for_each_in_subtree(id, |below| {
            if self.tree.parent(below) == Some(id) {
                own -= self.tree.table.get(below).map_or(0, &count);
            }
        });
        own
    }
}

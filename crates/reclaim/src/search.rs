//! One reclaim scan: its cause, its target, and how it is counted.

use crate::shrink::Pressure;
use quire_arch::Platform;
use quire_frame::VmEvent;
use quire_memcg::{LruList, MemcgId, MemcgStat};
use quire_space::Spaces;

/// The cause of a scan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    /// Direct reclaim: memory is short, and an allocation waits.
    Direct,
    /// Background reclaim (kswapd).
    Background,
    /// Proactive reclaim: a write to `memory.reclaim`.
    Proactive,
}

/// A scan of the lists of a memcg and its descendants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    pub(crate) cause: Cause,
    pub(crate) root: MemcgId,
    pub(crate) pressure: Pressure,
    /// `memory.low` does not protect: nothing could be reclaimed beside it.
    pub(crate) breaks_low: bool,
}

impl Search {
    /// Below `root`, for `cause`, with the usual care.
    pub(crate) fn new(root: MemcgId, cause: Cause) -> Self {
        Self { cause, root, pressure: Pressure::Usual, breaks_low: false }
    }

    /// The same, also of memcgs below their `memory.low`.
    pub(crate) fn breaking_low(self) -> Self {
        Self { breaks_low: true, ..self }
    }

    /// The same, after a scan that freed nothing. Background reclaim does not wait.
    pub(crate) fn starved(self) -> Self {
        let waits = self.cause != Cause::Background;
        Self { pressure: if waits { Pressure::Starved } else { self.pressure }, ..self }
    }

    /// Whether the machine is short of memory, and not a memcg. A write to `memory.reclaim` is always for a
    /// memcg, also for the root.
    pub(crate) fn is_global(&self) -> bool {
        self.root == MemcgId::ROOT && self.cause != Cause::Proactive
    }

    /// Counts pages of a memcg's list that were scanned, and those of them that were freed. As in Linux the
    /// machine's counters by cause include global reclaim only, those by page type all reclaim.
    pub(crate) fn count<P: Platform>(
        &self,
        spaces: &Spaces<P>,
        (memcg, list): (MemcgId, LruList),
        scanned: u64,
        freed: u64,
    ) {
        let (events, stats) = match self.cause {
            Cause::Direct => (
                [VmEvent::PgscanDirect, VmEvent::PgstealDirect],
                [MemcgStat::PgscanDirect, MemcgStat::PgstealDirect],
            ),
            Cause::Background => (
                [VmEvent::PgscanKswapd, VmEvent::PgstealKswapd],
                [MemcgStat::PgscanKswapd, MemcgStat::PgstealKswapd],
            ),
            Cause::Proactive => (
                [VmEvent::PgscanProactive, VmEvent::PgstealProactive],
                [MemcgStat::PgscanProactive, MemcgStat::PgstealProactive],
            ),
        };
        let of_sort = match list {
            LruList::InactiveFile | LruList::ActiveFile => [VmEvent::PgscanFile, VmEvent::PgstealFile],
            _ => [VmEvent::PgscanAnon, VmEvent::PgstealAnon],
        };
        let pin = spaces.platform().pin();
        let (machine, memcgs) = (spaces.frames().events(), spaces.memcgs());
        for (nth, pages) in [scanned, freed].into_iter().enumerate() {
            if self.is_global() {
                machine.add(&pin, events[nth], pages);
            }
            machine.add(&pin, of_sort[nth], pages);
            memcgs.counters().add_stat(&pin, memcg, stats[nth], pages as i64);
        }
    }

    /// Counts pages of a memcg's active list that were scanned; the machine's as in [`count`](Self::count).
    pub(crate) fn count_refill<P: Platform>(&self, spaces: &Spaces<P>, memcg: MemcgId, scanned: u64) {
        let pin = spaces.platform().pin();
        if self.is_global() {
            spaces.frames().events().add(&pin, VmEvent::Pgrefill, scanned);
        }
        spaces.memcgs().counters().add_stat(&pin, memcg, MemcgStat::Pgrefill, scanned as i64);
    }
}

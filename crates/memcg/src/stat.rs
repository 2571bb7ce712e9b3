//! Statistics of each memcg.

use crate::Memcgs;
use crate::id::MemcgId;
use quire_arch::{Pin, Platform, named_enum};
use quire_frame::VmEvent;
use quire_sync::atomic::Ordering;

named_enum! {
    /// A counter of `memory.stat`, by its name there.
    #[repr(usize)]
    pub enum MemcgStat {
        /// Pages of files that are charged; in bytes in the file.
        File = "file",
        /// Refaults of anonymous pages.
        WorkingsetRefaultAnon = "workingset_refault_anon",
        /// Of these, pages activated because their refault distance was short.
        WorkingsetActivateAnon = "workingset_activate_anon",
        /// Of these, anonymous pages that were active before they were evicted.
        WorkingsetRestoreAnon = "workingset_restore_anon",
        /// Pages read from swap devices.
        Pswpin = "pswpin",
        /// Pages written to swap devices.
        Pswpout = "pswpout",
        /// Pages scanned by kswapd.
        PgscanKswapd = "pgscan_kswapd",
        /// Pages scanned by direct reclaim.
        PgscanDirect = "pgscan_direct",
        /// Pages scanned by proactive reclaim.
        PgscanProactive = "pgscan_proactive",
        /// Pages reclaimed by kswapd.
        PgstealKswapd = "pgsteal_kswapd",
        /// Pages reclaimed by direct reclaim.
        PgstealDirect = "pgsteal_direct",
        /// Pages reclaimed by proactive reclaim.
        PgstealProactive = "pgsteal_proactive",
        /// Page faults.
        Pgfault = "pgfault",
        /// Major faults: page faults that had to wait for a device.
        Pgmajfault = "pgmajfault",
        /// Pages scanned on active lists.
        Pgrefill = "pgrefill",
        /// Pages activated.
        Pgactivate = "pgactivate",
        /// Pages deactivated.
        Pgdeactivate = "pgdeactivate",
        /// Pages marked by MADV_FREE.
        Pglazyfree = "pglazyfree",
        /// Of these, pages that were freed.
        Pglazyfreed = "pglazyfreed",
        /// Zero-filled pages swapped in without device I/O.
        SwpinZero = "swpin_zero",
        /// Zero-filled pages swapped out without device I/O.
        SwpoutZero = "swpout_zero",
        /// Pages loaded from a compressed cache.
        Zswpin = "zswpin",
        /// Pages stored in a compressed cache.
        Zswpout = "zswpout",
        /// Faults that mapped a new PMD-sized folio.
        ThpFaultAlloc = "thp_fault_alloc",
        /// PMD-sized folios allocated for a collapse.
        ThpCollapseAlloc = "thp_collapse_alloc",
        /// PMD-sized folios swapped out whole.
        ThpSwpout = "thp_swpout",
        /// PMD-sized folios that had to be split for swap-out.
        ThpSwpoutFallback = "thp_swpout_fallback",
    }
}

impl MemcgStat {
    /// Number of counters.
    pub const COUNT: usize = Self::ALL.len();

    /// Whether it counts what reclaim does. The machine's counters of the same names are of global reclaim
    /// only; a memcg's are of all, as in Linux.
    const fn is_by_cause(self) -> bool {
        matches!(
            self,
            Self::PgscanKswapd
                | Self::PgscanDirect
                | Self::PgscanProactive
                | Self::PgstealKswapd
                | Self::PgstealDirect
                | Self::PgstealProactive
                | Self::Pgrefill
        )
    }
}

/// All counters of a memcg, or of a memcg and its descendants.
pub type MemcgStats = [i64; MemcgStat::COUNT];

impl<P: Platform> Memcgs<P> {
    /// Counts `change` for the memcg, which a space or a charge of the caller keeps. The change is held back
    /// on the caller's CPU until it counts for another memcg. For the root only what the machine does not
    /// count in the same way is counted.
    #[inline]
    pub fn add_stat(&self, pin: &Pin<'_, P>, id: MemcgId, stat: MemcgStat, change: i64) {
        if id.is_root() && !stat.is_by_cause() {
            return;
        }
        let cell = &self.cpus.mine(pin).stats[stat as usize];
        if cell.try_add(id, change, 1 << 32) {
            return;
        }
        self.evict_stat(pin, id, stat, change);
    }

    /// The memcg whose amount has to make room is kept only by this epoch section (see `sweep`).
    #[cold]
    fn evict_stat(&self, pin: &Pin<'_, P>, id: MemcgId, stat: MemcgStat, change: i64) {
        let _section = self.frames.epoch().enter(pin);
        if let Some((whose, amount)) = self.cpus.mine(pin).stats[stat as usize].add(id, change) {
            self.put_stat(whose, stat, amount);
        }
    }

    /// Adds an amount to the memcg and all above it.
    pub(crate) fn put_stat(&self, id: MemcgId, stat: MemcgStat, amount: i64) {
        for memcg in self.up_to_root(id) {
            memcg.stats[stat as usize].fetch_add(amount, Ordering::Relaxed);
        }
    }

    /// Flushes what CPUs hold back for the memcgs that are `wanted`, and returns whether there was anything.
    /// There may be many CPUs, so each is looked at under a pin of its own.
    pub(crate) fn drain_stats_of(&self, wanted: impl Fn(MemcgId) -> bool) -> bool {
        let mut any = false;
        for cells in self.cpus.iter() {
            let pin = self.frames.platform().pin();
            let _section = self.frames.epoch().enter(&pin);
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
    pub(crate) fn own_stat(&self, id: MemcgId, stat: MemcgStat) -> i64 {
        let kept = self.own(id, |memcg| memcg.stats[stat as usize].load(Ordering::Relaxed));
        let held_back = self.cpus.iter().map(|cells| cells.stats[stat as usize].get());
        kept + held_back.filter(|&(whose, _)| whose == id).map(|(_, amount)| amount).sum::<i64>()
    }

    /// The counts of the memcg and of all its present and former descendants. On a busy machine not a
    /// consistent snapshot; but what only rises is never read lower than before. Of what the root's own
    /// programs did only scanned and freed pages are counted.
    pub fn stats(&self, id: MemcgId) -> MemcgStats {
        // What is held back is added, not summed up beside it: another thread may be just moving it.
        self.drain_stats_of(|whose| self.is_below(whose, id));
        let stat = |nth: usize| self.table.get(id).map(|memcg| memcg.stats[nth].load(Ordering::Relaxed));
        core::array::from_fn(|nth| stat(nth).unwrap_or(0))
    }

    /// As [`stats`](Self::stats) for the whole machine: the root with its own programs.
    pub(crate) fn machine_stats(&self) -> MemcgStats {
        let stats = self.stats(MemcgId::ROOT);
        let events = self.frames.events();
        let counted = |stat: MemcgStat| VmEvent::ALL.iter().find(|event| event.name() == stat.name());
        core::array::from_fn(|nth| match counted(MemcgStat::ALL[nth]) {
            Some(&event) if !MemcgStat::ALL[nth].is_by_cause() => events.sum(event) as i64,
            _ => stats[nth],
        })
    }
}

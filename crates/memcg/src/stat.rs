//! What is counted for each memcg.

use crate::Memcgs;
use crate::id::MemcgId;
use quire_arch::{Pin, Platform, named_enum};
use quire_sync::atomic::Ordering;

named_enum! {
    /// A number of `memory.stat`, by its name there.
    #[repr(usize)]
    pub enum MemcgStat {
        /// Pages of files that are charged; in bytes in the file.
        File = "file",
        /// Anonymous pages that were paged in again.
        WorkingsetRefaultAnon = "workingset_refault_anon",
        /// Of the anonymous ones, those that were out for so short a time that they are active at once.
        WorkingsetActivateAnon = "workingset_activate_anon",
        /// Of these, anonymous ones that had been active before they were paged out.
        WorkingsetRestoreAnon = "workingset_restore_anon",
        /// Pages read from swap devices.
        Pswpin = "pswpin",
        /// Pages written to swap devices.
        Pswpout = "pswpout",
        /// Pages that the background reclaim looked at.
        PgscanKswapd = "pgscan_kswapd",
        /// Pages that programs looked at which wanted memory.
        PgscanDirect = "pgscan_direct",
        /// Pages that were scanned because reclaim was asked for.
        PgscanProactive = "pgscan_proactive",
        /// Of the background's, pages that were got.
        PgstealKswapd = "pgsteal_kswapd",
        /// Of the programs', pages that were got.
        PgstealDirect = "pgsteal_direct",
        /// Of those, pages that were reclaimed.
        PgstealProactive = "pgsteal_proactive",
        /// Page faults.
        Pgfault = "pgfault",
        /// Page faults that had to wait for a device.
        Pgmajfault = "pgmajfault",
        /// Pages on active lists that were looked at.
        Pgrefill = "pgrefill",
        /// Pages that became active.
        Pgactivate = "pgactivate",
        /// Pages that became inactive.
        Pgdeactivate = "pgdeactivate",
        /// Pages whose contents are not needed.
        Pglazyfree = "pglazyfree",
        /// Of these, pages that were taken.
        Pglazyfreed = "pglazyfreed",
        /// Pages of zeros that came back without a device.
        SwpinZero = "swpin_zero",
        /// Pages of zeros that were paged out without a device.
        SwpoutZero = "swpout_zero",
        /// Pages that came back from a compressed cache.
        Zswpin = "zswpin",
        /// Pages that went to a compressed cache.
        Zswpout = "zswpout",
        /// Faults that mapped a new folio as large as a PMD entry's.
        ThpFaultAlloc = "thp_fault_alloc",
        /// Such folios that ranges were collapsed into.
        ThpCollapseAlloc = "thp_collapse_alloc",
        /// Such folios that were paged out whole.
        ThpSwpout = "thp_swpout",
        /// Such folios that had to be split first.
        ThpSwpoutFallback = "thp_swpout_fallback",
    }
}

impl MemcgStat {
    /// How many numbers there are.
    pub const COUNT: usize = Self::ALL.len();
}

/// All numbers of a memcg, or of a memcg and what is below it.
pub type MemcgStats = [i64; MemcgStat::COUNT];

impl<P: Platform> Memcgs<P> {
    /// Counts `change` for the memcg, which a space or a charge of the caller keeps. Kept back on the
    /// caller's CPU until it counts for another memcg.
    #[inline]
    pub fn add_stat(&self, pin: &Pin<'_, P>, id: MemcgId, stat: MemcgStat, change: i64) {
        if id.is_root() {
            return;
        }
        let cell = &self.cpus.mine(pin).stats[stat as usize];
        if cell.try_add(id, change, 1 << 32) {
            return;
        }
        self.evict_stat(pin, id, stat, change);
    }

    /// Nothing keeps the memcg whose number has to make room, but that it goes only after this epoch (see
    /// `sweep`).
    #[cold]
    fn evict_stat(&self, pin: &Pin<'_, P>, id: MemcgId, stat: MemcgStat, change: i64) {
        let _section = self.frames.epoch().enter(pin);
        if let Some((whose, amount)) = self.cpus.mine(pin).stats[stat as usize].add(id, change) {
            self.put_stat(whose, stat, amount);
        }
    }

    pub(crate) fn put_stat(&self, id: MemcgId, stat: MemcgStat, amount: i64) {
        if let Some(memcg) = self.table.get(id) {
            memcg.stats[stat as usize].fetch_add(amount, Ordering::Relaxed);
        }
    }

    /// Puts what CPUs keep back for the memcg where it belongs, and tells whether there was anything.
    pub(crate) fn drain_stats_of(&self, id: MemcgId) -> bool {
        let mut any = false;
        for cells in self.cpus.iter() {
            for &stat in MemcgStat::ALL {
                if let Some((_, amount)) = cells.stats[stat as usize].drain(|whose| whose == id) {
                    self.put_stat(id, stat, amount);
                    any = true;
                }
            }
        }
        any
    }

    /// What was counted for the memcg itself.
    pub(crate) fn own_stat(&self, id: MemcgId, stat: MemcgStat) -> i64 {
        let kept = self.table.get(id).map_or(0, |memcg| memcg.stats[stat as usize].load(Ordering::Relaxed));
        let held_back = self.cpus.iter().map(|cells| cells.stats[stat as usize].get());
        kept + held_back.filter(|&(whose, _)| whose == id).map(|(_, amount)| amount).sum::<i64>()
    }

    /// What was counted for the memcg, and for all memcgs below it that there are or were. On a busy machine
    /// a moment's mixture.
    pub fn stats(&self, id: MemcgId) -> MemcgStats {
        let mut sums = [0; MemcgStat::COUNT];
        self.for_each_in_subtree(id, |below| {
            if let Some(memcg) = self.table.get(below) {
                for (sum, stat) in sums.iter_mut().zip(&memcg.stats) {
                    *sum += stat.load(Ordering::Relaxed);
                }
            }
        });
        for cells in self.cpus.iter() {
            for (sum, cell) in sums.iter_mut().zip(&cells.stats) {
                let (whose, amount) = cell.get();
                if amount != 0 && self.is_below(whose, id) {
                    *sum += amount;
                }
            }
        }
        sums
    }
}

//! Statistics of each memcg.

use quire_arch::named_enum;

named_enum! {
    /// A counter of `memory.stat`, by its name there.
    #[repr(usize)]
    pub enum MemcgStat {
        /// Pages of files that are charged; in bytes in the file.
        File = "file",
        /// Of these, pages of shared memory.
        Shmem = "shmem",
        /// Bytes of compressed pages in compressed caches.
        Zswap = "zswap",
        /// These pages; in bytes in the file.
        Zswapped = "zswapped",
        /// Of the pages of files, those of folios of the PMD's order, without shared memory; in bytes in the
        /// file.
        FileThp = "file_thp",
        /// The same of shared memory.
        ShmemThp = "shmem_thp",
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
        /// Pages that a compressed cache wrote to its device.
        Zswpwb = "zswpwb",
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
    pub(crate) const fn is_by_cause(self) -> bool {
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

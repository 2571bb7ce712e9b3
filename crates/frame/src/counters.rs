//! Event counters, one set per CPU.

use crate::folio_counters::{FolioCounter, FolioSet};
use crate::kind::Kind;
use crate::zone_id::ZoneKind;
// Counts order nothing, so no model has to see them.
use core::sync::atomic::{AtomicU64, Ordering};
use quire_arch::{Order, Pin, Platform, named_enum};
use quire_sync::PerCpu;

named_enum! {
    /// What is counted. Names are those of Linux's `/proc/vmstat` where Linux counts the same thing; the
    /// others are marked.
    #[repr(usize)]
    pub enum VmEvent {
        /// Refaults: pages swapped in whose slot still had a shadow.
        WorkingsetRefaultAnon = "workingset_refault_anon",
        /// Of these, pages activated because their refault distance was short.
        WorkingsetActivateAnon = "workingset_activate_anon",
        /// Of these, pages that were active before they were evicted.
        WorkingsetRestoreAnon = "workingset_restore_anon",
        /// Pages swapped in from a device.
        Pswpin = "pswpin",
        /// Pages swapped out to a device.
        Pswpout = "pswpout",
        /// Frames allocated from [`ZoneKind::Dma32`].
        PgallocDma32 = "pgalloc_dma32",
        /// Frames allocated from [`ZoneKind::Normal`].
        PgallocNormal = "pgalloc_normal",
        /// Stalled allocations with [`ZoneKind::Dma32`] as their highest zone: none was free, and what holds
        /// free memory back had to be drained.
        AllocstallDma32 = "allocstall_dma32",
        /// The same with [`ZoneKind::Normal`] as their highest zone.
        AllocstallNormal = "allocstall_normal",
        /// Frames freed.
        Pgfree = "pgfree",
        /// Pages moved to an active list.
        Pgactivate = "pgactivate",
        /// Pages moved from an active to an inactive list.
        Pgdeactivate = "pgdeactivate",
        /// Pages marked by MADV_FREE.
        Pglazyfree = "pglazyfree",
        /// Page faults.
        Pgfault = "pgfault",
        /// Major faults: page faults that had to wait for a device.
        Pgmajfault = "pgmajfault",
        /// Pages marked by MADV_FREE that were freed before they were written to again.
        Pglazyfreed = "pglazyfreed",
        /// Pages scanned on active lists.
        Pgrefill = "pgrefill",
        /// Write faults whose page was reused, since it had no other user.
        Pgreuse = "pgreuse",
        /// Pages freed by kswapd. This counter and the others of scanned and freed pages exclude
        /// `MADV_PAGEOUT`.
        PgstealKswapd = "pgsteal_kswapd",
        /// Pages freed by direct reclaim.
        PgstealDirect = "pgsteal_direct",
        /// Pages freed by proactive reclaim.
        PgstealProactive = "pgsteal_proactive",
        /// Pages scanned by kswapd.
        PgscanKswapd = "pgscan_kswapd",
        /// Pages scanned by direct reclaim.
        PgscanDirect = "pgscan_direct",
        /// Pages scanned by proactive reclaim.
        PgscanProactive = "pgscan_proactive",
        /// Anonymous pages scanned by reclaim. The counters by cause cover global reclaim only; this one and
        /// the next ones also cover memcg reclaim.
        PgscanAnon = "pgscan_anon",
        /// File pages scanned by reclaim, and pages marked by MADV_FREE, which are on the same lists.
        PgscanFile = "pgscan_file",
        /// Anonymous pages freed by reclaim.
        PgstealAnon = "pgsteal_anon",
        /// File pages, and pages marked by MADV_FREE, freed by reclaim.
        PgstealFile = "pgsteal_file",
        /// Programs killed by the OOM killer.
        OomKill = "oom_kill",
        /// Pages moved to the unevictable list.
        UnevictablePgsCulled = "unevictable_pgs_culled",
        /// Pages of shared memory that were looked at because they need not stay in memory any more.
        UnevictablePgsScanned = "unevictable_pgs_scanned",
        /// Pages moved from there to an evictable list.
        UnevictablePgsRescued = "unevictable_pgs_rescued",
        /// Pages of folios that were marked as mlocked.
        UnevictablePgsMlocked = "unevictable_pgs_mlocked",
        /// Pages of folios whose mlock mark was cleared.
        UnevictablePgsMunlocked = "unevictable_pgs_munlocked",
        /// Faults that mapped a new PMD-sized anonymous folio. [`VmEvents::count_folio`] counts this and the
        /// others that it knows.
        ThpFaultAlloc = "thp_fault_alloc",
        /// Faults that tried to allocate a PMD-sized folio and fell back.
        ThpFaultFallback = "thp_fault_fallback",
        /// Of these, faults whose memcg charge failed.
        ThpFaultFallbackCharge = "thp_fault_fallback_charge",
        /// PMD-sized folios allocated for a collapse.
        ThpCollapseAlloc = "thp_collapse_alloc",
        /// Collapses that could not allocate one.
        ThpCollapseAllocFailed = "thp_collapse_alloc_failed",
        /// PMD-sized folios of shared memory that came to exist.
        ThpFileAlloc = "thp_file_alloc",
        /// PMD-sized folios that there was none of for shared memory.
        ThpFileFallback = "thp_file_fallback",
        /// Of these, those whose memcg charge failed.
        ThpFileFallbackCharge = "thp_file_fallback_charge",
        /// PMD-sized folios of files that were mapped by a PMD entry.
        ThpFileMapped = "thp_file_mapped",
        /// PMD-sized folios that were split.
        ThpSplitPage = "thp_split_page",
        /// PMD-sized folios whose split failed because they were in use.
        ThpSplitPageFailed = "thp_split_page_failed",
        /// PMD-sized folios that were partially unmapped and queued for deferred split.
        ThpDeferredSplitPage = "thp_deferred_split_page",
        /// Of the split ones, those that were fully mapped but mostly zero-filled.
        ThpUnderusedSplitPage = "thp_underused_split_page",
        /// PMD mappings that were split into a page table.
        ThpSplitPmd = "thp_split_pmd",
        /// Huge zero pages allocated.
        ThpZeroPageAlloc = "thp_zero_page_alloc",
        /// Huge zero pages whose allocation failed.
        ThpZeroPageAllocFailed = "thp_zero_page_alloc_failed",
        /// PMD-sized folios swapped out whole.
        ThpSwpout = "thp_swpout",
        /// PMD-sized folios that had to be split for swap-out.
        ThpSwpoutFallback = "thp_swpout_fallback",
        /// Pages read by swap readahead.
        SwapRa = "swap_ra",
        /// Of these, pages that were used later.
        SwapRaHit = "swap_ra_hit",
        /// Zero-filled pages swapped in without device I/O.
        SwpinZero = "swpin_zero",
        /// Zero-filled pages swapped out without device I/O.
        SwpoutZero = "swpout_zero",
        /// Pages loaded from a compressed cache.
        Zswpin = "zswpin",
        /// Pages stored in a compressed cache.
        Zswpout = "zswpout",
        /// Of these, pages written back to the device behind it.
        Zswpwb = "zswpwb",
        /// TLB shootdowns sent to other CPUs; one each, whatever the number of CPUs.
        NrTlbRemoteFlush = "nr_tlb_remote_flush",
        /// Other CPUs that were interrupted for these.
        NrTlbRemoteFlushReceived = "nr_tlb_remote_flush_received",
        /// Flushes of a whole space on the initiating CPU.
        NrTlbLocalFlushAll = "nr_tlb_local_flush_all",
        /// Pages flushed one by one on the initiating CPU.
        NrTlbLocalFlushOne = "nr_tlb_local_flush_one",
        /// Nanoseconds that faults were stalled on memory: in reclaim, and swapping pages in. Not in Linux's
        /// vmstat: named after PSI, which has it there.
        MemstallNs = "memstall_ns",
        /// Allocations served from the CPU's lists. Not in Linux.
        PcpHit = "pcp_hit",
        /// Allocations that had to refill the CPU's lists first. Not in Linux.
        PcpMiss = "pcp_miss",
        /// Frames drained from a CPU's lists to their zone. Not in Linux.
        PcpDrain = "pcp_drain",
        /// Surplus frames that one CPU returned to the CPU whose list they came from. Not in Linux.
        PcpReturn = "pcp_return",
        /// Of these, frames that served an allocation directly. Not in Linux.
        PcpReturned = "pcp_returned",
        /// Blocks that were split to make smaller ones. Not in Linux.
        BuddySplit = "buddy_split",
        /// Pairs of buddies that were merged. Not in Linux.
        BuddyMerge = "buddy_merge",
        /// Blocks taken from another migratetype's lists. Not in Linux's vmstat: named after the tracepoint
        /// that reports it there.
        Extfrag = "page_alloc_extfrag",
        /// Page blocks whose migratetype changed for that. Not in Linux.
        PageblockSteal = "pageblock_steal",
        /// Frames freed while lock-free readers might still access them. Not in Linux.
        LimboRetired = "limbo_retired",
        /// Of these, frames whose readers had gone. Not in Linux.
        LimboFreed = "limbo_freed",
        /// Slab frames taken from the zones, in blocks. Not in Linux.
        SlabGrow = "slab_grow",
        /// Slab frames returned to the zones, in blocks. Not in Linux.
        SlabShrink = "slab_shrink",
        /// Decrements of a folio's map count: one for each run of its pages that is unmapped, except by
        /// reclaim. Not in Linux.
        RmapRemove = "rmap_remove",
        /// Page descriptors that unmapping wrote to: one for each removal, and one for each folio that it
        /// freed. Not in Linux.
        UnmapDescriptor = "unmap_descriptor",
        /// Page-table entries moved by `mremap`, including those that point to tables. Not in Linux.
        MremapEntry = "mremap_entry",
        /// Empty page tables freed although mappings still covered them. Not in Linux.
        EmptyTableFreed = "empty_table_freed",
        /// CPUs that a shootdown skipped because they do not run the space: such a CPU flushes when it
        /// switches back. Not in Linux.
        TlbCpuSpared = "tlb_cpu_spared",
        /// Switches to a space that had to flush first. Not in Linux's vmstat: named after a reason of the
        /// tracepoint `tlb_flush`.
        TlbFlushOnTaskSwitch = "tlb_flush_on_task_switch",
        /// Of [`NrTlbRemoteFlush`](Self::NrTlbRemoteFlush), those for an unmapping. Not in Linux.
        TlbShootdownUnmap = "tlb_shootdown_unmap",
        /// Other CPUs that were interrupted for these. Not in Linux.
        TlbInterruptUnmap = "tlb_interrupt_unmap",
        /// Of [`NrTlbRemoteFlush`](Self::NrTlbRemoteFlush), those for a change of permissions. Not in Linux.
        TlbShootdownProtect = "tlb_shootdown_protect",
        /// Other CPUs that were interrupted for these. Not in Linux.
        TlbInterruptProtect = "tlb_interrupt_protect",
        /// Of [`NrTlbRemoteFlush`](Self::NrTlbRemoteFlush), those for a move of pages. Not in Linux.
        TlbShootdownMove = "tlb_shootdown_move",
        /// Other CPUs that were interrupted for these. Not in Linux.
        TlbInterruptMove = "tlb_interrupt_move",
        /// Of [`NrTlbRemoteFlush`](Self::NrTlbRemoteFlush), those for discarded contents. Not in Linux.
        TlbShootdownDiscard = "tlb_shootdown_discard",
        /// Other CPUs that were interrupted for these. Not in Linux.
        TlbInterruptDiscard = "tlb_interrupt_discard",
        /// Of [`NrTlbRemoteFlush`](Self::NrTlbRemoteFlush), those for a fork's write protection. Not in
        /// Linux.
        TlbShootdownFork = "tlb_shootdown_fork",
        /// Other CPUs that were interrupted for these. Not in Linux.
        TlbInterruptFork = "tlb_interrupt_fork",
        /// Of [`NrTlbRemoteFlush`](Self::NrTlbRemoteFlush), those for a copy-on-write. Not in Linux.
        TlbShootdownCopyOnWrite = "tlb_shootdown_cow",
        /// Other CPUs that were interrupted for these. Not in Linux.
        TlbInterruptCopyOnWrite = "tlb_interrupt_cow",
        /// Of [`NrTlbRemoteFlush`](Self::NrTlbRemoteFlush), those for a split of a PMD mapping. Not in Linux.
        TlbShootdownSplit = "tlb_shootdown_split",
        /// Other CPUs that were interrupted for these. Not in Linux.
        TlbInterruptSplit = "tlb_interrupt_split",
        /// Of [`NrTlbRemoteFlush`](Self::NrTlbRemoteFlush), those for a collapse. Not in Linux.
        TlbShootdownCollapse = "tlb_shootdown_collapse",
        /// Other CPUs that were interrupted for these. Not in Linux.
        TlbInterruptCollapse = "tlb_interrupt_collapse",
        /// Of [`NrTlbRemoteFlush`](Self::NrTlbRemoteFlush), those for reclaim. Not in Linux.
        TlbShootdownPageOut = "tlb_shootdown_pageout",
        /// Other CPUs that were interrupted for these. Not in Linux.
        TlbInterruptPageOut = "tlb_interrupt_pageout",
        /// Of [`NrTlbRemoteFlush`](Self::NrTlbRemoteFlush), those for the exit of a space. Not in Linux.
        TlbShootdownExit = "tlb_shootdown_exit",
        /// Other CPUs that were interrupted for these. Not in Linux.
        TlbInterruptExit = "tlb_interrupt_exit",
    }
}

impl VmEvent {
    /// The counter of frames allocated from `zone`.
    pub(crate) const fn allocation(zone: ZoneKind) -> Self {
        match zone {
            ZoneKind::Dma32 => Self::PgallocDma32,
            ZoneKind::Normal => Self::PgallocNormal,
        }
    }

    /// The counter of stalled allocations that may use zones up to `highest`.
    pub(crate) const fn stall(highest: ZoneKind) -> Self {
        match highest {
            ZoneKind::Dma32 => Self::AllocstallDma32,
            ZoneKind::Normal => Self::AllocstallNormal,
        }
    }

    /// The event that counts the same as `counter`, for PMD-sized folios only.
    const fn of_pmd_folios(counter: FolioCounter) -> Option<Self> {
        match counter {
            FolioCounter::AnonFaultAlloc => Some(Self::ThpFaultAlloc),
            FolioCounter::AnonFaultFallback => Some(Self::ThpFaultFallback),
            FolioCounter::AnonFaultFallbackCharge => Some(Self::ThpFaultFallbackCharge),
            FolioCounter::Split => Some(Self::ThpSplitPage),
            FolioCounter::SplitFailed => Some(Self::ThpSplitPageFailed),
            FolioCounter::SplitDeferred => Some(Self::ThpDeferredSplitPage),
            FolioCounter::Swpout => Some(Self::ThpSwpout),
            FolioCounter::SwpoutFallback => Some(Self::ThpSwpoutFallback),
            FolioCounter::ShmemAlloc => Some(Self::ThpFileAlloc),
            FolioCounter::ShmemFallback => Some(Self::ThpFileFallback),
            FolioCounter::ShmemFallbackCharge => Some(Self::ThpFileFallbackCharge),
            // Linux counts swap's events per folio size only.
            FolioCounter::Zswpout
            | FolioCounter::Swpin
            | FolioCounter::SwpinFallback
            | FolioCounter::SwpinFallbackCharge
            | FolioCounter::NrAnon
            | FolioCounter::NrAnonPartiallyMapped => None,
        }
    }
}

/// Number of events.
const COUNT: usize = VmEvent::ALL.len();

/// One CPU's counters.
#[derive(Debug)]
pub(crate) struct EventSet {
    events: [AtomicU64; COUNT],
    folios: FolioSet,
}

impl EventSet {
    // Constant, so that it is made where it stays: a kernel's stack has no room for copies.
    pub(crate) const fn new() -> Self {
        Self { events: [const { AtomicU64::new(0) }; COUNT], folios: FolioSet::new() }
    }

    /// Adds to a counter. A load and a store: only the pinned owner of the CPU writes, others read.
    #[inline]
    pub(crate) fn add(&self, event: VmEvent, count: u64) {
        let counter = &self.events[event as usize];
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    fn read(&self, event: VmEvent) -> u64 {
        self.events[event as usize].load(Ordering::Relaxed)
    }
}

/// The event counters of a machine.
#[derive(Debug)]
pub struct VmEvents {
    sets: PerCpu<EventSet>,
}

impl VmEvents {
    pub(crate) fn new(sets: PerCpu<EventSet>) -> Self {
        Self { sets }
    }

    #[inline]
    pub(crate) fn mine<P: Platform>(&self, pin: &Pin<'_, P>) -> &EventSet {
        self.sets.mine(pin)
    }

    /// Counts `count` events on the caller's CPU.
    #[inline]
    pub fn add<P: Platform>(&self, pin: &Pin<'_, P>, event: VmEvent, count: u64) {
        self.sets.mine(pin).add(event, count);
    }

    /// As [`add`](Self::add), for several events.
    #[inline]
    pub fn add_each<P: Platform, const N: usize>(&self, pin: &Pin<'_, P>, counts: [(VmEvent, u64); N]) {
        let mine = self.sets.mine(pin);
        counts.into_iter().for_each(|(event, count)| mine.add(event, count));
    }

    /// Counts `change` of `counter` for folios of `order` on the caller's CPU, and the event of
    /// `/proc/vmstat` that counts the same. For orders below 2 and above the PMD's nothing is counted.
    pub fn count_folio<P: Platform>(
        &self,
        pin: &Pin<'_, P>,
        order: Order,
        counter: FolioCounter,
        change: i64,
    ) {
        let mine = self.sets.mine(pin);
        mine.folios.add(order, counter, change);
        if order == Order::PMD
            && let Some(event) = VmEvent::of_pmd_folios(counter)
        {
            mine.add(event, change as u64);
        }
    }

    /// Adds `change` to the number of PMD-mapped folios of `kind`, on the caller's CPU.
    pub fn count_pmd_mapped<P: Platform>(&self, pin: &Pin<'_, P>, kind: Kind, change: i64) {
        self.sets.mine(pin).folios.add_pmd_mapped(kind, change);
    }

    /// The value of `counter` for folios of `order`. As [`sum`](Self::sum).
    pub fn folios(&self, order: Order, counter: FolioCounter) -> u64 {
        self.total(|set| set.folios.read(order, counter))
    }

    /// PMD-mapped anonymous folios (`nr_anon_transparent_hugepages`).
    pub fn pmd_mapped(&self) -> u64 {
        self.total(|set| set.folios.pmd_mapped(Kind::Anonymous))
    }

    /// PMD-mapped folios of files (`nr_file_pmdmapped`).
    pub fn file_pmd_mapped(&self) -> u64 {
        self.total(|set| set.folios.pmd_mapped(Kind::File))
    }

    /// PMD-mapped folios of shared memory (`nr_shmem_pmdmapped`).
    pub fn shmem_pmd_mapped(&self) -> u64 {
        self.total(|set| set.folios.pmd_mapped(Kind::Shmem))
    }

    /// The sum over all CPUs. On a busy machine it is not a consistent snapshot, as in Linux.
    pub fn sum(&self, event: VmEvent) -> u64 {
        self.total(|set| set.read(event))
    }

    fn total(&self, read: impl Fn(&EventSet) -> u64) -> u64 {
        self.sets.iter().fold(0, |sum, set| sum.wrapping_add(read(set)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_has_its_own_place_and_name() {
        for (place, &event) in VmEvent::ALL.iter().enumerate() {
            assert_eq!(event as usize, place);
            assert_eq!(VmEvent::ALL.iter().filter(|other| other.name() == event.name()).count(), 1);
        }
    }
}

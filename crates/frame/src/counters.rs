//! Event counters, one set a CPU.

use crate::folio_counters::{FolioCounter, FolioSet};
use crate::zone_id::ZoneKind;
// Counts order nothing, so no model has to see them.
use core::sync::atomic::{AtomicU64, Ordering};
use quire_arch::{Order, Pin, Platform, named_enum};
use quire_sync::PerCpu;

named_enum! {
    /// What is counted. Names are those of Linux's `/proc/vmstat` where Linux counts the same thing; the
    /// others say so.
    #[repr(usize)]
    pub enum VmEvent {
        /// Pages that came back from a swap device while it was remembered when they left.
        WorkingsetRefaultAnon = "workingset_refault_anon",
        /// Of these, pages that came back so soon that they should have stayed.
        WorkingsetActivateAnon = "workingset_activate_anon",
        /// Of these, pages that had been in use for long before they left.
        WorkingsetRestoreAnon = "workingset_restore_anon",
        /// Pages read from swap devices.
        Pswpin = "pswpin",
        /// Pages written to swap devices.
        Pswpout = "pswpout",
        /// Frames given out from [`ZoneKind::Dma32`].
        PgallocDma32 = "pgalloc_dma32",
        /// Frames given out from [`ZoneKind::Normal`].
        PgallocNormal = "pgalloc_normal",
        /// Allocations that could have used [`ZoneKind::Dma32`] at the highest, found
        /// nothing and had to drain what holds free memory back.
        AllocstallDma32 = "allocstall_dma32",
        /// As the one before, for [`ZoneKind::Normal`].
        AllocstallNormal = "allocstall_normal",
        /// Frames given back.
        Pgfree = "pgfree",
        /// Pages that were moved to a list of such as were used of late.
        Pgactivate = "pgactivate",
        /// Pages that were moved away from there.
        Pgdeactivate = "pgdeactivate",
        /// Pages marked by MADV_FREE.
        Pglazyfree = "pglazyfree",
        /// Page faults.
        Pgfault = "pgfault",
        /// Page faults that had to wait for a device.
        Pgmajfault = "pgmajfault",
        /// Pages marked by MADV_FREE that were freed before they were written to again.
        Pglazyfreed = "pglazyfreed",
        /// Pages on lists of such as were used of late that were looked at.
        Pgrefill = "pgrefill",
        /// Write faults whose page was reused, since it had no other user.
        Pgreuse = "pgreuse",
        /// Pages that background reclaim freed. This and the others of its sort do not tell of what a program
        /// asked for by `MADV_PAGEOUT`.
        PgstealKswapd = "pgsteal_kswapd",
        /// Pages freed by direct reclaim.
        PgstealDirect = "pgsteal_direct",
        /// Pages freed by proactive reclaim.
        PgstealProactive = "pgsteal_proactive",
        /// Pages that background reclaim looked at.
        PgscanKswapd = "pgscan_kswapd",
        /// Pages scanned by direct reclaim.
        PgscanDirect = "pgscan_direct",
        /// Pages scanned by proactive reclaim.
        PgscanProactive = "pgscan_proactive",
        /// Anonymous pages that reclaim looked at. The counters by cause tell of reclaim from all of the
        /// machine only; these and the next ones also of reclaim from a memcg.
        PgscanAnon = "pgscan_anon",
        /// Pages of files that reclaim looked at, and pages marked by MADV_FREE, which are listed among them.
        PgscanFile = "pgscan_file",
        /// Anonymous pages that reclaim freed.
        PgstealAnon = "pgsteal_anon",
        /// Pages of files, and such as were marked by MADV_FREE, that reclaim freed.
        PgstealFile = "pgsteal_file",
        /// Programs that were ended because memory was exhausted.
        OomKill = "oom_kill",
        /// Pages that came to the list of the locked ones.
        UnevictablePgsCulled = "unevictable_pgs_culled",
        /// Pages that went from there to those which may go.
        UnevictablePgsRescued = "unevictable_pgs_rescued",
        /// Pages of folios that were marked as locked.
        UnevictablePgsMlocked = "unevictable_pgs_mlocked",
        /// Pages of folios whose mark was taken off.
        UnevictablePgsMunlocked = "unevictable_pgs_munlocked",
        /// Faults that mapped a new anonymous folio as large as a PMD entry's. This and the others that
        /// [`VmEvents::count_folio`] knows are counted there.
        ThpFaultAlloc = "thp_fault_alloc",
        /// Faults that wanted such a folio and got none.
        ThpFaultFallback = "thp_fault_fallback",
        /// Of these, faults whose memcg was at its limit.
        ThpFaultFallbackCharge = "thp_fault_fallback_charge",
        /// Such folios that were allocated to collapse a range into.
        ThpCollapseAlloc = "thp_collapse_alloc",
        /// Collapses that got none.
        ThpCollapseAllocFailed = "thp_collapse_alloc_failed",
        /// Such folios that were split into smaller ones.
        ThpSplitPage = "thp_split_page",
        /// Such folios that were to be split, and were in use.
        ThpSplitPageFailed = "thp_split_page_failed",
        /// Such folios that were partly unmapped and are to be split when memory runs short.
        ThpDeferredSplitPage = "thp_deferred_split_page",
        /// Of the split ones, those that were fully mapped but full of zeros.
        ThpUnderusedSplitPage = "thp_underused_split_page",
        /// PMD entries that mapped a page and became a table.
        ThpSplitPmd = "thp_split_pmd",
        /// Huge zero pages that were allocated.
        ThpZeroPageAlloc = "thp_zero_page_alloc",
        /// Those that could not be had.
        ThpZeroPageAllocFailed = "thp_zero_page_alloc_failed",
        /// Folios as large as a PMD entry's that were written to a swap device whole.
        ThpSwpout = "thp_swpout",
        /// Those that had to be split for that.
        ThpSwpoutFallback = "thp_swpout_fallback",
        /// Pages that were read ahead from swap devices.
        SwapRa = "swap_ra",
        /// Of these, pages that were used then.
        SwapRaHit = "swap_ra_hit",
        /// Pages of zeros that came back without a device.
        SwpinZero = "swpin_zero",
        /// Pages of zeros that were paged out without a device.
        SwpoutZero = "swpout_zero",
        /// Pages that came back from a compressed cache.
        Zswpin = "zswpin",
        /// Pages that went to a compressed cache.
        Zswpout = "zswpout",
        /// Of these, pages that went on to the device behind it.
        Zswpwb = "zswpwb",
        /// Flushes that were sent to other CPUs, whatever their number.
        NrTlbRemoteFlush = "nr_tlb_remote_flush",
        /// Other CPUs that were interrupted for these.
        NrTlbRemoteFlushReceived = "nr_tlb_remote_flush_received",
        /// Flushes of a whole space on the CPU that asked for them.
        NrTlbLocalFlushAll = "nr_tlb_local_flush_all",
        /// Pages that were flushed one by one on the CPU that asked for it.
        NrTlbLocalFlushOne = "nr_tlb_local_flush_one",
        /// Nanoseconds that faults stood still for want of memory: reclaim, and pages that came back from a
        /// swap device. Not in Linux's vmstat: there PSI has it, whose name this is.
        MemstallNs = "memstall_ns",
        /// Allocations served from the CPU's lists. Not in Linux.
        PcpHit = "pcp_hit",
        /// Allocations that had to refill the CPU's lists first. Not in Linux.
        PcpMiss = "pcp_miss",
        /// Frames that went from a CPU's lists back to their zone. Not in Linux.
        PcpDrain = "pcp_drain",
        /// Frames that a CPU had too many of and that went back to the CPU whose list they came from. Not in
        /// Linux.
        PcpReturn = "pcp_return",
        /// Of these, frames that served an allocation at once. Not in Linux.
        PcpReturned = "pcp_returned",
        /// Blocks that were split to make smaller ones. Not in Linux.
        BuddySplit = "buddy_split",
        /// Pairs of blocks that became one. Not in Linux.
        BuddyMerge = "buddy_merge",
        /// Blocks taken from another migratetype's lists. Not in Linux's vmstat: there it is a tracepoint,
        /// whose name this is.
        Extfrag = "page_alloc_extfrag",
        /// Page blocks whose migratetype changed for that. Not in Linux.
        PageblockSteal = "pageblock_steal",
        /// Frames that were given back while lock-free readers might still look. Not in Linux.
        LimboRetired = "limbo_retired",
        /// Of these, frames whose readers were gone. Not in Linux.
        LimboFreed = "limbo_freed",
        /// Slab frames that were taken from the zones, in blocks. Not in Linux.
        SlabGrow = "slab_grow",
        /// Slab frames that went back, in blocks. Not in Linux.
        SlabShrink = "slab_shrink",
        /// Removals of mappings from the count of a folio: one for each run of its pages that is unmapped,
        /// reclaim apart. Not in Linux.
        RmapRemove = "rmap_remove",
        /// Page descriptors that unmapping wrote to: one for each removal, and one for each folio that it
        /// freed. Not in Linux.
        UnmapDescriptor = "unmap_descriptor",
        /// Entries of page tables that `mremap` moved, those that lead to tables among them. Not in Linux.
        MremapEntry = "mremap_entry",
        /// Page tables that were freed because they were empty, with mappings over them. Not in Linux.
        EmptyTableFreed = "empty_table_freed",
        /// CPUs that a flush passed by, because they do not run the space: such a one flushes when it comes
        /// back. Not in Linux.
        TlbCpuSpared = "tlb_cpu_spared",
        /// Times that a CPU came to a space and had to flush first. Not in Linux's vmstat: there it is a
        /// reason of the tracepoint `tlb_flush`, whose name this is.
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
        /// Of [`NrTlbRemoteFlush`](Self::NrTlbRemoteFlush), those for contents that were dropped. Not in
        /// Linux.
        TlbShootdownDiscard = "tlb_shootdown_discard",
        /// Other CPUs that were interrupted for these. Not in Linux.
        TlbInterruptDiscard = "tlb_interrupt_discard",
        /// Of [`NrTlbRemoteFlush`](Self::NrTlbRemoteFlush), those for a fork's write protection. Not in
        /// Linux.
        TlbShootdownFork = "tlb_shootdown_fork",
        /// Other CPUs that were interrupted for these. Not in Linux.
        TlbInterruptFork = "tlb_interrupt_fork",
        /// Of [`NrTlbRemoteFlush`](Self::NrTlbRemoteFlush), those for a page that a write replaced. Not in
        /// Linux.
        TlbShootdownCopyOnWrite = "tlb_shootdown_cow",
        /// Other CPUs that were interrupted for these. Not in Linux.
        TlbInterruptCopyOnWrite = "tlb_interrupt_cow",
        /// Of [`NrTlbRemoteFlush`](Self::NrTlbRemoteFlush), those for a large mapping that was split. Not in
        /// Linux.
        TlbShootdownSplit = "tlb_shootdown_split",
        /// Other CPUs that were interrupted for these. Not in Linux.
        TlbInterruptSplit = "tlb_interrupt_split",
        /// Of [`NrTlbRemoteFlush`](Self::NrTlbRemoteFlush), those for pages that became a large one. Not in
        /// Linux.
        TlbShootdownCollapse = "tlb_shootdown_collapse",
        /// Other CPUs that were interrupted for these. Not in Linux.
        TlbInterruptCollapse = "tlb_interrupt_collapse",
        /// Of [`NrTlbRemoteFlush`](Self::NrTlbRemoteFlush), those for pages that were paged out. Not in
        /// Linux.
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
    /// The counter of frames given out from `zone`.
    pub(crate) const fn allocation(zone: ZoneKind) -> Self {
        match zone {
            ZoneKind::Dma32 => Self::PgallocDma32,
            ZoneKind::Normal => Self::PgallocNormal,
        }
    }

    /// The counter of allocations that stall, for such as may use zones up to `highest`.
    pub(crate) const fn stall(highest: ZoneKind) -> Self {
        match highest {
            ZoneKind::Dma32 => Self::AllocstallDma32,
            ZoneKind::Normal => Self::AllocstallNormal,
        }
    }

    /// The event that counts the same as `counter`, of folios as large as a PMD entry's only.
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
            // Linux counts those of swap with the folios of the size only.
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
    pub(crate) fn new() -> Self {
        Self { events: core::array::from_fn(|_| AtomicU64::new(0)), folios: FolioSet::new() }
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

    /// The same for several events.
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

    /// Counts `change` more anonymous folios that some PMD entry maps whole, on the caller's CPU.
    pub fn count_pmd_mapped<P: Platform>(&self, pin: &Pin<'_, P>, change: i64) {
        self.sets.mine(pin).folios.add_pmd_mapped(change);
    }

    /// What `counter` is for folios of `order`. As [`sum`](Self::sum).
    pub fn folios(&self, order: Order, counter: FolioCounter) -> u64 {
        self.total(|set| set.folios.read(order, counter))
    }

    /// Anonymous folios that some PMD entry maps whole (`nr_anon_transparent_hugepages`).
    pub fn pmd_mapped(&self) -> u64 {
        self.total(|set| set.folios.pmd_mapped())
    }

    /// The sum over all CPUs. On a busy machine it is a moment's mixture, as in Linux.
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

//! Figures of one process, Quire's beside Linux's.

use super::mismatch::{Gap, Mismatch};
use quire_host::{HostPlatform, Translation};
use quire_mm::{
    Memory,
    frame::VmEvent,
    space::{Limits, SpaceFigures},
};
use quire_trace::event::LinuxFigures;
use std::collections::BTreeMap;
use std::ops::Sub;
use std::sync::Arc;

/// Mismatches that are kept with their text; the rest are only counted.
pub(super) const KEPT_MISMATCHES: usize = 20;

/// What one process did, and its results.
#[derive(Clone, Debug, Default)]
pub struct ProcessReport {
    /// Its id in Linux.
    pub pid: u32,
    /// The program that it ran last. A child has its parent's until it runs another.
    pub program: Arc<str>,
    /// Threads that it had in all.
    pub threads: u32,
    /// CPUs that its threads can have run on: of a host of more than 64 an event stands for all that share a
    /// vCPU.
    pub cpus: u32,
    /// Address spaces that it had one after the other: one, and one more for each exec.
    pub images: u32,
    /// Memory calls.
    pub calls: u64,
    /// Touches that faulted on Linux.
    pub faults: u64,
    /// Pages that its calls brought in.
    pub populated: u64,
    /// Of the touches, the ones that did not fault here.
    pub already_present: AlreadyPresent,
    /// Results that differ, and calls that Quire cannot do.
    pub mismatches: u64,
    /// The first of them.
    pub first_mismatches: Vec<Mismatch>,
    /// Results that differ because they depend on settings of huge pages, which were others when it was
    /// recorded. They are not among the mismatches.
    pub settings_dependent: u64,
    /// Calls that have their recorded result in another order than they stand in, which may as well have been
    /// Linux's: they overlapped with calls of other threads.
    pub reordered: u64,
    /// Of the mismatches those for which not all orders were tried: a replay spends so much on that at most.
    pub untried: u64,
    /// What Quire cannot do, with how often it was needed.
    pub gaps: BTreeMap<Gap, u64>,
    /// Its limits at its end, the most mappings that it may have among them.
    pub limits: Limits,
    /// Quire's figures: of each address space at its end, where Linux's were taken and when it was gone, the
    /// largest of each.
    pub quire: SpaceFigures,
    /// Linux's figures likewise, where it has them.
    pub linux: Option<LinuxFigures>,
    /// Shared memory that Linux had mapped in one of them at its end, and of which no event tells, in bytes:
    /// that of files in memory which were written by `write`, or before. It was locked, or mapped with what
    /// was around it.
    pub unrecorded_shared: u64,
    /// Whether files of its images may lie in memory: Linux counts their pages as shared memory, Quire as
    /// those of files.
    pub images_in_memory: bool,
    /// A digest of the contents of its address spaces at their end, if requested
    /// ([`ReplayOptions::digest`](super::ReplayOptions::digest)). Equal runs have equal ones.
    pub digest: u64,
    /// What the auditor found when the process had ended; empty is good.
    pub audit: Vec<String>,
    /// What the allocator did while the process lived. Others may have lived then too.
    pub allocator: AllocatorFigures,
}

/// Whether resident memory was as much as Linux's: within 5 %, or 256 KiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Residency {
    /// Anonymous memory (`RssAnon`).
    pub anonymous: bool,
    /// Pages of files (`RssFile`).
    pub files: bool,
    /// Shared memory (`RssShmem`).
    pub shared: bool,
}

/// Touches that faulted on Linux and went through without a fault here. A large folio, a page that another
/// process faulted in, or a fault that Linux took twice explains them; they are counted so that none is taken
/// for a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AlreadyPresent {
    /// The TLB translated them.
    pub tlb_hits: u64,
    /// The TLB did not, but the page tables did.
    pub table_walks: u64,
}

impl AlreadyPresent {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.tlb_hits + self.table_walks
    }

    pub(super) fn add(&mut self, found: Translation) {
        match found {
            Translation::Tlb => self.tlb_hits += 1,
            Translation::Tables => self.table_walks += 1,
            Translation::Fault => {}
        }
    }
}

/// Keeps the larger of two figures in each of these fields.
macro_rules! keep_largest {
    ($most:expr, $figures:expr, $($field:ident)+) => {
        $($most.$field = $most.$field.max($figures.$field);)+
    };
}

impl ProcessReport {
    /// All results are Linux's, and the audit found nothing.
    pub fn is_good(&self) -> bool {
        self.mismatches == 0 && self.audit.is_empty()
    }

    /// Whether its resident memory was as much as on Linux, each at the end of an address space; `None` if
    /// Linux's figures are not known.
    pub fn residency(&self) -> Option<Residency> {
        const NEAR: u64 = 256 << 10;
        let near = |quire: u64, linux: u64| quire.abs_diff(linux) <= NEAR.max(linux / 20);
        let (quire, linux) = (&self.quire, self.linux.as_ref()?);
        let both = || {
            let all = linux.rss_file.saturating_add(linux.rss_shmem);
            self.images_in_memory && near(quire.resident_file + quire.resident_shmem, all)
        };
        Some(Residency {
            anonymous: near(quire.resident_anonymous, linux.rss_anon),
            files: near(quire.resident_file, linux.rss_file) || both(),
            shared: near(quire.resident_shmem, linux.rss_shmem) || both(),
        })
    }

    /// Pages that the kernel brought in for others than the program's threads: for direct input and output,
    /// or a virtual machine. Linux counts a page fault for each, but no exception tells of it. 0 if Linux's
    /// figures are not known. Events that were lost are among them.
    pub fn unrecorded_pages(&self) -> u64 {
        let counted =
            self.linux.as_ref().map_or(0, |linux| linux.minor_faults.saturating_add(linux.major_faults));
        counted.saturating_sub(self.faults).saturating_sub(self.populated)
    }

    /// Event number `event` did `what`, and Quire's result differs from Linux's.
    pub(super) fn add_mismatch(&mut self, event: u64, what: String, linux: impl Into<String>, quire: String) {
        self.mismatches += 1;
        if self.first_mismatches.len() < KEPT_MISMATCHES {
            self.first_mismatches.push(Mismatch { event, what, expected: linux.into(), found: quire });
        }
    }

    pub(super) fn add_gap(&mut self, gap: Gap) {
        self.mismatches += 1;
        *self.gaps.entry(gap).or_default() += 1;
    }

    pub(super) fn add_quire(&mut self, figures: SpaceFigures) {
        keep_largest!(self.quire, figures, mapped peak_mapped resident peak_resident resident_anonymous
            resident_file resident_shmem swapped data stack exec locked page_tables peak_page_tables mappings
            peak_mappings);
    }

    pub(super) fn add_linux(&mut self, figures: &LinuxFigures) {
        let Some(most) = &mut self.linux else {
            self.linux = Some(*figures);
            return;
        };
        keep_largest!(most, figures, vm_peak vm_size vm_hwm vm_rss rss_anon rss_file rss_shmem vm_data vm_stk
            vm_pte vm_swap mappings vm_pte_peak mappings_peak);
        // Faults and processor time are counted from exec to exec, so those of a process add up.
        most.minor_faults = most.minor_faults.saturating_add(figures.minor_faults);
        most.major_faults = most.major_faults.saturating_add(figures.major_faults);
        most.processor_ns = most.processor_ns.saturating_add(figures.processor_ns);
    }
}

/// What the page-frame allocator did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AllocatorFigures {
    /// Frames given out.
    pub allocations: u64,
    /// Frames given back.
    pub frees: u64,
    /// Allocations that the CPU's list served.
    pub pcp_hits: u64,
    /// Allocations for which the list was refilled first.
    pub pcp_misses: u64,
    /// Times that a zone's lock was taken.
    pub zone_lock_takes: u64,
    /// Of these, with waiting.
    pub zone_lock_contended: u64,
    /// Blocks split.
    pub splits: u64,
    /// Blocks merged.
    pub merges: u64,
}

impl AllocatorFigures {
    /// The figures of a machine since it was built.
    pub(super) fn of(memory: &Memory<HostPlatform>) -> Self {
        let events = memory.frames().events();
        let mut figures = Self {
            allocations: events.sum(VmEvent::PgallocDma32) + events.sum(VmEvent::PgallocNormal),
            frees: events.sum(VmEvent::Pgfree),
            pcp_hits: events.sum(VmEvent::PcpHit),
            pcp_misses: events.sum(VmEvent::PcpMiss),
            splits: events.sum(VmEvent::BuddySplit),
            merges: events.sum(VmEvent::BuddyMerge),
            ..Self::default()
        };
        for lock in memory.zone_locks() {
            figures.zone_lock_takes += lock.takes;
            figures.zone_lock_contended += lock.contended;
        }
        figures
    }
}

/// Work that the techniques of page tables save: read from the counters of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TableFigures {
    /// Removals of mappings from folios' counts (`rmap_remove`).
    pub rmap_removals: u64,
    /// Page descriptors that unmapping wrote to (`unmap_descriptor`).
    pub descriptors_written: u64,
    /// Entries of page tables that `mremap` moved (`mremap_entry`).
    pub entries_moved: u64,
    /// Page tables that were freed because they were empty (`empty_table_freed`).
    pub empty_tables_freed: u64,
    /// TLB shootdowns that were sent to other CPUs (`nr_tlb_remote_flush`).
    pub shootdowns: u64,
    /// CPUs that these interrupted (`nr_tlb_remote_flush_received`).
    pub interrupts: u64,
}

impl TableFigures {
    /// The figures of a machine since it was built.
    pub(super) fn of(memory: &Memory<HostPlatform>) -> Self {
        let count = |event| memory.event(event);
        Self {
            rmap_removals: count(VmEvent::RmapRemove),
            descriptors_written: count(VmEvent::UnmapDescriptor),
            entries_moved: count(VmEvent::MremapEntry),
            empty_tables_freed: count(VmEvent::EmptyTableFreed),
            shootdowns: count(VmEvent::NrTlbRemoteFlush),
            interrupts: count(VmEvent::NrTlbRemoteFlushReceived),
        }
    }
}

impl Sub for AllocatorFigures {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            allocations: self.allocations - before.allocations,
            frees: self.frees - before.frees,
            pcp_hits: self.pcp_hits - before.pcp_hits,
            pcp_misses: self.pcp_misses - before.pcp_misses,
            zone_lock_takes: self.zone_lock_takes - before.zone_lock_takes,
            zone_lock_contended: self.zone_lock_contended - before.zone_lock_contended,
            splits: self.splits - before.splits,
            merges: self.merges - before.merges,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_resident_memory_is_held_against_that_of_linux() {
        let of = |images_in_memory, [rss_anon, rss_file, rss_shmem]: [u64; 3]| {
            let quire = SpaceFigures {
                resident_anonymous: 8 << 20,
                resident_file: 9 << 20,
                resident_shmem: 4 << 20,
                ..SpaceFigures::default()
            };
            let [rss_anon, rss_file, rss_shmem] = [rss_anon << 20, rss_file << 20, rss_shmem << 20];
            let linux = Some(LinuxFigures { rss_anon, rss_file, rss_shmem, ..LinuxFigures::default() });
            let report = ProcessReport { quire, linux, images_in_memory, ..ProcessReport::default() };
            let found = report.residency().unwrap();
            [found.anonymous, found.files, found.shared]
        };
        assert_eq!(of(false, [8, 9, 4]), [true; 3]);
        assert_eq!(of(false, [17, 9, 8]), [false, true, false]);
        assert_eq!(of(false, [8, 1, 12]), [true, false, false]);
        // Pages of a program that lies on a tmpfs.
        assert_eq!(of(true, [8, 1, 12]), [true; 3]);
        assert_eq!(of(true, [8, 1, 4]), [true, false, true]);
        assert_eq!(ProcessReport::default().residency(), None);
    }
}

//! The memory usage of an address space, as `/proc/PID/status` shows it.

use crate::flags::VmFlags;
use quire_arch::PAGE_SIZE;
use quire_pagetable::{ResidencyCounts, raise};
use quire_sync::atomic::{AtomicU64, Ordering};

/// Running counts of the mappings of one space, which change under its mmap lock. All loads are relaxed: each
/// number stands alone.
#[derive(Debug, Default)]
pub struct Usage {
    mapped: AtomicU64,
    peak_mapped: AtomicU64,
    data: AtomicU64,
    stack: AtomicU64,
    exec: AtomicU64,
    locked: AtomicU64,
    peak_mappings: AtomicU64,
}

/// The figures of one address space, in bytes where not said otherwise. The names in brackets are those of
/// `/proc/PID/status`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpaceFigures {
    /// Size of all mappings (`VmSize`).
    pub mapped: u64,
    /// Its peak (`VmPeak`).
    pub peak_mapped: u64,
    /// Resident memory (`VmRSS`).
    pub resident: u64,
    /// Its peak (`VmHWM`).
    pub peak_resident: u64,
    /// Resident anonymous memory (`RssAnon`).
    pub resident_anonymous: u64,
    /// Resident memory of files (`RssFile`).
    pub resident_file: u64,
    /// Resident shared memory (`RssShmem`).
    pub resident_shmem: u64,
    /// Swapped-out anonymous memory (`VmSwap`).
    pub swapped: u64,
    /// Private writable mappings (`VmData`).
    pub data: u64,
    /// Stacks (`VmStk`).
    pub stack: u64,
    /// Code (`VmExe` and `VmLib` together).
    pub exec: u64,
    /// Locked mappings (`VmLck`).
    pub locked: u64,
    /// Page tables below the root (`VmPTE`).
    pub page_tables: u64,
    /// Its peak.
    pub peak_page_tables: u64,
    /// Number of mappings.
    pub mappings: u64,
    /// Its peak.
    pub peak_mappings: u64,
}

/// Adds to a count that only the holder of the mmap lock writes: no atomic addition is needed.
fn add(count: &AtomicU64, pages: u64) {
    count.store(count.load(Ordering::Relaxed) + pages, Ordering::Relaxed);
}

/// Subtracts likewise.
fn subtract(count: &AtomicU64, pages: u64) {
    count.store(count.load(Ordering::Relaxed) - pages, Ordering::Relaxed);
}

impl Usage {
    /// Adds `pages` of a mapping with `flags`. As for the next two, the caller holds the mmap lock for
    /// writing.
    #[inline]
    pub fn map(&self, flags: VmFlags, pages: u64) {
        add(&self.mapped, pages);
        raise(&self.peak_mapped, self.mapped.load(Ordering::Relaxed));
        for count in self.classes(flags).into_iter().flatten() {
            add(count, pages);
        }
    }

    /// The most pages that were mapped.
    #[inline]
    pub fn peak_mapped(&self) -> u64 {
        self.peak_mapped.load(Ordering::Relaxed)
    }

    /// Ends a move, before which the most was `before`: while it was under way both places were counted,
    /// which Linux's VmPeak does not show. The caller holds the mmap lock for writing.
    #[inline]
    pub fn end_move(&self, before: u64) {
        self.peak_mapped.store(before.max(self.mapped.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// Subtracts `pages` of a mapping with `flags`.
    #[inline]
    pub fn unmap(&self, flags: VmFlags, pages: u64) {
        subtract(&self.mapped, pages);
        for count in self.classes(flags).into_iter().flatten() {
            subtract(count, pages);
        }
    }

    /// Moves `pages` of a mapping from one class to another.
    #[inline]
    pub fn reclass(&self, from: VmFlags, to: VmFlags, pages: u64) {
        for count in self.classes(from).into_iter().flatten() {
            subtract(count, pages);
        }
        for count in self.classes(to).into_iter().flatten() {
            add(count, pages);
        }
    }

    fn classes(&self, flags: VmFlags) -> [Option<&AtomicU64>; 2] {
        let class = if flags.is_exec() {
            Some(&self.exec)
        } else if flags.is_stack() {
            Some(&self.stack)
        } else if flags.is_data() {
            Some(&self.data)
        } else {
            None
        };
        [class, flags.contains(VmFlags::LOCKED).then_some(&self.locked)]
    }

    /// Pages of all mappings.
    #[inline]
    pub fn mapped_pages(&self) -> u64 {
        self.mapped.load(Ordering::Relaxed)
    }

    /// Pages of the data segment.
    #[inline]
    pub fn data_pages(&self) -> u64 {
        self.data.load(Ordering::Relaxed)
    }

    /// Pages of locked mappings.
    #[inline]
    pub fn locked_pages(&self) -> u64 {
        self.locked.load(Ordering::Relaxed)
    }

    /// Sets the number of mappings to `now`.
    #[inline]
    pub fn note_mappings(&self, now: u64) {
        raise(&self.peak_mappings, now);
    }

    /// The figures of the space, which has so many mappings and these pages.
    pub fn figures(&self, mappings: u64, pages: &ResidencyCounts) -> SpaceFigures {
        let pages = pages.figures();
        let bytes = |count: &AtomicU64| count.load(Ordering::Relaxed) * PAGE_SIZE;
        SpaceFigures {
            mapped: bytes(&self.mapped),
            peak_mapped: bytes(&self.peak_mapped),
            resident: (pages.anonymous + pages.file + pages.shmem) * PAGE_SIZE,
            peak_resident: pages.peak_resident * PAGE_SIZE,
            resident_anonymous: pages.anonymous * PAGE_SIZE,
            resident_file: pages.file * PAGE_SIZE,
            resident_shmem: pages.shmem * PAGE_SIZE,
            swapped: pages.swapped * PAGE_SIZE,
            data: bytes(&self.data),
            stack: bytes(&self.stack),
            exec: bytes(&self.exec),
            locked: bytes(&self.locked),
            page_tables: pages.tables * PAGE_SIZE,
            peak_page_tables: pages.peak_tables * PAGE_SIZE,
            mappings,
            peak_mappings: self.peak_mappings.load(Ordering::Relaxed),
        }
    }
}

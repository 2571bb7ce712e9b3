//! What an address space uses, as `/proc/PID/status` shows it.

use crate::residency::Residency;
use crate::vma::VmFlags;
use quire_arch::PAGE_SIZE;
use quire_sync::atomic::{AtomicU64, Ordering};

/// Running counts of one space. Faults change the pages and the tables, so those are atomic additions; the
/// rest changes under the mmap lock. All loads are relaxed: each number stands alone. What other threads can
/// find is added before the lock is released under which it became visible, and subtracted after it is gone,
/// so no count falls below zero.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    anonymous: AtomicU64,
    file: AtomicU64,
    swapped: AtomicU64,
    peak_resident: AtomicU64,
    tables: AtomicU64,
    peak_tables: AtomicU64,
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
    /// The most that was (`VmPeak`).
    pub peak_mapped: u64,
    /// Resident memory (`VmRSS`).
    pub resident: u64,
    /// The most that was (`VmHWM`).
    pub peak_resident: u64,
    /// Resident anonymous memory (`RssAnon`).
    pub resident_anonymous: u64,
    /// Resident memory of files and shared memory (`RssFile` and `RssShmem`).
    pub resident_file: u64,
    /// Anonymous memory that is paged out (`VmSwap`).
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
    /// The most that was.
    pub peak_page_tables: u64,
    /// Number of mappings.
    pub mappings: u64,
    /// The most that was.
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

fn raise(peak: &AtomicU64, now: u64) {
    if now > peak.load(Ordering::Relaxed) {
        peak.fetch_max(now, Ordering::Relaxed);
    }
}

impl Usage {
    #[inline]
    pub(crate) fn page_mapped(&self, anonymous: bool) {
        let count = if anonymous { &self.anonymous } else { &self.file };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts `pages` of private memory in.
    #[inline]
    pub(crate) fn anonymous_mapped(&self, pages: u64) {
        self.anonymous.fetch_add(pages, Ordering::Relaxed);
    }

    pub(crate) fn pages_mapped(&self, pages: Residency) {
        self.anonymous.fetch_add(pages.anonymous, Ordering::Relaxed);
        self.file.fetch_add(pages.file, Ordering::Relaxed);
    }

    pub(crate) fn pages_unmapped(&self, pages: Residency) {
        // The peak is taken when the number is about to fall, not at each fault.
        raise(&self.peak_resident, self.resident());
        self.anonymous.fetch_sub(pages.anonymous, Ordering::Relaxed);
        self.file.fetch_sub(pages.file, Ordering::Relaxed);
    }

    /// Counts `pages` whose entries name slots from now on.
    pub(crate) fn swapped_out(&self, pages: u64) {
        self.swapped.fetch_add(pages, Ordering::Relaxed);
    }

    /// Counts `pages` whose entries named slots and do so no more.
    pub(crate) fn swap_gone(&self, pages: u64) {
        self.swapped.fetch_sub(pages, Ordering::Relaxed);
    }

    /// A page of a private file mapping became private to the program.
    pub(crate) fn file_page_made_anonymous(&self) {
        self.file.fetch_sub(1, Ordering::Relaxed);
        self.anonymous.fetch_add(1, Ordering::Relaxed);
    }

    fn resident(&self) -> u64 {
        self.anonymous.load(Ordering::Relaxed) + self.file.load(Ordering::Relaxed)
    }

    pub(crate) fn table_made(&self) {
        let now = self.tables.fetch_add(1, Ordering::Relaxed) + 1;
        raise(&self.peak_tables, now);
    }

    pub(crate) fn table_gone(&self) {
        self.tables.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts `pages` of a mapping with `flags` in. As the next two: the caller holds the mmap lock for
    /// writing.
    pub(crate) fn map(&self, flags: VmFlags, pages: u64) {
        add(&self.mapped, pages);
        raise(&self.peak_mapped, self.mapped.load(Ordering::Relaxed));
        for count in self.classes(flags).into_iter().flatten() {
            add(count, pages);
        }
    }

    /// The most pages that were mapped.
    pub(crate) fn peak_mapped(&self) -> u64 {
        self.peak_mapped.load(Ordering::Relaxed)
    }

    /// Ends a move, before which the most was `before`: while it was under way both places were counted,
    /// which Linux's VmPeak does not show. The caller holds the mmap lock for writing.
    pub(crate) fn end_move(&self, before: u64) {
        self.peak_mapped.store(before.max(self.mapped.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// Counts `pages` of a mapping with `flags` out.
    pub(crate) fn unmap(&self, flags: VmFlags, pages: u64) {
        subtract(&self.mapped, pages);
        for count in self.classes(flags).into_iter().flatten() {
            subtract(count, pages);
        }
    }

    /// Moves `pages` of a mapping from one class to another.
    pub(crate) fn reclass(&self, from: VmFlags, to: VmFlags, pages: u64) {
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

    pub(crate) fn mapped_pages(&self) -> u64 {
        self.mapped.load(Ordering::Relaxed)
    }

    pub(crate) fn data_pages(&self) -> u64 {
        self.data.load(Ordering::Relaxed)
    }

    pub(crate) fn locked_pages(&self) -> u64 {
        self.locked.load(Ordering::Relaxed)
    }

    pub(crate) fn note_mappings(&self, now: u64) {
        raise(&self.peak_mappings, now);
    }

    pub(crate) fn figures(&self, mappings: u64) -> SpaceFigures {
        raise(&self.peak_resident, self.resident());
        let bytes = |count: &AtomicU64| count.load(Ordering::Relaxed) * PAGE_SIZE;
        SpaceFigures {
            mapped: bytes(&self.mapped),
            peak_mapped: bytes(&self.peak_mapped),
            resident: self.resident() * PAGE_SIZE,
            peak_resident: bytes(&self.peak_resident),
            resident_anonymous: bytes(&self.anonymous),
            resident_file: bytes(&self.file),
            swapped: bytes(&self.swapped),
            data: bytes(&self.data),
            stack: bytes(&self.stack),
            exec: bytes(&self.exec),
            locked: bytes(&self.locked),
            page_tables: bytes(&self.tables),
            peak_page_tables: bytes(&self.peak_tables),
            mappings,
            peak_mappings: self.peak_mappings.load(Ordering::Relaxed),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_peak_of_resident_memory_is_what_was_there_before_it_fell() {
        let usage = Usage::default();
        usage.pages_mapped(Residency { anonymous: 5, file: 2 });
        usage.pages_unmapped(Residency { anonymous: 4, file: 1 });
        usage.page_mapped(true);
        let figures = usage.figures(0);
        assert_eq!((figures.peak_resident, figures.resident), (7 * PAGE_SIZE, 3 * PAGE_SIZE));
    }
}

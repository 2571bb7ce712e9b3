//! Resident pages by kind.

use quire_frame::Kind;
use quire_sync::atomic::{AtomicU64, Ordering};

/// Pages of each kind, as `/proc/PID/status` tells them apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Residency {
    /// Of private memory.
    pub anonymous: u64,
    /// Of files.
    pub file: u64,
    /// Of shared memory.
    pub shmem: u64,
}

impl Residency {
    /// `pages` pages of one kind.
    #[inline]
    pub fn of(kind: Kind, pages: u64) -> Self {
        let mut residency = Self::default();
        residency.add(kind, pages);
        residency
    }

    /// Adds `pages` pages of one kind.
    #[inline]
    pub fn add(&mut self, kind: Kind, pages: u64) {
        match kind {
            Kind::Anonymous => self.anonymous += pages,
            Kind::Shmem => self.shmem += pages,
            _ => self.file += pages,
        }
    }

    /// Pages of all kinds.
    #[inline]
    pub fn pages(self) -> u64 {
        self.anonymous + self.file + self.shmem
    }
}

/// Running counts of the pages and tables of one space. Faults change them, so they are atomic additions. All
/// loads are relaxed: each number stands alone. What other threads can find is added before the lock is
/// released under which it became visible, and subtracted after it is gone, so no count becomes negative.
#[derive(Debug, Default)]
pub struct ResidencyCounts {
    anonymous: AtomicU64,
    file: AtomicU64,
    shmem: AtomicU64,
    swapped: AtomicU64,
    peak_resident: AtomicU64,
    tables: AtomicU64,
    peak_tables: AtomicU64,
}

/// The counts at a moment, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResidencyFigures {
    /// Resident private pages.
    pub anonymous: u64,
    /// Resident pages of files.
    pub file: u64,
    /// Resident pages of shared memory.
    pub shmem: u64,
    /// Swapped-out private pages.
    pub swapped: u64,
    /// Peak of resident pages.
    pub peak_resident: u64,
    /// Page tables below the root.
    pub tables: u64,
    /// Their peak.
    pub peak_tables: u64,
}

/// Raises the peak to `now` if that is higher.
pub fn raise(peak: &AtomicU64, now: u64) {
    if now > peak.load(Ordering::Relaxed) {
        peak.fetch_max(now, Ordering::Relaxed);
    }
}

impl ResidencyCounts {
    /// Adds a page.
    #[inline]
    pub fn page_mapped(&self, anonymous: bool) {
        let count = if anonymous { &self.anonymous } else { &self.file };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds `pages` of private memory.
    #[inline]
    pub fn anonymous_mapped(&self, pages: u64) {
        self.anonymous.fetch_add(pages, Ordering::Relaxed);
    }

    /// Adds pages.
    #[inline]
    pub fn pages_mapped(&self, pages: Residency) {
        for (count, pages) in self.of_kinds(pages) {
            // Most are of one kind.
            if pages != 0 {
                count.fetch_add(pages, Ordering::Relaxed);
            }
        }
    }

    /// The count of each kind, and these pages of it.
    #[inline]
    fn of_kinds(&self, pages: Residency) -> [(&AtomicU64, u64); 3] {
        [(&self.anonymous, pages.anonymous), (&self.file, pages.file), (&self.shmem, pages.shmem)]
    }

    /// Subtracts pages.
    #[inline]
    pub fn pages_unmapped(&self, pages: Residency) {
        // The peak is updated when the number is about to fall, not at each fault.
        raise(&self.peak_resident, self.resident());
        for (count, pages) in self.of_kinds(pages) {
            if pages != 0 {
                count.fetch_sub(pages, Ordering::Relaxed);
            }
        }
    }

    /// Adds `pages` whose entries became swap entries.
    #[inline]
    pub fn swapped_out(&self, pages: u64) {
        self.swapped.fetch_add(pages, Ordering::Relaxed);
    }

    /// Subtracts `pages` whose entries no longer are swap entries.
    #[inline]
    pub fn swap_gone(&self, pages: u64) {
        self.swapped.fetch_sub(pages, Ordering::Relaxed);
    }

    /// A page of this kind, in a private mapping of a file, became private to the program.
    #[inline]
    pub fn file_page_made_anonymous(&self, kind: Kind) {
        let count = if kind == Kind::Shmem { &self.shmem } else { &self.file };
        count.fetch_sub(1, Ordering::Relaxed);
        self.anonymous.fetch_add(1, Ordering::Relaxed);
    }

    /// Subtracts `pages` of private memory that a collapse replaces, right before what replaces them is
    /// added: they are never counted together. At least as many come as go, so the peak is left alone.
    pub fn pages_replaced(&self, pages: u64) {
        self.anonymous.fetch_sub(pages, Ordering::Relaxed);
    }

    /// Pages of private memory at this moment.
    #[inline]
    pub fn anonymous(&self) -> u64 {
        self.anonymous.load(Ordering::Relaxed)
    }

    fn resident(&self) -> u64 {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        of(&self.anonymous) + of(&self.file) + of(&self.shmem)
    }

    /// Adds a table.
    #[inline]
    pub fn table_made(&self) {
        let now = self.tables.fetch_add(1, Ordering::Relaxed) + 1;
        raise(&self.peak_tables, now);
    }

    /// Subtracts a table.
    #[inline]
    pub fn table_gone(&self) {
        self.tables.fetch_sub(1, Ordering::Relaxed);
    }

    /// The counts at this moment.
    #[inline]
    pub fn figures(&self) -> ResidencyFigures {
        raise(&self.peak_resident, self.resident());
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ResidencyFigures {
            anonymous: of(&self.anonymous),
            file: of(&self.file),
            shmem: of(&self.shmem),
            swapped: of(&self.swapped),
            peak_resident: of(&self.peak_resident),
            tables: of(&self.tables),
            peak_tables: of(&self.peak_tables),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_peak_of_resident_memory_is_what_was_there_before_it_fell() {
        let counts = ResidencyCounts::default();
        counts.pages_mapped(Residency { anonymous: 5, file: 2, shmem: 3 });
        counts.pages_unmapped(Residency { anonymous: 4, file: 1, shmem: 1 });
        counts.page_mapped(true);
        let figures = counts.figures();
        assert_eq!((figures.peak_resident, figures.anonymous + figures.file + figures.shmem), (10, 5));
    }
}

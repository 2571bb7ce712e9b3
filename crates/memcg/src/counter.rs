//! A number of pages with a limit, at one memcg. Charges go through the counters of all memcgs above.

use crate::peak::{MemcgPeak, Peaks};
use core::sync::atomic::AtomicU64 as PlainU64;
use quire_arch::PAGE_SHIFT;
use quire_sync::atomic::{AtomicU64, Ordering};

/// The value that means no limit, in pages; Linux's `PAGE_COUNTER_MAX`.
pub(crate) const UNLIMITED: u64 = i64::MAX as u64 >> PAGE_SHIFT;

/// Pages in use, and the most that may be.
#[derive(Debug)]
pub(crate) struct PageCounter {
    usage: AtomicU64,
    /// How often it rose from zero. Never decremented, so two reads show whether it was non-zero in between.
    rises: AtomicU64,
    max: PlainU64,
    peak: PlainU64,
    peaks: Peaks,
}

impl PageCounter {
    pub(crate) fn new() -> Self {
        Self {
            usage: AtomicU64::new(0),
            rises: AtomicU64::new(0),
            max: PlainU64::new(UNLIMITED),
            peak: PlainU64::new(0),
            peaks: Peaks::default(),
        }
    }

    /// As new.
    pub(crate) fn reset(&self) {
        self.usage.store(0, Ordering::Relaxed);
        self.max.store(UNLIMITED, Ordering::Relaxed);
        self.peak.store(0, Ordering::Relaxed);
        self.peaks.clear();
    }

    #[inline]
    pub(crate) fn usage(&self) -> u64 {
        self.usage.load(Ordering::Relaxed)
    }

    /// How often it rose from zero. What is read after this is read later.
    pub(crate) fn rises(&self) -> u64 {
        self.rises.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn max(&self) -> u64 {
        self.max.load(Ordering::Relaxed)
    }

    pub(crate) fn set_max(&self, pages: u64) {
        self.max.store(pages, Ordering::Relaxed);
    }

    fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Begins a new peak with the present usage. The caller has the lock of the memcgs.
    pub(crate) fn reset_peak(&self) -> MemcgPeak {
        self.peaks.reset(|| {
            let usage = self.usage();
            // A charge that is in it may find that this is noted already.
            self.peak.fetch_max(usage, Ordering::Relaxed);
            usage
        })
    }

    /// The most since that reset, or ever. The caller has the lock of the memcgs.
    pub(crate) fn peak_since(&self, since: Option<MemcgPeak>) -> u64 {
        since.map_or(self.peak(), |since| self.peaks.since(since))
    }

    /// Counts `pages` more, whatever the limit, and returns how many there are now.
    #[inline]
    pub(crate) fn add(&self, pages: u64) -> u64 {
        let now = self.usage.fetch_add(pages, Ordering::Relaxed) + pages;
        self.note_rise(now, pages);
        self.note_peak(now);
        now
    }

    /// Counts `pages` more if the limit allows it, and returns how many there are now. It adds first and
    /// checks afterwards, so two concurrent callers cannot both take the last pages; both may be refused.
    #[inline]
    pub(crate) fn try_add(&self, pages: u64) -> Option<u64> {
        let now = self.usage.fetch_add(pages, Ordering::Relaxed) + pages;
        // Also of a charge that fails: another one that comes meanwhile is on top of it, and sees no zero.
        self.note_rise(now, pages);
        if now > self.max() {
            self.sub(pages);
            return None;
        }
        self.note_peak(now);
        Some(now)
    }

    /// There are `now` pages, `more` than before.
    #[inline]
    fn note_rise(&self, now: u64, more: u64) {
        if now == more {
            // Release: a reader that sees this rise, and then no usage, sees it after this charge was undone.
            // Pairs with the load in `rises`.
            self.rises.fetch_add(1, Ordering::Release);
        }
    }

    #[inline]
    fn note_peak(&self, now: u64) {
        // No peak since a reset is above the one of all times.
        if self.peaks.note(now) {
            self.peak.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// Counts `pages` fewer, and returns how many are left.
    #[inline]
    pub(crate) fn sub(&self, pages: u64) -> u64 {
        // Release: a reader that finds nothing here any more finds what took its place elsewhere.
        let before = self.usage.fetch_sub(pages, Ordering::Release);
        debug_assert!(before >= pages, "{pages} pages are given back of {before} that were charged");
        before.wrapping_sub(pages)
    }
}

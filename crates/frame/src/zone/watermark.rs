//! Watermarks: how much of a zone stays free.

use crate::map::PAGEBLOCK_ORDER;
use quire_sync::atomic::raw::{AtomicU64, Ordering};

/// Levels of free frames in a zone. Below `low` background reclaim should start, up to `high`; below `min`
/// only reclaim itself may allocate.
///
/// Computed as Linux computes them: `min` is the zone's share of `min_free_kbytes`, which by default is the
/// square root of sixteen times the size of memory in KiB, and the steps above it are a quarter of `min`, or
/// a thousandth of the zone where that is more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Watermarks {
    /// An ordinary allocation does not take the zone below this.
    pub min: u64,
    /// Where background reclaim starts.
    pub low: u64,
    /// Where background reclaim ends.
    pub high: u64,
    /// What is added to `low` and `high` for a while, after memory was taken from another migratetype's
    /// blocks: reclaim then frees whole blocks before more of them are mixed.
    pub boost: u64,
}

/// Bounds of the default `min_free_kbytes`.
const MIN_FREE_KIB: (u64, u64) = (128, 256 << 10);
/// KiB in a base page.
const PAGE_KIB: u64 = 4;
/// Part of the zone, in ten-thousandths, that lies between two watermarks at least.
const SCALE: u64 = 10;
/// The boost's limit, in ten-thousandths of `high` (Linux's `watermark_boost_factor`).
const BOOST_FACTOR: u64 = 15_000;

/// The default `min_free_kbytes` of a machine with `managed` frames.
pub(crate) fn default_min_free_kib(managed: u64) -> u64 {
    (managed * PAGE_KIB * 16).isqrt().clamp(MIN_FREE_KIB.0, MIN_FREE_KIB.1)
}

impl Watermarks {
    /// The watermarks of a zone with `zone` managed frames out of `total`, where the whole machine keeps
    /// `min_free_kib` KiB.
    pub(crate) fn of_zone(zone: u64, total: u64, min_free_kib: u64) -> Self {
        let min_free = u128::from(min_free_kib / PAGE_KIB);
        let min = (min_free * u128::from(zone)).checked_div(u128::from(total)).unwrap_or(0) as u64;
        let step = (min / 4).max(zone * SCALE / 10_000);
        Self { min, low: min + step, high: min + 2 * step, boost: 0 }
    }

    /// What a zone with `free` free frames lacks to reach `high`, once it is below `low`. The marks may be
    /// read while a range of frames comes or goes, so that `low` is above `high`: then nothing, for this
    /// moment.
    pub(crate) fn lacking(&self, free: u64) -> u64 {
        if free >= self.low.saturating_add(self.boost) {
            return 0;
        }
        self.high.saturating_add(self.boost).saturating_sub(free)
    }
}

/// A zone's watermarks, as they are now. Readers may see old and new values mixed; each is valid by
/// itself.
#[derive(Debug, Default)]
pub(crate) struct Levels {
    min: AtomicU64,
    low: AtomicU64,
    high: AtomicU64,
    boost: AtomicU64,
    /// Frames that a request which could use a higher zone must leave here, on top of `min`.
    lowmem_reserve: AtomicU64,
}

impl Levels {
    #[inline]
    pub(crate) fn get(&self) -> Watermarks {
        Watermarks {
            min: self.min(),
            low: self.low.load(Ordering::Relaxed),
            high: self.high.load(Ordering::Relaxed),
            boost: self.boost.load(Ordering::Relaxed),
        }
    }

    #[inline]
    pub(crate) fn min(&self) -> u64 {
        self.min.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn lowmem_reserve(&self) -> u64 {
        self.lowmem_reserve.load(Ordering::Relaxed)
    }

    /// Sets all but the boost.
    pub(crate) fn set(&self, marks: Watermarks, lowmem_reserve: u64) {
        self.min.store(marks.min, Ordering::Relaxed);
        self.low.store(marks.low, Ordering::Relaxed);
        self.high.store(marks.high, Ordering::Relaxed);
        self.lowmem_reserve.store(lowmem_reserve, Ordering::Relaxed);
    }

    /// Raises the boost by `frames`, under the zone's lock. Its limit leaves room for a page block.
    pub(crate) fn raise_boost(&self, frames: u64) {
        // `min_free_kib` may be any number.
        let limit = u128::from(self.high.load(Ordering::Relaxed)) * u128::from(BOOST_FACTOR) / 10_000;
        let limit = u64::try_from(limit).unwrap_or(u64::MAX).max(PAGEBLOCK_ORDER.pages());
        let boost = self.boost.load(Ordering::Relaxed).saturating_add(frames);
        self.boost.store(boost.min(limit), Ordering::Relaxed);
    }

    /// Takes the boost away, under the zone's lock.
    pub(crate) fn clear_boost(&self) {
        self.boost.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Linux prints for a machine of 4 GiB: min_free_kbytes = 8192, shared by size.
    #[test]
    fn the_levels_are_those_of_linux() {
        let total = (4 << 30) >> 12;
        assert_eq!(default_min_free_kib(total), 8192);
        let marks = Watermarks::of_zone(total, total, 8192);
        assert_eq!((marks.min, marks.low, marks.high), (2048, 2048 + 1048, 2048 + 2096));
        let quarter = Watermarks::of_zone(total / 4, total, 8192);
        assert_eq!(quarter.min, 512);
        assert_eq!(Watermarks::of_zone(0, 0, 8192), Watermarks::default());
    }

    /// A hazard of docs/hazards.md: "watermarks are read while they change". The low one is of the larger
    /// zone, the high one of the smaller.
    #[test]
    fn marks_that_are_half_changed_ask_for_no_more_than_there_is() {
        let mixed = Watermarks { min: 362, low: 452, high: 384, boost: 0 };
        assert_eq!(mixed.lacking(400), 0);
        assert_eq!(mixed.lacking(300), 84);
        assert_eq!(mixed.lacking(452), 0);
        let boosted = Watermarks { boost: 512, ..mixed };
        assert_eq!((boosted.lacking(500), boosted.lacking(964)), (396, 0));
    }

    /// A configuration may ask for any number of KiB.
    #[test]
    fn any_minimum_has_levels_that_can_be_boosted() {
        let levels = Levels::default();
        levels.set(Watermarks::of_zone(1 << 15, 1 << 15, u64::MAX), 0);
        levels.raise_boost(512);
        assert_eq!(levels.get().boost, 512);
        assert!(levels.get().lacking(0) > levels.get().high);
    }

    #[test]
    fn a_boost_grows_to_its_limit_and_goes() {
        let levels = Levels::default();
        levels.set(Watermarks { min: 100, low: 150, high: 1000, boost: 0 }, 0);
        levels.raise_boost(512);
        assert_eq!(levels.get().boost, 512);
        levels.raise_boost(2048);
        assert_eq!(levels.get().boost, 1500);
        levels.clear_boost();
        assert_eq!(levels.get(), Watermarks { min: 100, low: 150, high: 1000, boost: 0 });
    }
}

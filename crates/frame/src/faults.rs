//! Failures on purpose.

use crate::request::AllocSite;
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Which allocations fail. Without a site, all sites count together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultPlan {
    /// None.
    Off,
    /// None, but they are counted.
    Count {
        /// Only these.
        site: Option<AllocSite>,
    },
    /// The `nth` from now, counting from 1, and no other.
    Nth {
        /// Only these.
        site: Option<AllocSite>,
        /// Which.
        nth: u64,
    },
    /// Each `period`th from now.
    Every {
        /// Only these.
        site: Option<AllocSite>,
        /// How many there are from one failure to the next; 1 fails all, 0 none.
        period: u64,
    },
}

const OFF: u32 = 0;
const COUNT: u32 = 1;
const NTH: u32 = 2;
const EVERY: u32 = 3;

/// The fault plan of a machine. While it is off an allocation pays one relaxed load.
///
/// A plan is set on a quiet machine or by the one thread that allocates: allocations that run during the change
/// may see a mixture of the old plan and the new.
#[derive(Debug)]
pub struct Faults {
    mode: AtomicU32,
    site: AtomicU64,
    number: AtomicU64,
    seen: AtomicU64,
    failed: AtomicU64,
}

impl Faults {
    pub(crate) fn new() -> Self {
        Self {
            mode: AtomicU32::new(OFF),
            site: AtomicU64::new(0),
            number: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    /// Replaces the plan and starts counting from zero.
    pub fn set(&self, plan: FaultPlan) {
        let (mode, site, number) = match plan {
            FaultPlan::Off => (OFF, None, 0),
            FaultPlan::Count { site } => (COUNT, site, 0),
            FaultPlan::Nth { site, nth } => (NTH, site, nth),
            FaultPlan::Every { site, period } => (EVERY, site, period),
        };
        self.mode.store(OFF, Ordering::Relaxed);
        self.site.store(site.map_or(0, AllocSite::id), Ordering::Relaxed);
        self.number.store(number, Ordering::Relaxed);
        self.seen.store(0, Ordering::Relaxed);
        self.failed.store(0, Ordering::Relaxed);
        // Pairs with the acquiring load in `count`: who sees the mode sees the rest of the plan.
        self.mode.store(mode, Ordering::Release);
    }

    /// Allocations that the plan counted since it was set.
    pub fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    /// Of these, those that it made fail.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Whether the allocation at `site` that is about to happen must fail.
    #[inline]
    pub(crate) fn strikes(&self, site: AllocSite) -> bool {
        self.mode.load(Ordering::Relaxed) != OFF && self.count(site)
    }

    #[cold]
    fn count(&self, site: AllocSite) -> bool {
        let mode = self.mode.load(Ordering::Acquire);
        let wanted = self.site.load(Ordering::Relaxed);
        if wanted != 0 && wanted != site.id() {
            return false;
        }
        let turn = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        let number = self.number.load(Ordering::Relaxed);
        let strikes = match mode {
            NTH => turn == number,
            EVERY => number != 0 && turn.is_multiple_of(number),
            _ => false,
        };
        if strikes {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        strikes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: AllocSite = AllocSite::new("one");
    const OTHER: AllocSite = AllocSite::new("other");

    #[test]
    fn plans_aim_at_a_site_and_a_turn() {
        let faults = Faults::new();
        assert!(!faults.strikes(ONE));
        assert_eq!(faults.seen(), 0);
        faults.set(FaultPlan::Nth { site: Some(ONE), nth: 2 });
        let hits = [ONE, OTHER, ONE, ONE].map(|site| faults.strikes(site));
        assert_eq!(hits, [false, false, true, false]);
        assert_eq!((faults.seen(), faults.failed()), (3, 1));
        faults.set(FaultPlan::Every { site: None, period: 2 });
        let hits = [ONE, OTHER, ONE, OTHER].map(|site| faults.strikes(site));
        assert_eq!(hits, [false, true, false, true]);
        faults.set(FaultPlan::Every { site: None, period: 0 });
        assert!(!faults.strikes(ONE));
        faults.set(FaultPlan::Off);
        assert!(!faults.strikes(ONE));
    }
}

//! Fail points: places where an operation can be made to fail.
//!
//! Whatever can fail asks the machine's [`FailPoints`] first, and fails if the [`FailPlan`] says so. Debug
//! builds also record the calling line: there the allocator's entry points carry `track_caller`, and so do
//! the functions between them and the callers that undo a failure.

mod callers;
mod plan;

pub use callers::FailCaller;
pub use plan::{FailAim, FailClass, FailPlan, FailSite};

use callers::Callers;
use core::panic::Location;
use plan::{Operation, Rule, seed_strikes};
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering};

const OFF: u32 = 0;
const COUNT: u32 = 1;
const NTH: u32 = 2;
const EVERY: u32 = 3;
const SEEDED: u32 = 4;

/// The fail points of a machine, and the plan that they follow. While it is off an operation pays one relaxed
/// load.
///
/// A plan is set on a quiet machine or by the one thread that allocates: operations that run during the
/// change may see a mixture of the old plan and the new.
#[derive(Debug)]
pub struct FailPoints {
    mode: AtomicU32,
    aim: AtomicU64,
    /// The turn, the period, or the probability.
    number: AtomicU64,
    seed: AtomicU64,
    seen: AtomicU64,
    failed: AtomicU64,
    callers: Callers,
}

impl FailPoints {
    pub(crate) fn new() -> Self {
        Self {
            mode: AtomicU32::new(OFF),
            aim: AtomicU64::new(0),
            number: AtomicU64::new(0),
            seed: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            callers: Callers::new(),
        }
    }

    /// Replaces the plan. All counts start at zero, unless the new plan is [`FailPlan::OFF`]: then they stay
    /// to be read.
    pub fn set(&self, plan: FailPlan) {
        self.mode.store(OFF, Ordering::Relaxed);
        let (mode, number, seed) = match plan.rule {
            Rule::Off => return,
            Rule::Count => (COUNT, 0, 0),
            Rule::Nth(nth) => (NTH, nth, 0),
            Rule::Every(period) => (EVERY, period, 0),
            Rule::Seeded { seed, per_mille } => (SEEDED, u64::from(per_mille), seed),
        };
        self.aim.store(plan.aim.id(), Ordering::Relaxed);
        self.number.store(number, Ordering::Relaxed);
        self.seed.store(seed, Ordering::Relaxed);
        self.seen.store(0, Ordering::Relaxed);
        self.failed.store(0, Ordering::Relaxed);
        self.callers.reset();
        // Pairs with the acquiring load in `count`: a CPU that sees the mode sees the rest of the plan.
        self.mode.store(mode, Ordering::Release);
    }

    /// Operations that the last plan counted.
    pub fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    /// Of these, those that it made fail.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// The same by call site. Empty in release builds.
    pub fn callers(&self) -> impl Iterator<Item = FailCaller> {
        self.callers.iter()
    }

    /// Operations that found no room in the table of [`callers`](Self::callers).
    pub fn callers_lost(&self) -> u64 {
        self.callers.lost()
    }

    /// Whether the operation that is about to happen must fail.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn strikes(&self, class: FailClass, site: FailSite) -> bool {
        self.mode.load(Ordering::Relaxed) != OFF && self.count(class, site)
    }

    #[cold]
    #[cfg_attr(debug_assertions, track_caller)]
    fn count(&self, class: FailClass, site: FailSite) -> bool {
        let mode = self.mode.load(Ordering::Acquire);
        // Called, not handed on: as a value `Location::caller` would not know its caller.
        let caller = if cfg!(debug_assertions) { Some(Location::caller()) } else { None };
        let operation = Operation { class, site, caller };
        if !operation.is_meant_by(self.aim.load(Ordering::Relaxed)) {
            return false;
        }
        let turn = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        let number = self.number.load(Ordering::Relaxed);
        let strikes = match mode {
            NTH => turn == number,
            EVERY => number != 0 && turn.is_multiple_of(number),
            SEEDED => seed_strikes(self.seed.load(Ordering::Relaxed), turn, number),
            _ => false,
        };
        if strikes {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        self.callers.note(&operation, strikes);
        strikes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const ONE: FailSite = FailSite::new("one");
    const OTHER: FailSite = FailSite::new("other");

    fn hits<const N: usize>(points: &FailPoints, sites: [FailSite; N]) -> [bool; N] {
        sites.map(|site| points.strikes(FailClass::Frames, site))
    }

    #[test]
    fn plans_aim_at_a_site_and_a_turn() {
        let points = FailPoints::new();
        assert_eq!(hits(&points, [ONE]), [false]);
        assert_eq!(points.seen(), 0);
        points.set(FailPlan::nth(2).at(FailAim::Site(ONE)));
        assert_eq!(hits(&points, [ONE, OTHER, ONE, ONE]), [false, false, true, false]);
        assert_eq!((points.seen(), points.failed()), (3, 1));
        points.set(FailPlan::every(2));
        assert_eq!(hits(&points, [ONE, OTHER, ONE, OTHER]), [false, true, false, true]);
        points.set(FailPlan::every(0));
        assert_eq!(hits(&points, [ONE]), [false]);
        points.set(FailPlan::COUNT);
        assert_eq!(hits(&points, [ONE, OTHER]), [false, false]);
        points.set(FailPlan::OFF);
        assert_eq!(hits(&points, [ONE]), [false]);
        assert_eq!((points.seen(), points.failed()), (2, 0), "the counts of the last plan stay");
    }

    #[test]
    fn plans_aim_at_a_class() {
        let points = FailPoints::new();
        points.set(FailPlan::every(1).at(FailAim::Class(FailClass::Object)));
        assert!(!points.strikes(FailClass::Frames, ONE));
        assert!(points.strikes(FailClass::Object, ONE));
        assert_eq!(points.seen(), 1);
    }

    #[test]
    fn a_seed_fails_the_same_turns_again() {
        let points = FailPoints::new();
        let turns = |seed, per_mille| {
            points.set(FailPlan::seeded(seed, per_mille));
            let turns = (0..4000).filter(|_| points.strikes(FailClass::Frames, ONE)).collect::<Vec<_>>();
            assert_eq!(turns.len() as u64, points.failed());
            turns
        };
        assert_eq!(turns(7, 100), turns(7, 100));
        assert_ne!(turns(7, 100), turns(8, 100));
        assert!((300..500).contains(&turns(7, 100).len()), "{} of 4000 are not a tenth", turns(7, 100).len());
        assert_eq!(turns(7, 0).len(), 0);
        assert_eq!(turns(7, 1000).len(), 4000);
    }

    #[test]
    fn callers_are_told_apart_by_line_and_site() {
        if !cfg!(debug_assertions) {
            return;
        }
        let points = FailPoints::new();
        let ask = |site| points.strikes(FailClass::Object, site);
        points.set(FailPlan::nth(3));
        for site in [ONE, OTHER, ONE, ONE] {
            ask(site);
        }
        let here = points.strikes(FailClass::Object, ONE);
        assert!(!here);
        let callers: Vec<_> = points.callers().map(|c| (c.site, c.seen, c.failed)).collect();
        assert_eq!(callers, [("one", 3, 1), ("other", 1, 0), ("one", 1, 0)]);
        let [asked, .., last] = points.callers().collect::<Vec<_>>()[..] else { panic!("three callers") };
        assert!(
            asked.location.file().ends_with("fail_points/mod.rs")
                && asked.location.line() < last.location.line()
        );

        let line = FailAim::Line { file: asked.location.file(), line: asked.location.line() };
        points.set(FailPlan::every(1).at(line));
        assert!(!points.strikes(FailClass::Object, ONE));
        assert!(ask(OTHER));
        assert_eq!((points.seen(), points.failed(), points.callers_lost()), (1, 1, 0));
        assert_eq!(points.callers().count(), 1, "a caller without a request since has no count");
    }

    #[test]
    fn a_full_table_says_so() {
        if !cfg!(debug_assertions) {
            return;
        }
        let points = FailPoints::new();
        points.set(FailPlan::COUNT);
        let names: Vec<&'static str> =
            (0..130).map(|n| &*std::boxed::Box::leak(std::format!("site {n}").into_boxed_str())).collect();
        for name in names {
            points.strikes(FailClass::Object, FailSite::new(name));
        }
        assert_eq!((points.seen(), points.callers().count(), points.callers_lost()), (130, 128, 2));
    }
}

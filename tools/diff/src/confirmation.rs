//! When a difference is one: the same program is run again, and others use the host meanwhile.

use crate::linux::Disturbance;
use crate::verdict::{Mismatch, Verdict};

/// How often a program that differs is run again where Linux disturbed the run, before that is taken for a
/// difference.
const DISTURBED: u32 = 5;
/// How often a program that differs is run again before the difference is reported.
const REPEATS: u32 = 3;
/// How often it is run again where that left open whether it differs.
const UNDECIDED: u32 = 20;

/// When a difference counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Belief {
    /// At once, unless Linux disturbed the run.
    Once,
    /// When the program also differs each time that it is run again.
    Repeated,
}

/// Runs of one program, until it is clear whether it differs.
///
/// A run in which the sides are alike decides that it does not. Where every run differs, and Linux disturbed
/// them so that this proves nothing, it stays open in the end: that is no agreement, and is reported.
#[derive(Debug)]
pub(crate) struct Confirmation {
    belief: Belief,
    /// Runs that have to differ yet.
    repeats: u32,
    /// Runs that Linux may still disturb.
    disturbed: u32,
    /// Runs that may still leave it open.
    undecided: u32,
    /// Runs that were made.
    made: u32,
    /// The first difference of a run that was not disturbed.
    first: Option<Mismatch>,
    /// The first difference of all, without what the host did meanwhile.
    seen: Option<Mismatch>,
    /// There was another one.
    varies: bool,
}

impl Confirmation {
    pub(crate) fn new(belief: Belief) -> Self {
        let repeats = if belief == Belief::Repeated { REPEATS } else { 0 };
        Self {
            belief,
            repeats,
            disturbed: DISTURBED,
            undecided: UNDECIDED,
            made: 0,
            first: None,
            seen: None,
            varies: false,
        }
    }

    /// Whether the program has to be run again after one run of it. Else `verdict` is completed: with what
    /// Linux did meanwhile, with a difference that did not show again, or with one that is not confirmed.
    pub(crate) fn wants_another(
        &mut self,
        verdict: &mut Verdict,
        disturbed: Disturbance,
        told: &str,
    ) -> bool {
        self.made += 1;
        let Some(mismatch) = &mut verdict.mismatch else {
            verdict.unconfirmed = self.first.take().or(self.seen.take());
            return false;
        };
        self.varies |= self.seen.get_or_insert_with(|| mismatch.clone()) != mismatch;
        if !told.is_empty() {
            mismatch.what.push_str(&format!("\nThe host meanwhile: {told}"));
        }
        if disturbed != Disturbance::None && self.disturbed > 0 {
            self.disturbed -= 1;
            return true;
        }
        // Where others are at work all the time, a difference of the sides is still the same each time.
        if disturbed == Disturbance::Setting || disturbed == Disturbance::Linux && self.varies {
            return self.is_open(verdict);
        }
        self.first.get_or_insert_with(|| mismatch.clone());
        let again = self.repeats > 0;
        self.repeats = self.repeats.saturating_sub(1);
        again
    }

    /// Whether a program is run again of which it is open whether it differs.
    fn is_open(&mut self, verdict: &mut Verdict) -> bool {
        if self.belief == Belief::Once {
            // A smaller program that may not differ is of no use.
            verdict.unconfirmed = verdict.mismatch.take();
            return false;
        }
        if self.undecided > 0 {
            self.undecided -= 1;
            return true;
        }
        if let Some(mismatch) = &mut verdict.mismatch {
            let made = self.made;
            mismatch.what.insert_str(
                0,
                &format!(
                    "not confirmed: each of {made} runs differed, and in each something else or a setting of the host \
                     changed; run it again on a host that is not busy.\n"
                ),
            );
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes runs that differ or not, in the step that is named, and are disturbed or not, as long as another
    /// one is wanted; returns how many were made, and the last verdict.
    fn runs(belief: Belief, differ: impl Fn(usize) -> (Option<usize>, Disturbance)) -> (usize, Verdict) {
        let mut confirmation = Confirmation::new(belief);
        let mut made = 0;
        loop {
            let (step, disturbed) = differ(made);
            made += 1;
            let mismatch = step.map(|step| Mismatch { step, what: "value".to_owned() });
            let mut verdict = Verdict { mismatch, ..Verdict::default() };
            let told = if disturbed == Disturbance::None { "" } else { "pgsteal_kswapd +1" };
            if !confirmation.wants_another(&mut verdict, disturbed, told) {
                return (made, verdict);
            }
        }
    }

    #[test]
    fn a_difference_is_told_when_it_shows_each_time() {
        let (made, verdict) = runs(Belief::Repeated, |run| (Some(run), Disturbance::None));
        assert_eq!((made, verdict.mismatch.is_some()), (1 + REPEATS as usize, true));
        let (made, verdict) = runs(Belief::Once, |_| (Some(1), Disturbance::None));
        assert_eq!((made, verdict.mismatch.is_some()), (1, true));
        let (made, verdict) = runs(Belief::Repeated, |_| (None, Disturbance::Linux));
        assert_eq!((made, verdict.mismatch, verdict.unconfirmed), (1, None, None));
    }

    #[test]
    fn one_that_does_not_show_again_is_kept_beside() {
        let (made, verdict) = runs(Belief::Repeated, |run| ((run < 2).then_some(run), Disturbance::None));
        assert_eq!((made, verdict.mismatch), (3, None));
        assert_eq!(verdict.unconfirmed, Some(Mismatch { step: 0, what: "value".to_owned() }));
    }

    #[test]
    fn disturbed_runs_count_for_nothing_until_there_are_too_many() {
        let early = |run| {
            let disturbed = if run < 4 { Disturbance::Linux } else { Disturbance::None };
            ((run < 4).then_some(run), disturbed)
        };
        let (made, verdict) = runs(Belief::Repeated, early);
        assert_eq!((made, verdict.mismatch), (5, None));
        assert!(verdict.unconfirmed.is_some(), "it is told");
        let (made, verdict) = runs(Belief::Repeated, |_| (Some(7), Disturbance::Linux));
        assert_eq!(made, (DISTURBED + 1 + REPEATS) as usize);
        assert!(
            verdict
                .mismatch
                .is_some_and(|found| found.what.ends_with("The host meanwhile: pgsteal_kswapd +1"))
        );
    }

    /// Beside a program that is paged out all the time each run is disturbed.
    #[test]
    fn what_differs_in_another_way_each_time_on_a_busy_host_is_not_confirmed_and_no_agreement() {
        let all = 1 + DISTURBED + UNDECIDED;
        for disturbed in [Disturbance::Linux, Disturbance::Setting] {
            let (made, verdict) = runs(Belief::Repeated, |run| (Some(run), disturbed));
            assert_eq!(made, all as usize);
            let what = verdict.mismatch.map(|found| found.what).unwrap_or_default();
            assert!(what.starts_with(&format!("not confirmed: each of {all} runs differed")), "{what}");
        }
        // The last one decides.
        let last = |run| ((run < all as usize - 1).then_some(run), Disturbance::Linux);
        let (made, verdict) = runs(Belief::Repeated, last);
        assert_eq!((made, verdict.mismatch), (all as usize, None));
        assert_eq!(verdict.unconfirmed.map(|found| found.step), Some(0), "it is told");
    }

    #[test]
    fn a_run_in_which_a_setting_was_changed_makes_no_program_smaller() {
        let (made, verdict) = runs(Belief::Once, |_| (Some(1), Disturbance::Setting));
        assert_eq!((made, verdict.mismatch.is_none()), (1 + DISTURBED as usize, true));
        assert!(verdict.unconfirmed.is_some());
    }
}

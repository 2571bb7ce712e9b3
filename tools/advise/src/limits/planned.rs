//! The replays that a sweep makes for limits, and limits that are asked for in bytes.

use super::figures::LimitRow;
use super::setting::{LimitSetting, Need, spread};
use super::{LimitReplay, POINTS, Trial};
use crate::error::AdviseError;
use crate::jobs::in_parallel;
use crate::less::LimitOutcome;
use crate::point::{Amount, Meant, Point};
use crate::source::if_stored;
use crate::swap::LimitSwap;
use std::collections::BTreeSet;

/// A replay that a sweep makes for a limit.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) point: Point,
    /// The kinds of swap for which it has a row; none of a point of a curve.
    pub(crate) serves: Vec<LimitSwap>,
}

impl Trial<'_> {
    /// The replays that are made for each such program, of which recording; with those of its curve if it
    /// fits where that ends, with either kind of swap.
    pub(crate) fn planned(&self, need: Need) -> Vec<(usize, Planned)> {
        let mut jobs = self.jobs(need);
        jobs.sort_unstable();
        jobs.dedup();
        let swaps = self.swaps();
        let rows = jobs.iter().map(|job| {
            let limit = LimitSetting::new(need, job.percent, LimitSwap::Disk).bytes;
            // Where only fitting is asked for, one replay serves all kinds of swap.
            let serves =
                swaps.iter().copied().filter(|swap| job.swap.is_none_or(|it| it == swap.replayed_as()));
            (job.recording, Planned { point: self.point(*job, limit, need), serves: serves.collect() })
        });
        let kinds: BTreeSet<LimitSwap> = swaps.iter().map(|swap| swap.replayed_as()).collect();
        let lowest = self.ends(need).first().copied();
        let percents = lowest.map_or(Vec::new(), |lowest| spread(lowest, POINTS));
        let curve = percents.iter().flat_map(|&percent| {
            let middle = self.middle(percent, need);
            kinds.iter().map(move |&swap| LimitReplay::new(middle, percent, Some(swap)))
        });
        let curve = curve.filter(|job| !jobs.contains(job)).map(|job| {
            let limit = LimitSetting::new(need, job.percent, LimitSwap::Disk).bytes;
            (job.recording, Planned { point: self.point(job, limit, need), serves: Vec::new() })
        });
        let amounts = self.tries.amounts.iter().flat_map(|&amount| self.of_amount(need, amount, &swaps));
        rows.chain(curve).chain(amounts.map(|(_, recording, planned)| (recording, planned))).collect()
    }

    /// Whether the recordings say what this much memory costs.
    fn knows_amount(&self, need: Need, amount: Amount) -> bool {
        let anonymous = amount.bytes().saturating_sub(need.stays);
        self.known_from().is_some_and(|least| anonymous >= least)
    }

    /// The replays for an amount of memory in bytes, each with whether it is for a kind of swap of its own,
    /// and its recording.
    fn of_amount(
        &self,
        need: Need,
        amount: Amount,
        swaps: &[LimitSwap],
    ) -> Vec<(Option<LimitSwap>, usize, Planned)> {
        let known = self.knows_amount(need, amount);
        let mut kinds: Vec<Option<LimitSwap>> =
            swaps.iter().map(|swap| known.then(|| swap.replayed_as())).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let less = match amount {
            Amount::Limit(bytes) if known => Amount::Limit(bytes.saturating_sub(self.peak.shared)),
            other => other,
        };
        let serving = self.serving_bytes(amount.bytes(), need);
        let each = kinds.into_iter().flat_map(|kind| serving.iter().map(move |&recording| (kind, recording)));
        let planned = |(swap, recording): (Option<LimitSwap>, usize)| {
            let serves = swaps.iter().copied().filter(|it| swap.is_none_or(|swap| swap == it.replayed_as()));
            let asked = self.less(recording, (less, Meant::Amount(amount)), swap, need);
            (swap, recording, Planned { point: self.asking(recording, asked), serves: serves.collect() })
        };
        each.map(planned).collect()
    }

    /// What so much memory does, with each kind of swap.
    pub(super) fn amounts(
        &self,
        need: Need,
        swaps: &[LimitSwap],
        not_kept: bool,
    ) -> Result<Vec<(Amount, LimitSwap, LimitRow)>, AdviseError> {
        let mut rows = Vec::new();
        for &amount in &self.tries.amounts {
            let asked = self.of_amount(need, amount, swaps);
            let known = self.knows_amount(need, amount) && !not_kept;
            let found = in_parallel(&asked, self.at_once, &|_, _| {}, |(_, recording, planned)| {
                if_stored(self.recordings[*recording].source.less(&planned.point))
            })?;
            for &swap in swaps {
                let mine =
                    asked.iter().zip(&found).filter(|((_, _, planned), _)| planned.serves.contains(&swap));
                let outcomes: Option<Vec<&LimitOutcome>> = mine.map(|(_, found)| found.as_deref()).collect();
                if let Some(outcomes) = outcomes.filter(|outcomes| !outcomes.is_empty()) {
                    rows.push((amount, swap, LimitRow::of(&outcomes, swap, known)));
                }
            }
        }
        Ok(rows)
    }
}

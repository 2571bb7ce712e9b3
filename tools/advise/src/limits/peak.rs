//! What a recording under pressure tells without a limit, and from which limit on it tells what that costs.

use super::{LimitSetting, Recorded, Trial};
use crate::error::AdviseError;
use crate::less::{PeakFound, stayed};
use crate::point::{Asked, Point};
use quire_replay::PeakUse;

/// A share of the pressure, as a divisor: from so little on what processes share has room of its own within
/// each limit, by so much it may be more than the pressure, and so much the others have at least.
const KEPT_SHARE: u64 = 8;
/// And from so much on in any case, in bytes.
const MUCH_SHARED: u64 = 1 << 20;

/// What a recording under pressure tells without a limit.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct TrialPeak {
    /// The shares of the peak of anonymous memory that are not used again, at least and at most. None where
    /// no recording tells, none of a sample, and none where too much was never paged out.
    pub(crate) unused: Option<[f64; 2]>,
    /// [`Limits::shared_after_fork`](super::Limits::shared_after_fork).
    pub(super) shared: u64,
}

/// Whether this is more than a recorder that is to leave `kept` bytes leaves in any case.
fn is_beyond(shared: u64, kept: u64) -> bool {
    shared > kept.saturating_add(kept / KEPT_SHARE)
}

impl Trial<'_> {
    /// Learns of the peak, from the recording of middle size.
    pub(crate) fn look_at_peak(&mut self) -> Result<(), AdviseError> {
        self.peak = self.peak()?;
        Ok(())
    }

    /// The recordings that can tell of the peak.
    pub(crate) fn all_telling(&self) -> Vec<usize> {
        (0..self.recordings.len()).filter(|&place| self.recordings[place].knows_from.is_some()).collect()
    }

    /// The recording that tells of the peak, by its place: that of middle size. None if no recording tells.
    fn telling(&self) -> Option<usize> {
        let mut telling = self.all_telling();
        // Of stored results some may be missing.
        let has = |&place: &usize| {
            let stored = self.recordings[place].source.stored();
            stored.is_none_or(|stored| stored.has(&self.peak_point()))
        };
        if telling.iter().any(has) {
            telling.retain(has);
        }
        telling.sort_by_key(|&place| self.recordings[place].source.events);
        telling.get(telling.len() / 2).copied()
    }

    /// The replay that tells it.
    pub(crate) fn peak_point(&self) -> Point {
        Point { setting: self.present.clone(), phase: None, kernel: self.kernel, asked: Asked::PeakUse }
    }

    fn peak(&self) -> Result<TrialPeak, AdviseError> {
        let telling = self.telling().map(|place| &self.recordings[place]);
        let Some(Recorded { source, knows_from: Some(kept), pressure, .. }) = telling else {
            return Ok(TrialPeak::default());
        };
        let PeakFound { used, stays } = source.peak_use(&self.peak_point())?;
        let PeakUse { peak, used, shared } = used;
        // It never goes out, so that it is no part of what rotates, however much the recorder leaves. What a
        // fork shares of a small program changes nothing.
        let is_much = pressure.is_some() && shared >= MUCH_SHARED.min(kept / KEPT_SHARE).max(1);
        let shared = if is_much { shared } else { 0 };
        let is_sample = pressure.is_some_and(|pressure| pressure.is_sample());
        if is_sample || is_beyond(shared, *kept) || stayed(*pressure, &stays, 0) > 0 {
            return Ok(TrialPeak { unused: None, shared });
        }
        let all = peak.max(1) as f64;
        let most = (1.0 - used as f64 / all).max(0.0);
        // What the recorder leaves in memory is used without a page fault, and so is what it cannot page out.
        let left = (*kept).max(shared) as f64;
        Ok(TrialPeak { unused: Some([(most - left / all).max(0.0), most]), shared })
    }

    /// What processes share since a fork, if it is more than what the recorder leaves in any case, in bytes.
    pub(super) fn shared_beyond(&self) -> u64 {
        let is_beyond = self.knows_from().is_some_and(|kept| is_beyond(self.peak.shared, kept));
        if is_beyond { self.peak.shared } else { 0 }
    }

    /// From how much room for anonymous memory on all recordings say what a limit costs. What processes share
    /// is in memory as well, as if it was always in use. The others had the rest of what was left, and need
    /// some.
    pub(super) fn known_from(&self) -> Option<u64> {
        let kept = self.knows_from()?;
        let (shared, beyond) = (self.peak.shared, self.shared_beyond());
        let with_others = if shared > 0 { shared.saturating_add(kept / KEPT_SHARE) } else { 0 };
        Some(kept.saturating_add(beyond).max(with_others))
    }

    /// Whether the recordings say what this limit costs. Where all fits, nothing is paged out.
    pub(super) fn knows(&self, setting: &LimitSetting) -> bool {
        let is_all = self.peak.shared > 0 && setting.percent >= 100;
        self.known_from().is_some_and(|least| is_all || setting.resident_anonymous() >= least)
    }

    /// What of a limit is for memory of which uses are known.
    pub(super) fn without_shared(&self, percent: u32, limit: u64) -> u64 {
        if percent >= 100 { limit } else { limit.saturating_sub(self.peak.shared) }
    }
}

//! What a limit of memory would do: replays within the limit of a memory group, with swap behind it.
//!
//! - `setting`: the limits that are tried.
//! - `stall`: what pages that go out and come back cost.
//! - `figures`: figures of several replays.
//! - `peak`: what a recording under pressure tells without a limit, and from which limit on it tells the
//!   cost.
//! - `enough`: how much memory is enough.
//! - `best`: which swap serves a program best.
//! - `planned`: the replays of a sweep, and limits in bytes.
//! - `commands`: what applies a limit and undoes it.

mod best;
mod commands;
mod enough;
mod figures;
mod peak;
mod planned;
mod setting;
mod stall;

pub use commands::Means;
pub use enough::{Enough, Priced};
pub use figures::{LimitFigures, LimitRow};
pub(crate) use peak::TrialPeak;
pub use setting::{LimitSetting, Need, Tries};

use crate::error::AdviseError;
use crate::jobs::{Progress, in_parallel};
use crate::less::{LimitOutcome, Missing, stayed};
use crate::point::{Amount, Asked, Less, Meant, Point};
use crate::range::Range;
use crate::setting::{Setting, phases};
use crate::source::{Source, if_stored};
use crate::swap::LimitSwap;
use best::{best, without_pool};
use quire_replay::KernelCosts;
use quire_trace::format::{Pressure, TraceHeader, UseSource};
use setting::{grid, spread};
use std::collections::BTreeMap;

/// Whether such a recording says which pages were used again and when, so that a replay within a limit finds
/// the faults that Linux would have: it was made under pressure, or has each use.
#[must_use]
pub fn predicts_limits(header: &TraceHeader) -> bool {
    pressure(header).is_some()
}

/// The smallest limit, in bytes, for which such a recording says that. None if it does for no limit.
pub(crate) fn pressure(header: &TraceHeader) -> Option<u64> {
    match header.uses {
        UseSource::Exact => Some(0),
        UseSource::Pressure => header.pressure.map(|pressure| pressure.bytes),
        _ => None,
    }
}

/// What limits of memory would do.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Limits {
    /// The recordings say what a limit costs ([`predicts_limits`]); otherwise only whether the program fits.
    pub known: bool,
    /// Of how many recordings.
    pub recordings: usize,
    /// In some of them the program was shown a limit, as programs that read their limit need: each limit is
    /// predicted from those whose limit is nearest to it.
    pub shown: bool,
    /// The kinds of swap that the host cannot set up, each with the reason: no limit is tried with them.
    pub lacking: Vec<(LimitSwap, String)>,
    /// Memory, in bytes, that several processes share and that was not paged out for that: its later uses are
    /// not known, so that each limit has room for all of it. 0 where it is little.
    pub shared_after_fork: u64,
    /// What the program needs: limits are shares of its anonymous memory, with what stays beside that.
    pub need: Need,
    /// Each limit with each kind of swap, of all recordings.
    pub rows: Vec<(LimitSetting, LimitRow)>,
    /// Limits in bytes, and RAM of machines, with each kind of swap, if such were asked for.
    pub amounts: Vec<(Amount, LimitSwap, LimitRow)>,
    /// Limits from the peak down to where the program no longer fits, with the best kind of swap; of one
    /// recording, that of middle size. Empty where nothing is known.
    pub curve: Vec<(LimitSetting, LimitRow)>,
    /// How much memory is enough.
    pub enough: Option<Enough>,
    /// Page faults and calls that were lost, of the recording in which most were; of them those whose events
    /// Linux removed.
    pub lost: u64,
    /// Of these, page faults of programs with other privileges.
    pub unheard: u64,
    /// Why no limit can be told though one would be enough, or none is known: too much of it is not known.
    pub unknown: Option<String>,
}

impl Limits {
    /// All rows, the curve's last.
    pub fn all(&self) -> impl Iterator<Item = (&LimitSetting, &LimitRow)> {
        self.rows.iter().chain(&self.curve).map(|(setting, row)| (setting, row))
    }
}

/// The share of a recording's events that may be lost.
const MOST_LOST: f64 = 0.03;
/// Points of a curve.
const POINTS: u32 = 10;
/// Where a curve ends: the first of these within which the program fits, or else the smallest such of the
/// grid.
const ENDS: [u32; 2] = [10, 25];
/// How many times the peak of anonymous memory the swap holds: more than can be out, with what is in memory
/// as well.
const SWAP_PEAKS: u64 = 4;
/// A swap device has at least so much.
const LEAST_SWAP: u64 = 64 << 20;

/// The size of the swap behind limits that are shares of this peak: whole MiB.
pub(crate) fn swap_bytes(peak: u64) -> u64 {
    peak.saturating_mul(SWAP_PEAKS).max(LEAST_SWAP).next_multiple_of(1 << 20)
}

/// A recording that says something of limits.
#[derive(Debug)]
pub(crate) struct Recorded<'a> {
    pub(crate) source: &'a Source,
    /// The smallest limit for which it says what that costs ([`pressure`]).
    pub(crate) knows_from: Option<u64>,
    /// The pressure that it was made under.
    pub(crate) pressure: Option<Pressure>,
    /// The limit that the program was shown.
    pub(crate) shown: Option<u64>,
    /// The phase of khugepaged, if results were made in one.
    pub(crate) phase: Option<usize>,
}

/// Replays within limits, for one program.
#[derive(Debug)]
pub(crate) struct Trial<'a> {
    pub(crate) recordings: Vec<Recorded<'a>>,
    /// The setting that they are replayed under: the present one.
    pub(crate) present: Setting,
    /// What the kernel keeps, if that was measured.
    pub(crate) kernel: Option<KernelCosts>,
    /// The limits that are tried.
    pub(crate) tries: &'a Tries,
    /// The kinds of swap that the host cannot set up, each with the reason.
    pub(crate) lacking: Vec<(LimitSwap, String)>,
    pub(crate) at_once: usize,
    /// What was learned of the peak, if recordings tell.
    pub(crate) peak: TrialPeak,
}

/// What a program does without a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Basis {
    pub(crate) need: Need,
    /// The most of touched pages of files, in bytes.
    pub(crate) files: u64,
    /// The program's own time: without what the recorder took of it, up to the recorded time.
    pub(crate) seconds: Range,
}

/// One replay of a recording.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct LimitReplay {
    recording: usize,
    percent: u32,
    /// What takes the pages; where only fitting is asked for, anything does.
    swap: Option<LimitSwap>,
}

impl LimitReplay {
    fn new(recording: usize, percent: u32, swap: Option<LimitSwap>) -> Self {
        Self { recording, percent, swap: swap.map(LimitSwap::replayed_as) }
    }
}

/// What was replayed so far.
struct Tried<'t> {
    trial: &'t Trial<'t>,
    need: Need,
    outcomes: BTreeMap<LimitReplay, LimitOutcome>,
    progress: Progress<'t>,
}

impl Tried<'_> {
    /// Replays what is missing.
    fn all(&mut self, mut jobs: Vec<LimitReplay>) -> Result<(), AdviseError> {
        jobs.sort_unstable();
        jobs.dedup();
        jobs.retain(|job| !self.outcomes.contains_key(job));
        let (done, most) = (self.outcomes.len(), self.trial.most_replays());
        let progress = |more: usize, _: usize| (self.progress)(done + more, most);
        let outcomes = in_parallel(&jobs, self.trial.at_once, &progress, |job| {
            if_stored(self.trial.job(*job, self.need))
        })?;
        let found = jobs.into_iter().zip(outcomes);
        self.outcomes.extend(found.filter_map(|(job, outcome)| Some((job, outcome?))));
        Ok(())
    }

    /// The outcomes of these recordings with `swap`, as far as there are any.
    fn of(&self, recordings: &[usize], percent: u32, swap: LimitSwap) -> Vec<&LimitOutcome> {
        let find = |&recording: &usize| {
            let found = self.outcomes.get(&LimitReplay::new(recording, percent, Some(swap)));
            found.or_else(|| self.outcomes.get(&LimitReplay::new(recording, percent, None)))
        };
        recordings.iter().filter_map(find).collect()
    }
}

impl Trial<'_> {
    /// The kinds of swap that are tried and that the host can set up. A disk is one in any case.
    fn swaps(&self) -> Vec<LimitSwap> {
        let is_there = |swap: &LimitSwap| self.lacking.iter().all(|(lacking, _)| lacking != swap);
        self.tries.swaps.iter().copied().filter(is_there).collect()
    }

    /// How many replays it will be at most.
    pub(crate) fn most_replays(&self) -> usize {
        let percents = self.tries.percents.len() * self.recordings.len();
        if self.knows_from().is_none() { percents } else { 2 * percents + ENDS.len() + POINTS as usize }
    }

    /// The smallest limit for which all recordings say what it costs.
    fn knows_from(&self) -> Option<u64> {
        let least = self.recordings.iter().map(|recorded| recorded.knows_from);
        least.collect::<Option<Vec<u64>>>()?.into_iter().max()
    }

    /// The replays for limits in percent.
    fn jobs(&self, need: Need) -> Vec<LimitReplay> {
        let settings = grid(need, &self.tries.percents, &self.swaps());
        let jobs = settings.iter().flat_map(|setting| {
            let swap = self.knows(setting).then_some(setting.swap);
            self.serving(setting).into_iter().map(move |it| LimitReplay::new(it, setting.percent, swap))
        });
        jobs.collect()
    }

    /// Where a curve may end, in percent. No curve is below what the recordings tell. Most programs fit
    /// there, and most have the first kind of swap as the best.
    fn ends(&self, need: Need) -> Vec<u32> {
        if self.tries.percents.is_empty() {
            return Vec::new();
        }
        let percent = |bytes: u64| (bytes.saturating_mul(100)).div_ceil(need.anonymous.max(1));
        let least = self.known_from().map(|least| percent(least).min(u32::MAX.into()) as u32);
        let ends: Vec<u32> = least.iter().flat_map(|&least| ENDS.map(|end| end.max(least))).collect();
        let mut ends: Vec<u32> = ends.into_iter().filter(|&end| end <= 100).collect();
        if ends.is_empty() && self.shared_beyond() > 0 {
            ends.push(100);
        }
        ends
    }

    /// The recordings that a limit is predicted from: those that were shown the nearest to it. One that was
    /// shown none counts as one with all that the program needs. So a program that reads its limit has read
    /// about this one.
    fn serving(&self, setting: &LimitSetting) -> Vec<usize> {
        self.serving_bytes(setting.bytes, setting.need)
    }

    fn serving_bytes(&self, bytes: u64, need: Need) -> Vec<usize> {
        let all = need.all();
        let distance = |recorded: &Recorded<'_>| recorded.shown.unwrap_or(all).abs_diff(bytes);
        let least = self.recordings.iter().map(distance).min();
        let is_nearest = |place: &usize| Some(distance(&self.recordings[*place])) == least;
        (0..self.recordings.len()).filter(is_nearest).collect()
    }

    /// Makes them.
    pub(crate) fn run(&self, basis: Basis, progress: Progress<'_>) -> Result<Limits, AdviseError> {
        let known_from = self.known_from();
        let is_known = |setting: &LimitSetting| self.knows(setting);
        let (need, shared) = (basis.need, self.peak.shared);
        let swaps = self.swaps();
        let settings = grid(need, &self.tries.percents, &swaps);
        let serving = |setting: &LimitSetting| self.serving(setting);
        let ends = self.ends(need);
        let mut jobs = self.jobs(need);
        jobs.extend(
            ends.first().map(|&end| LimitReplay::new(self.middle(end, need), end, swaps.first().copied())),
        );
        let mut tried = Tried { trial: self, need, outcomes: BTreeMap::new(), progress };
        tried.all(jobs)?;
        let not_kept = self.not_kept(&tried);

        let row = |setting: LimitSetting| {
            let (serving, swap) = (serving(&setting), setting.swap);
            let outcomes = tried.of(&serving, setting.percent, swap);
            // Of stored results some may be missing.
            let is_whole = outcomes.len() == serving.len();
            let known = is_known(&setting) && not_kept.is_none();
            is_whole.then(|| (setting, LimitRow::of(&outcomes, swap, known)))
        };
        let rows: Vec<_> = settings.into_iter().filter_map(row).collect();
        let mut limits = Limits {
            known: known_from.is_some(),
            recordings: self.recordings.len(),
            shown: self.recordings.iter().any(|recorded| recorded.shown.is_some()),
            lacking: self.lacking.clone(),
            shared_after_fork: shared,
            need,
            rows,
            ..Limits::default()
        };
        // Where nothing less is known, all of it is enough, with any swap.
        let is_all_known = self.shared_beyond() > 0 && not_kept.is_none();
        let any = || swaps.iter().copied().find(|swap| is_all_known && swap.is_validated());
        if let Some(best) = best(&limits.rows).or_else(any) {
            let best = without_pool(best, &limits, basis);
            limits.curve = self.curve(&mut tried, best, &ends)?;
            limits.enough = Enough::of(&limits, best, basis.seconds, basis.files);
        }
        limits.amounts = self.amounts(need, &swaps, not_kept.is_some())?;
        let missing = || tried.outcomes.values().map(|outcome| &outcome.missing);
        limits.lost = missing().map(|missing| missing.lost).max().unwrap_or(0);
        limits.unheard = missing().map(|missing| missing.unheard).max().unwrap_or(0);
        let is_much = |missing: &&Missing| missing.lost as f64 > MOST_LOST * missing.events as f64;
        let lost = missing().filter(is_much).map(|missing| missing.lost).max().map(|lost| {
            format!("{lost} page faults, each of which is a use, were not recorded under pressure")
        });
        limits.unknown = not_kept.or(lost);
        Ok(limits)
    }

    /// Why no limit is known though the recordings were made under pressure, if one of them has much memory
    /// that the recorder did not page out: no use of it after the first is recorded, whatever the limit.
    fn not_kept(&self, tried: &Tried<'_>) -> Option<String> {
        let shared = self.shared_beyond();
        let stayed = tried.outcomes.iter().map(|(job, outcome)| {
            let pressure = self.recordings[job.recording].pressure;
            (stayed(pressure, &outcome.missing.stays, shared), job.recording)
        });
        let (stayed, recording) = stayed.max().filter(|(stayed, _)| *stayed > 0)?;
        let kept = self.recordings[recording].pressure.map_or(0, |pressure| pressure.bytes);
        let [stayed, kept] = [stayed, kept].map(|bytes| bytes as f64 / f64::from(1 << 20));
        Some(format!(
            "a process ended with {stayed:.1} MiB resident, though it was recorded under a pressure of \
             {kept:.1} MiB: later uses of what was not paged out are not in the recording"
        ))
    }

    /// Limits from the peak down to the first of `ends` within which the program fits, and if there is one
    /// within which it does not, that.
    fn curve(
        &self,
        tried: &mut Tried<'_>,
        swap: LimitSwap,
        ends: &[u32],
    ) -> Result<Vec<(LimitSetting, LimitRow)>, AdviseError> {
        let need = tried.need;
        let job = |percent| LimitReplay::new(self.middle(percent, need), percent, Some(swap));
        let known = ends.iter().chain(self.tries.percents.iter().rev());
        let (mut misfit, mut lowest) = (None, None);
        for &percent in known.filter(|&percent| ends.first().is_some_and(|end| percent >= end)) {
            tried.all(vec![job(percent)])?;
            let outcomes = tried.of(&[job(percent).recording], percent, swap);
            if outcomes.is_empty() {
                return Ok(Vec::new());
            }
            if outcomes.iter().all(|outcome| outcome.fits()) {
                lowest = Some(percent);
                break;
            }
            misfit = Some(percent);
        }
        let Some(lowest) = lowest else { return Ok(Vec::new()) };
        let percents = spread(lowest, POINTS);
        tried.all(percents.iter().map(|&percent| job(percent)).collect())?;
        let point = |percent| {
            let outcomes = tried.of(&[job(percent).recording], percent, swap);
            let row = || (LimitSetting::new(need, percent, swap), LimitRow::of(&outcomes, swap, true));
            (!outcomes.is_empty()).then(row)
        };
        let mut points: Vec<_> = percents.into_iter().chain(misfit).filter_map(point).collect();
        // The curve ends with the first that does not fit.
        let fitting = points.iter().take_while(|(_, row)| row.fits()).count();
        points.truncate(fitting + 1);
        Ok(points)
    }

    /// The recording of middle size, of those that this limit is predicted from.
    fn middle(&self, percent: u32, need: Need) -> usize {
        let mut places = self.serving(&LimitSetting::new(need, percent, LimitSwap::Disk));
        places.sort_by_key(|&place| self.recordings[place].source.events);
        places.get(places.len() / 2).copied().unwrap_or_default()
    }

    /// What a limit does of which it was measured what is charged to the group beside anonymous memory.
    pub(crate) fn beside(&self, setting: &LimitSetting, beside: u64) -> Result<LimitRow, AdviseError> {
        let job = |recording| LimitReplay::new(recording, setting.percent, Some(setting.swap));
        let jobs: Vec<LimitReplay> = self.serving(setting).into_iter().map(job).collect();
        let outcomes = in_parallel(&jobs, self.at_once, &|_, _| {}, |job| {
            let mut point = self.point(*job, setting.bytes, setting.need);
            if let Asked::Less(less) = &mut point.asked {
                less.beside = Some(beside);
            }
            self.recordings[job.recording].source.less(&point)
        })?;
        let is_known = self.knows(setting);
        Ok(LimitRow::of(&outcomes.iter().map(|it| &**it).collect::<Vec<_>>(), setting.swap, is_known))
    }

    fn job(&self, job: LimitReplay, need: Need) -> Result<LimitOutcome, AdviseError> {
        let limit = LimitSetting::new(need, job.percent, LimitSwap::Disk).bytes;
        let point = self.point(job, limit, need);
        Ok(*self.recordings[job.recording].source.less(&point)?)
    }

    /// The replay for a job within such a limit.
    fn point(&self, job: LimitReplay, limit: u64, need: Need) -> Point {
        // Whether it fits is another question.
        let limit = if job.swap.is_some() { self.without_shared(job.percent, limit) } else { limit };
        let amount = (Amount::Limit(limit), Meant::Percent(job.percent));
        self.asking(job.recording, self.less(job.recording, amount, job.swap, need))
    }

    /// So much memory, for a recording.
    fn less(
        &self,
        recording: usize,
        (amount, meant): (Amount, Meant),
        swap: Option<LimitSwap>,
        need: Need,
    ) -> Less {
        Less {
            amount,
            meant,
            beside: None,
            // What read this limit has the peak that it chose.
            peak: self.recordings[recording].shown.is_none().then_some(need.anonymous),
            swap,
            swap_bytes: swap_bytes(need.anonymous),
        }
    }

    fn asking(&self, recording: usize, less: Less) -> Point {
        let recorded = &self.recordings[recording];
        Point {
            setting: self.present.clone(),
            // The recordings take turns.
            phase: Some(recorded.phase.unwrap_or(recording) % phases(&self.present).len().max(1)),
            kernel: self.kernel,
            asked: Asked::Less(less),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_serves_all_swap_to_which_the_same_pages_go() {
        let [zram, zstd, zswap, disk] = LimitSwap::ALL.map(|swap| LimitReplay::new(1, 75, Some(swap)));
        assert!(zram == zstd && zswap == disk && zram != disk && zram.swap == Some(LimitSwap::Zram));
    }
}

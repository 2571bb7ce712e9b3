//! Replays of recordings under each setting.

use crate::change::{Change, Figures};
use crate::details::{AtPeak, Waste, at_peak, waste_by_mapping};
use crate::error::AdviseError;
use crate::fitting::{Fitting, Misfit, SettingReplay, jobs};
use crate::host::Host;
use crate::jobs::{Progress, in_parallel};
use crate::limits::{
    Basis, LimitRow, LimitSetting, Limits, Need, Recorded, Trial, TrialPeak, Tries, pressure,
};
use crate::outcome::{Outcome, recorded_ns};
use crate::range::Range;
use crate::reliable::{Lacking, unknown, unreliable};
use crate::row::Row;
use crate::setting::{NEVER, Setting, grid, tried};
use crate::source::{Source, if_stored};
use crate::stored::Stored;
use crate::swap::LimitSwap;
use crate::verdict::Verdict;
use quire_measure::Costs;
use quire_replay::{KernelCosts, LifeFigures, LifeSample};
use quire_trace::format::TraceHeader;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The effect of each setting.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// The command that was recorded.
    pub command: String,
    /// How many recordings of it there are for settings. Those for limits may be others
    /// ([`Limits::recordings`]).
    pub recordings: usize,
    /// Their recorded time, in seconds: the median.
    pub seconds: f64,
    /// Their time without what the recorder took of it, up to the recorded time.
    pub own_seconds: Range,
    /// Processor time of the programs without what the recorder took, the median of the recordings; none if
    /// these do not have it.
    pub processor_seconds: Option<f64>,
    /// Calls and touches whose results differ from Linux's, in all replays under the present setting.
    pub differences: u64,
    /// How exact the page faults of the recordings are.
    pub exactness: &'static str,
    /// Where and how the first of them was recorded.
    pub header: TraceHeader,
    /// Page faults that the recorder lost, of the recording in which it lost most.
    pub lost: u64,
    /// Those of them whose events Linux removed, since they are of programs with other privileges.
    pub unheard: u64,
    /// Why the recordings do not show enough of the program: there is no verdict, and no limit then.
    pub unreliable: Option<String>,
    /// A row a setting, the present one first.
    pub rows: Vec<(Setting, Row)>,
    /// The settings that have no row: under them the program needs more than this machine has.
    pub misfits: Vec<Misfit>,
    /// A row's memory over the recorded time, of its first replay.
    pub lives: Vec<Vec<LifeSample>>,
    /// What each row changes against the first.
    pub changes: Vec<Change>,
    /// Which setting is worth trying.
    pub verdict: Verdict,
    /// Of the settings that the verdict names, by their places among the rows: the mappings with the most
    /// never-touched memory, at the peak of the first recording.
    pub wastes: BTreeMap<usize, Vec<Waste>>,
    /// The effect of memory limits under the present setting.
    pub limits: Limits,
    /// What the recording that needs most holds when most is charged, under the present setting.
    pub at_peak: AtPeak,
}

/// What the kernel keeps on this host, if it was calibrated for that.
pub(crate) fn kernel_costs(costs: Option<&Costs>) -> Option<KernelCosts> {
    let kept = costs?.kernel_memory?;
    Some(KernelCosts { thread: kept.thread, process: kept.process, mapping: kept.mapping })
}

/// Recordings that were looked through, in [`in_order`].
pub(crate) fn open(files: &[PathBuf]) -> Result<Vec<Source>, AdviseError> {
    let opened = files.iter().map(|file| Source::open(file)).collect::<Result<Vec<_>, _>>()?;
    in_order(opened)
}

/// Recordings in the order in which they were made, those of a program that was left alone first: how they
/// are named changes nothing.
pub(crate) fn in_order(mut sources: Vec<Source>) -> Result<Vec<Source>, AdviseError> {
    sources.sort_by_cached_key(|Source { path, header, events, .. }| {
        (header.pressure.is_some(), header.shown_limit, header.started, *events, path.clone())
    });
    check(&sources)?;
    Ok(sources)
}

/// What the program needs: the median of the recordings in `files`, which are of one command, under the
/// setting they were recorded under. `costs` are this host's, if it was calibrated.
///
/// # Errors
///
/// [`AdviseError`].
pub fn need(files: &[PathBuf], at_once: usize, costs: Option<&Costs>) -> Result<Need, AdviseError> {
    let sources = open(files)?;
    let present = present(&sources.first().ok_or(AdviseError::Nothing)?.header);
    let all: Vec<usize> = (0..sources.len()).collect();
    let jobs = jobs(std::slice::from_ref(&present), &all, kernel_costs(costs));
    let outcomes = in_parallel(&jobs, at_once, &|_, _| {}, |job| sources[job.recording].life(&job.point))?;
    Ok(need_of(&outcomes.iter().collect::<Vec<_>>()))
}

/// What the program needs, of the outcomes under the present setting.
pub(crate) fn need_of(outcomes: &[&Outcome]) -> Need {
    let median = |of: &dyn Fn(&LifeFigures) -> u64| {
        Range::of(outcomes.iter().map(|outcome| of(&outcome.life) as f64)).median as u64
    };
    Need {
        anonymous: median(&|life| life.peak_pageable),
        stays: median(&|life| life.at_charge_peak.charge().saturating_sub(life.at_charge_peak.pageable())),
    }
}

/// Replays the recordings in `files`, which are of one command, under each setting, so many at once: advice
/// for `host`.
///
/// # Errors
///
/// [`AdviseError`].
pub fn predict(
    files: &[PathBuf],
    at_once: usize,
    host: &Host,
    progress: Progress<'_>,
) -> Result<Prediction, AdviseError> {
    let sources = open(files)?;
    let shared = sources.iter().map(Source::shared).max().unwrap_or_default();
    let settings = tried(&sources.first().ok_or(AdviseError::Nothing)?.header, shared);
    let (tries, kernel) = (Tries::default(), kernel_costs(host.costs.as_ref()));
    Asking { sources: &sources, settings, tries: &tries, kernel, need: None }.predict(at_once, host, progress)
}

/// What a prediction is made of.
pub(crate) struct Asking<'s> {
    /// Recordings of one command, in order.
    pub(crate) sources: &'s [Source],
    /// The settings that are compared, the present one first, and one without huge pages.
    pub(crate) settings: Vec<Setting>,
    /// The limits that are tried.
    pub(crate) tries: &'s Tries,
    /// What the kernel keeps, if that was measured.
    pub(crate) kernel: Option<KernelCosts>,
    /// What the program needs, if results are of shares of that: it is of all its recordings, and of these
    /// some may be missing.
    pub(crate) need: Option<Need>,
}

impl Asking<'_> {
    /// Asks for the replays, so many at once: advice for `host`.
    pub(crate) fn predict(
        self,
        at_once: usize,
        host: &Host,
        progress: Progress<'_>,
    ) -> Result<Prediction, AdviseError> {
        let Self { sources, settings, tries, kernel, need } = self;
        let costs = host.costs.as_ref();
        let header = &sources.first().ok_or(AdviseError::Nothing)?.header;
        let present = settings.first().ok_or(AdviseError::Nothing)?;
        let for_settings = &for_settings(sources);
        let jobs = jobs(&settings, for_settings, kernel);
        let mut trial = trial(sources, present, tries, at_once, kernel, host.lacking(header));
        let all = jobs.len() + trial.most_replays();
        let outcomes = in_parallel(&jobs, at_once, &|done, _| progress(done, all), |job| {
            let fits = sources[job.recording].fits(&job.point)?;
            match fits {
                Err(finding) if job.setting == 0 => {
                    Err(AdviseError::DoesNotFit(settings[0].name.clone(), finding))
                }
                other => Ok(other.map(|outcome| *outcome)),
            }
        })?;
        let Fitting { settings, jobs, outcomes, misfits } = Fitting::of(settings, jobs, outcomes);

        let under = |setting: usize| -> Vec<&Outcome> {
            let mine = jobs.iter().zip(&outcomes).filter(|(job, _)| job.setting == setting);
            mine.map(|(_, outcome)| outcome).collect()
        };
        // Without huge pages each resident page was touched.
        let never = settings.iter().position(|setting| setting.name == NEVER).unwrap_or(0);
        let touched = under(never);
        let mut rows: Vec<(Setting, Row)> = settings
            .iter()
            .enumerate()
            .map(|(place, setting)| {
                let mine = jobs.iter().filter(|job| job.setting == place);
                let touched_of =
                    |job: &SettingReplay| for_settings.iter().position(|&place| place == job.recording);
                let touched = mine.filter_map(|job| touched.get(touched_of(job)?));
                let touched: Vec<&LifeFigures> = touched.map(|outcome| &outcome.life).collect();
                (setting.clone(), Row::of(&under(place), &touched, costs))
            })
            .collect();
        let seconds =
            Range::of(under(0).iter().map(|outcome| recorded_ns(&outcome.life) as f64 / 1e9)).median;
        let own = Range::of(under(0).iter().map(|outcome| own_ns(outcome) / 1e9)).median;
        let own_seconds = Range { median: own, min: own, max: seconds };
        let first = |place: usize| under(place).first().map(|outcome| outcome.life.samples.clone());
        let lives = (0..settings.len()).map(|place| first(place).unwrap_or_default()).collect();
        let most = |of: fn(&Outcome) -> u64| under(0).into_iter().map(of).max().unwrap_or(0);
        let (lost, unheard) = (most(|outcome| outcome.lost), most(|outcome| outcome.unheard));
        let differences = under(0).iter().map(|outcome| outcome.differences).sum();
        let processor = Range::of(under(0).iter().map(|outcome| outcome.processor_ns as f64 / 1e9)).median;
        let processor_seconds = (processor > 0.0).then_some(processor);
        // The figures of each recording under a setting.
        let figures = |setting: usize| -> Vec<Figures> {
            let of = |&recording: &usize| {
                let mine = jobs.iter().zip(&outcomes);
                let mine = mine.filter(|(job, _)| job.setting == setting && job.recording == recording);
                Figures::mean(&mine.map(|(_, outcome)| Figures::of(outcome, costs)).collect::<Vec<_>>())
            };
            for_settings.iter().map(of).collect()
        };
        let now = figures(0);
        let changes: Vec<Change> =
            (0..settings.len()).map(|place| Change::of(&now, &figures(place))).collect();
        // What differs from Linux in a row, and not in the present one, may be why it is better or worse.
        let differing = |place: usize| rows.get(place).map_or(0, |(_, row)| row.differences);
        let replays_of = |place: usize| under(place).len().max(1) as u64;
        let is_marked = |place| differing(place) * replays_of(0) > differing(0) * replays_of(place);
        let marked: Vec<bool> = (0..settings.len()).map(is_marked).collect();
        for ((_, row), marked) in rows.iter_mut().zip(&marked) {
            row.marked = *marked;
        }
        let most = |of: fn([u64; 2]) -> u64| {
            touched.iter().map(|outcome| of(outcome.unexplained)).max().unwrap_or(0)
        };
        let unexplained = most(|both| both[0]);
        let with_tables = most(|both| both[0].saturating_add(both[1]));
        let (peaks, faults) = rows.first().map_or(([0.0; 2], 0.0), |(_, row)| {
            ([row.peak_anonymous.median, row.peak_charge.median], row.faults.median)
        });
        let most_of = |of: fn(&Outcome) -> u64| touched.iter().map(|outcome| of(outcome)).max().unwrap_or(0);
        let lacks = Lacking {
            faults: lost,
            pages: most_of(|outcome| outcome.unrecorded_pages),
            anonymous: unexplained,
            shared: most_of(|outcome| outcome.unrecorded_shared),
        };
        let unreliable = unreliable(peaks, faults, lacks);
        let verdict = match &unreliable {
            Some(_) => Verdict::default(),
            None => Verdict::of(&settings, &changes, &marked),
        };
        let told = verdict.places().into_iter();
        let wastes = told.map(|place| {
            let found = jobs.iter().zip(&outcomes).find(|(job, _)| job.setting == place);
            let waste = found.map(|(job, outcome)| {
                waste_by_mapping(&sources[job.recording], &job.point, &settings[never], outcome)
            });
            Ok((place, waste.transpose()?.flatten().unwrap_or_default()))
        });
        let wastes = wastes.collect::<Result<BTreeMap<_, _>, AdviseError>>()?;
        let (_, now) = &rows[0];
        let basis = Basis {
            need: need.unwrap_or_else(|| need_of(&under(0))),
            files: now.droppable_files.median as u64,
            seconds: own_seconds,
        };
        let mut limits = match unreliable {
            Some(_) => Limits::default(),
            None => match if_stored(trial.look_at_peak())? {
                Some(()) => trial.run(basis, &|done, _| progress(jobs.len() + done, all))?,
                None => Limits::default(),
            },
        };
        if let Some(enough) = &limits.enough {
            let bytes = enough.least.setting.bytes;
            let unmapped =
                Range::of(under(0).iter().map(|outcome| outcome.life.at_charge_peak.unmapped as f64));
            let kernel = (now.kernel.median, kernel.is_some());
            let others = unknown(bytes, kernel, unmapped.median as u64, with_tables);
            limits.unknown = limits.unknown.take().or(others);
        }
        let present = jobs.iter().zip(&outcomes).filter(|(job, _)| job.setting == 0);
        let most = present.max_by_key(|(_, outcome)| outcome.life.at_charge_peak.charge());
        let at_peak = most.map(|(job, outcome)| at_peak(&sources[job.recording], &job.point, outcome));
        let mut at_peak = at_peak.transpose()?.unwrap_or_default();
        at_peak.unused =
            trial.peak.unused.map(|shares| shares.map(|share| (share * at_peak.anonymous as f64) as u64));
        Ok(Prediction {
            command: command(header),
            recordings: for_settings.len(),
            seconds,
            own_seconds,
            processor_seconds,
            differences,
            exactness: header.faults.exactness(),
            header: header.clone(),
            lost: lost.max(limits.lost),
            unheard: unheard.max(limits.unheard),
            unreliable,
            lives,
            changes,
            verdict,
            wastes,
            rows,
            misfits,
            limits,
            at_peak,
        })
    }
}

/// The time of a program without what the recorder took of its processor time, in nanoseconds. Threads that
/// run at once pay at once.
fn own_ns(outcome: &Outcome) -> f64 {
    let wall = recorded_ns(&outcome.life) as f64;
    let busy = (outcome.processor_ns + outcome.recorder_ns) as f64;
    let at_once = (busy / wall.max(1.0)).max(1.0);
    (wall - outcome.recorder_ns as f64 / at_once).max(wall / 10.0)
}

/// What the recordings in `files` say of one limit, of which it was measured how many bytes a cgroup is
/// charged `beside` anonymous memory: what the kernel keeps for it, and pages of files.
///
/// # Errors
///
/// [`AdviseError`].
pub fn predict_beside(
    files: &[PathBuf],
    at_once: usize,
    limit: &LimitSetting,
    beside: u64,
) -> Result<LimitRow, AdviseError> {
    let sources = open(files)?;
    let present = present(&sources.first().ok_or(AdviseError::Nothing)?.header);
    // What the kernel keeps is part of what was measured.
    let tries = Tries::default();
    let mut trial = trial(&sources, &present, &tries, at_once, None, Vec::new());
    trial.look_at_peak()?;
    trial.beside(limit, beside)
}

/// The places of the recordings that are best for all but limits: those of a program that was not slowed by
/// pressure, or else that was shown no limit, or else all.
pub(crate) fn for_settings(sources: &[Source]) -> Vec<usize> {
    let those = |is_one: fn(&TraceHeader) -> bool| {
        let places = (0..sources.len()).filter(|&place| is_one(&sources[place].header));
        Some(places.collect::<Vec<_>>()).filter(|places| !places.is_empty())
    };
    let plain = those(|header| pressure(header).is_none());
    plain
        .or_else(|| those(|header| header.shown_limit.is_none()))
        .unwrap_or_else(|| (0..sources.len()).collect())
}

/// Limits of the recordings that are best for them: those under pressure, if there are any.
pub(crate) fn trial<'a>(
    sources: &'a [Source],
    present: &Setting,
    tries: &'a Tries,
    at_once: usize,
    kernel: Option<KernelCosts>,
    lacking: Vec<(LimitSwap, String)>,
) -> Trial<'a> {
    let all = sources.iter().map(|source| Recorded {
        source,
        knows_from: pressure(&source.header),
        pressure: source.header.pressure,
        shown: source.header.shown_limit,
        phase: source.stored().and_then(Stored::phase),
    });
    let (pressed, plain): (Vec<_>, Vec<_>) = all.partition(|recorded| recorded.knows_from.is_some());
    Trial {
        recordings: if pressed.is_empty() { plain } else { pressed },
        present: present.clone(),
        kernel,
        tries,
        lacking,
        at_once,
        peak: TrialPeak::default(),
    }
}

pub(crate) fn command(header: &TraceHeader) -> String {
    let words = header.command.iter().map(|word| String::from_utf8_lossy(word).into_owned());
    words.collect::<Vec<_>>().join(" ")
}

/// Whether predictions can be made from these recordings, and from all together.
fn check(sources: &[Source]) -> Result<(), AdviseError> {
    let Some(first) = sources.first() else { return Ok(()) };
    let settings = present(&first.header);
    for source in sources {
        let Source { path, header, .. } = source;
        header.supports_thp_predictions().map_err(|why| AdviseError::Unsuited(path.clone(), why))?;
        if header.command != first.header.command {
            let named = |source: &Source| (source.path.clone(), command(&source.header));
            let ((other, is), (first, was)) = (named(source), named(first));
            return Err(AdviseError::OtherCommand(other, is, first, was));
        }
        let differing = present(header).differing(&settings);
        if !differing.is_empty() {
            return Err(AdviseError::OtherSettings(first.path.clone(), path.clone(), differing));
        }
    }
    Ok(())
}

/// What the host had when the program was recorded.
pub(crate) fn present(header: &TraceHeader) -> Setting {
    grid(header).swap_remove(0)
}

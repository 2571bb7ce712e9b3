//! Replays of recordings under each setting.

use crate::change::{Change, Figures};
use crate::figures::{Outcome, Range, Row, recorded_ns};
use crate::heat::{HEAT_COLUMNS, Heat, touched_pages};
use crate::host::Host;
use crate::jobs::{Progress, in_parallel};
use crate::limits::{
    Basis, LimitRow, LimitSetting, LimitSwap, Limits, Need, Recorded, Trial, TrialPeak, pressure,
};
use crate::setting::{NEVER, Setting, grid};
use crate::verdict::Verdict;
use quire_arch::PAGE_SIZE;
use quire_measure::Costs;
use quire_mm::{
    Techniques,
    thp::{HugeConfig, KhugepagedSetting},
};
use quire_trace::format::TraceHeader;
use quire_trace::replay::{
    Audits, HeatMap, KernelCosts, LifeFigures, LifeSample, MappingLife, Replay, ReplayError, ReplayOptions,
};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;

/// Why a prediction is not possible.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AdviseError {
    /// No recording was named.
    #[error("there is no recording")]
    Nothing,
    /// A recording cannot be replayed.
    #[error("{0}")]
    Replay(ReplayError),
    /// A recording does not support predictions: which, and why not.
    #[error("{}: {_1}", _0.display())]
    Unsuited(PathBuf, String),
    /// Recordings of different commands were named together.
    #[error("{} is a recording of `{_1}`, {} one of `{_3}`: name recordings of one command", _0.display(), _2.display())]
    OtherCommand(PathBuf, String, PathBuf, String),
    /// Recordings that were made under different settings of huge pages were named together: two of them, and
    /// where the second's differ from the first's.
    #[error("{} was recorded under other settings of huge pages than {}, with {_2}: name recordings made under one", _1.display(), _0.display())]
    OtherSettings(PathBuf, PathBuf, String),
    /// The programs needed more memory than the machine had: under which setting, and what was found.
    #[error("{0}: {1}")]
    DoesNotFit(String, String),
    /// Instructions could not be counted.
    #[error("{0}")]
    Instructions(String),
}

impl From<ReplayError> for AdviseError {
    fn from(error: ReplayError) -> Self {
        Self::Replay(error)
    }
}

/// A setting under which the program does not fit into the memory that there is for its replay.
#[derive(Clone, Debug)]
pub struct Misfit {
    /// The setting.
    pub setting: Setting,
    /// How far it came, and with how much memory.
    pub finding: String,
}

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

/// What the programs hold at one moment, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AtPeak {
    /// Anonymous memory, each page counted once.
    pub anonymous: u64,
    /// Of it, what may be freed at once where memory is short (`MADV_FREE`).
    pub lazily_free: u64,
    /// Shared memory, each page counted once.
    pub shared: u64,
    /// Of it, what no process maps any more: files in memory that may be gone.
    pub unmapped: u64,
    /// Page tables.
    pub page_tables: u64,
    /// What else the kernel keeps for threads, processes and mappings.
    pub kernel: u64,
    /// Pages of files that are locked.
    pub locked_files: u64,
    /// Of the anonymous memory, what is not used again, at least and at most, if recordings tell.
    pub unused: Option<[u64; 2]>,
}

/// A share of a limit that may be unknown.
const MOST_UNKNOWN: f64 = 0.03;
/// So much is never too much, in bytes.
const LEAST_UNKNOWN: u64 = 1 << 20;

/// A share of the page faults that may be lost, however much memory that is: of many faults most are of pages
/// that were there before.
const FEW_LOST: f64 = 0.001;

/// What recordings lack, by that in which it is most.
#[derive(Clone, Copy, Debug, Default)]
struct Lacking {
    /// Page faults that were lost, each of which stands for a page.
    faults: u64,
    /// Pages that came in without one.
    pages: u64,
    /// Anonymous memory that Linux had at the ends of processes, in bytes.
    anonymous: u64,
    /// Shared memory likewise.
    shared: u64,
}

/// Why nothing rests on recordings of a program that takes `bytes` of anonymous memory by so many `faults`,
/// and `charged` in all, if what they lack is too much.
fn unreliable([bytes, charged]: [f64; 2], faults: f64, lacking: Lacking) -> Option<String> {
    let Lacking { faults: lost, pages: unrecorded, anonymous: unexplained, shared } = lacking;
    let is_much = |missing: u64| missing > LEAST_UNKNOWN && missing as f64 > MOST_UNKNOWN * bytes;
    let is_many = |pages: u64| is_much(pages.saturating_mul(PAGE_SIZE)) && pages as f64 > FEW_LOST * faults;
    if is_many(lost) {
        return Some(format!("{lost} page faults were not recorded, too many for a program of this size"));
    }
    if is_many(unrecorded) {
        return Some(format!(
            "the kernel brought in {unrecorded} pages that are not in the recording, as for direct I/O or a \
             virtual machine"
        ));
    }
    let mebibytes = |bytes: f64| bytes / f64::from(1 << 20);
    if is_much(unexplained) {
        let [missing, all] = [unexplained as f64, bytes].map(mebibytes);
        return Some(format!(
            "processes ended with {missing:.1} MiB more or less than recorded, of {all:.1} MiB in all"
        ));
    }
    (shared > LEAST_UNKNOWN && shared as f64 > MOST_UNKNOWN * charged).then(|| {
        let [missing, all] = [shared as f64, charged].map(mebibytes);
        format!(
            "a process ended with {missing:.1} MiB of shared memory that is not in the recording, beside \
             {all:.1} MiB in all: files in memory that were not filled through a mapping, or grew"
        )
    })
}

/// Why no limit can be told, if what is not known of it is too much.
fn unknown(
    bytes: u64,
    (kernel, is_measured): (f64, bool),
    unmapped: u64,
    unexplained: u64,
) -> Option<String> {
    let percent = |part: f64| (part * 100.0 / bytes.max(1) as f64).round();
    let most = MOST_UNKNOWN * bytes as f64;
    if unmapped > LEAST_UNKNOWN && unmapped as f64 > most {
        let percent = percent(unmapped as f64);
        return Some(format!(
            "{percent} % of it are files in memory that no process maps any more, and may be gone"
        ));
    }
    if unexplained > LEAST_UNKNOWN && unexplained as f64 > most {
        let percent = percent(unexplained as f64);
        return Some(format!("Linux's own figures differ from the replay's by {percent} % of it"));
    }
    (!is_measured && kernel > most).then(|| {
        let percent = percent(kernel);
        format!(
            "what the kernel keeps is {percent} % of it, and was not measured on this host (quire calibrate)"
        )
    })
}

/// What the kernel keeps on this host, if it was calibrated for that.
fn kernel_costs(costs: Option<&Costs>) -> Option<KernelCosts> {
    let kept = costs?.kernel_memory?;
    Some(KernelCosts { thread: kept.thread, process: kept.process, mapping: kept.mapping })
}

/// Memory in a mapping that is never touched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waste {
    /// The mapping's name; if it has none, where it was mapped, or its size and address.
    pub mapping: String,
    /// Bytes.
    pub bytes: u64,
}

/// The most mappings that are reported.
const MOST_WASTES: usize = 8;

/// Where the memory lies that `outcome` had at its peak, and that is not resident at that event without huge
/// pages.
fn waste_by_mapping(
    replay: &Replay,
    options: &ReplayOptions,
    never: &HugeConfig,
    outcome: &Outcome,
) -> Result<Vec<Waste>, AdviseError> {
    let stop_at = Some(outcome.life.at_peak.event);
    let at_peak = |options: ReplayOptions| -> Result<Vec<MappingLife>, AdviseError> {
        Ok(replay.with(ReplayOptions { stop_at, life: false, ..options }).run(&mut |_, _| {})?.mappings)
    };
    let without = ReplayOptions { huge: *never, khugepaged: None, ..options.clone() };
    let touched: HashMap<(usize, u64), u64> = at_peak(without)?
        .into_iter()
        .map(|mapping| ((mapping.process, mapping.start), mapping.anonymous))
        .collect();
    let mut wastes: HashMap<String, u64> = HashMap::new();
    for mapping in at_peak(options.clone())? {
        let touched = touched.get(&(mapping.process, mapping.start)).copied().unwrap_or(0);
        let name = match (mapping.name, mapping.site) {
            (name, site) if name.is_empty() && site.is_empty() => format!(
                "anonymous mapping of {} KiB at {:#x}",
                (mapping.end - mapping.start) >> 10,
                mapping.start
            ),
            (name, site) if name.is_empty() => format!("anonymous memory mapped at {site}"),
            (name, _) => name,
        };
        *wastes.entry(name).or_default() += mapping.anonymous.saturating_sub(touched);
    }
    let mut wastes: Vec<Waste> = wastes
        .into_iter()
        .filter(|&(_, bytes)| bytes > 0)
        .map(|(mapping, bytes)| Waste { mapping, bytes })
        .collect();
    wastes.sort_by(|one, other| (other.bytes, &one.mapping).cmp(&(one.bytes, &other.mapping)));
    wastes.truncate(MOST_WASTES);
    Ok(wastes)
}

/// The phases of khugepaged that are tried, as shares of its interval: its first scan is at a
/// random time.
const PHASES: [f64; 2] = [0.25, 0.75];

/// One replay: of which recording, under which setting, with khugepaged in which phase.
struct Job {
    recording: usize,
    setting: usize,
    options: ReplayOptions,
}

/// Recordings that were opened, and their headers. In the order in which they were made, those of a program
/// that was left alone first: how they are named changes nothing.
fn open(files: &[PathBuf]) -> Result<(Vec<Replay>, Vec<TraceHeader>), AdviseError> {
    let each = files.iter().map(|file| {
        let replay = Replay::open(file, ReplayOptions::default())?;
        let header = replay.header()?;
        Ok((file, replay, header))
    });
    let mut opened = each.collect::<Result<Vec<_>, ReplayError>>()?;
    opened.sort_by_cached_key(|(file, replay, header)| {
        let pressure = header.pressure.is_some();
        (pressure, header.shown_limit, header.started, replay.needs().events(), (*file).clone())
    });
    check(&opened)?;
    Ok(opened.into_iter().map(|(_, replay, header)| (replay, header)).unzip())
}

/// What the program needs: the median of the recordings in `files`, which are of one command, under the
/// setting they were recorded under. `costs` are this host's, if it was calibrated.
///
/// # Errors
///
/// [`AdviseError`].
pub fn need(files: &[PathBuf], at_once: usize, costs: Option<&Costs>) -> Result<Need, AdviseError> {
    let (replays, headers) = open(files)?;
    let header = headers.first().ok_or(AdviseError::Nothing)?;
    let present = present(header);
    let kernel = kernel_costs(costs).unwrap_or_default();
    let jobs = jobs(std::slice::from_ref(&present), &(0..replays.len()).collect::<Vec<_>>(), kernel);
    let outcomes =
        in_parallel(&jobs, at_once, &|_, _| {}, |job| replay(job, &replays[job.recording], &present))?;
    Ok(need_of(&outcomes.iter().collect::<Vec<_>>()))
}

/// What the program needs, of the outcomes under the present setting.
fn need_of(outcomes: &[&Outcome]) -> Need {
    let median = |of: &dyn Fn(&LifeFigures) -> u64| {
        Range::of(outcomes.iter().map(|outcome| of(&outcome.life) as f64)).median as u64
    };
    Need {
        anonymous: median(&|life| life.at_peak.anonymous),
        stays: median(&|life| life.at_charge_peak.charge() - life.at_charge_peak.anonymous),
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
    let costs = host.costs.as_ref();
    let (replays, headers) = open(files)?;
    let header = headers.first().ok_or(AdviseError::Nothing)?;
    let settings = grid(header);
    let for_settings = &for_settings(&headers);
    let measured = kernel_costs(costs);
    let kernel = measured.unwrap_or_default();
    let jobs = jobs(&settings, for_settings, kernel);
    let mut trial = trial(&replays, &headers, &settings[0], at_once, kernel, host.lacking(header));
    let all = jobs.len() + trial.most_replays();
    let outcomes = in_parallel(&jobs, at_once, &|done, _| progress(done, all), |job| {
        match replay(job, &replays[job.recording], &settings[job.setting]) {
            Err(AdviseError::DoesNotFit(_, finding)) if job.setting != 0 => Ok(Err(finding)),
            other => other.map(Ok),
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
            let touched_of = |job: &Job| for_settings.iter().position(|&place| place == job.recording);
            let touched = mine.filter_map(|job| touched.get(touched_of(job)?));
            let touched: Vec<&LifeFigures> = touched.map(|outcome| &outcome.life).collect();
            (setting.clone(), Row::of(&under(place), &touched, costs))
        })
        .collect();
    let seconds = Range::of(under(0).iter().map(|outcome| recorded_ns(&outcome.life) as f64 / 1e9)).median;
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
    let changes: Vec<Change> = (0..settings.len()).map(|place| Change::of(&now, &figures(place))).collect();
    // What differs from Linux in a row, and not in the present one, may be why it is better or worse.
    let differing = |place: usize| rows.get(place).map_or(0, |(_, row)| row.differences);
    let replays_of = |place: usize| under(place).len().max(1) as u64;
    let is_marked = |place| differing(place) * replays_of(0) > differing(0) * replays_of(place);
    let marked: Vec<bool> = (0..settings.len()).map(is_marked).collect();
    for ((_, row), marked) in rows.iter_mut().zip(&marked) {
        row.marked = *marked;
    }
    let most =
        |of: fn([u64; 2]) -> u64| touched.iter().map(|outcome| of(outcome.unexplained)).max().unwrap_or(0);
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
            waste_by_mapping(&replays[job.recording], &job.options, &settings[never].huge, outcome)
        });
        Ok((place, waste.transpose()?.unwrap_or_default()))
    });
    let wastes = wastes.collect::<Result<_, AdviseError>>()?;
    let (_, now) = &rows[0];
    let basis =
        Basis { need: need_of(&under(0)), files: now.droppable_files.median as u64, seconds: own_seconds };
    let mut limits = match unreliable {
        Some(_) => Limits::default(),
        None => {
            trial = trial.look_at_peak()?;
            trial.run(basis, &|done, _| progress(jobs.len() + done, all))?
        }
    };
    if let Some(enough) = &limits.enough {
        let bytes = enough.least.setting.bytes;
        let unmapped = Range::of(under(0).iter().map(|outcome| outcome.life.at_charge_peak.unmapped as f64));
        let kernel = (now.kernel.median, measured.is_some());
        let others = unknown(bytes, kernel, unmapped.median as u64, with_tables);
        limits.unknown = limits.unknown.take().or(others);
    }
    let present = jobs.iter().zip(&outcomes).filter(|(job, _)| job.setting == 0);
    let most = present.max_by_key(|(_, outcome)| outcome.life.at_charge_peak.charge());
    let at_peak = most.map(|(job, outcome)| at_peak(&replays[job.recording], &job.options, outcome));
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

/// The settings under which the program fits, their replays in order with the outcomes, and the settings
/// under which it does not fit.
struct Fitting {
    settings: Vec<Setting>,
    jobs: Vec<Job>,
    outcomes: Vec<Outcome>,
    misfits: Vec<Misfit>,
}

impl Fitting {
    /// Of replays of which some did not fit: a setting with one of these has no row.
    fn of(settings: Vec<Setting>, jobs: Vec<Job>, outcomes: Vec<Result<Outcome, String>>) -> Self {
        let mut findings: BTreeMap<usize, String> = BTreeMap::new();
        for (job, outcome) in jobs.iter().zip(&outcomes) {
            if let Err(finding) = outcome {
                findings.entry(job.setting).or_insert_with(|| finding.clone());
            }
        }
        let mut found =
            Self { settings: Vec::new(), jobs: Vec::new(), outcomes: Vec::new(), misfits: Vec::new() };
        for (job, outcome) in jobs.into_iter().zip(outcomes) {
            if let (false, Ok(outcome)) = (findings.contains_key(&job.setting), outcome) {
                let setting = job.setting - findings.range(..job.setting).count();
                found.jobs.push(Job { setting, ..job });
                found.outcomes.push(outcome);
            }
        }
        for (place, setting) in settings.into_iter().enumerate() {
            match findings.remove(&place) {
                None => found.settings.push(setting),
                Some(finding) => found.misfits.push(Misfit { setting, finding }),
            }
        }
        found
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

/// What the programs of a replay hold when most is charged.
fn at_peak(replay: &Replay, options: &ReplayOptions, outcome: &Outcome) -> Result<AtPeak, AdviseError> {
    let sample = outcome.life.at_charge_peak;
    let options = ReplayOptions { stop_at: Some(sample.event), life: false, ..options.clone() };
    let mappings = replay.with(options).run(&mut |_, _| {})?.mappings;
    Ok(AtPeak {
        anonymous: sample.anonymous,
        lazily_free: mappings.iter().map(|mapping| mapping.lazily_free).sum::<u64>().min(sample.anonymous),
        shared: sample.shared,
        unmapped: sample.unmapped,
        page_tables: sample.page_tables,
        kernel: sample.kernel,
        locked_files: sample.locked_files,
        unused: None,
    })
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
    let (replays, headers) = open(files)?;
    let header = headers.first().ok_or(AdviseError::Nothing)?;
    let present = present(header);
    // What the kernel keeps is part of what was measured.
    let trial = trial(&replays, &headers, &present, at_once, KernelCosts::default(), Vec::new());
    trial.look_at_peak()?.beside(limit, beside)
}

/// The places of the recordings that are best for all but limits: those of a program that was not slowed by
/// pressure, or else that was shown no limit, or else all.
fn for_settings(headers: &[TraceHeader]) -> Vec<usize> {
    let those = |is_one: fn(&TraceHeader) -> bool| {
        let places = (0..headers.len()).filter(|&place| is_one(&headers[place]));
        Some(places.collect::<Vec<_>>()).filter(|places| !places.is_empty())
    };
    let plain = those(|header| pressure(header).is_none());
    plain
        .or_else(|| those(|header| header.shown_limit.is_none()))
        .unwrap_or_else(|| (0..headers.len()).collect())
}

/// Limits of the recordings that are best for them: those under pressure, if there are any.
fn trial<'a>(
    replays: &'a [Replay],
    headers: &[TraceHeader],
    present: &Setting,
    at_once: usize,
    kernel: KernelCosts,
    lacking: Vec<(LimitSwap, String)>,
) -> Trial<'a> {
    let all = replays.iter().zip(headers).map(|(replay, header)| Recorded {
        replay,
        knows_from: pressure(header),
        pressure: header.pressure,
        shown: header.shown_limit,
    });
    let (pressed, plain): (Vec<_>, Vec<_>) = all.partition(|recorded| recorded.knows_from.is_some());
    Trial {
        recordings: if pressed.is_empty() { plain } else { pressed },
        options: options(present, None, kernel),
        lacking,
        phases: phases(present),
        at_once,
        peak: TrialPeak::default(),
    }
}

pub(crate) fn command(header: &TraceHeader) -> String {
    let words = header.command.iter().map(|word| String::from_utf8_lossy(word).into_owned());
    words.collect::<Vec<_>>().join(" ")
}

/// Whether predictions can be made from these recordings, and from all together.
fn check(opened: &[(&PathBuf, Replay, TraceHeader)]) -> Result<(), AdviseError> {
    let Some((first, _, of_first)) = opened.first() else { return Ok(()) };
    let settings = present(of_first);
    for (file, _, header) in opened {
        header.supports_thp_predictions().map_err(|why| AdviseError::Unsuited(file.to_path_buf(), why))?;
        if header.command != of_first.command {
            let named = |file: &Path, header: &TraceHeader| (file.to_path_buf(), command(header));
            let ((other, is), (first, was)) = (named(file, header), named(first, of_first));
            return Err(AdviseError::OtherCommand(other, is, first, was));
        }
        let differing = present(header).differing(&settings);
        if !differing.is_empty() {
            return Err(AdviseError::OtherSettings(first.to_path_buf(), file.to_path_buf(), differing));
        }
    }
    Ok(())
}

/// What the host had when the program was recorded.
fn present(header: &TraceHeader) -> Setting {
    grid(header).swap_remove(0)
}

/// The phases of khugepaged in which a setting is replayed.
fn phases(setting: &Setting) -> Vec<Option<Duration>> {
    if !setting.runs_khugepaged() {
        return vec![None];
    }
    let pace = setting.huge.khugepaged.get(KhugepagedSetting::ScanSleepMillisecs);
    PHASES.map(|share| Some(Duration::from_millis(u64::from(pace)).mul_f64(share))).into()
}

fn options(setting: &Setting, khugepaged: Option<Duration>, kernel: KernelCosts) -> ReplayOptions {
    let mut techniques = Techniques::default();
    techniques.tables = setting.tables;
    ReplayOptions {
        huge: setting.huge,
        techniques,
        audits: Audits::Never,
        life: true,
        khugepaged,
        kernel,
        ..ReplayOptions::default()
    }
}

/// What the present setting and `other`, by its place among the rows, have in memory by address and time, of
/// the first recording in `files` that settings are predicted from; none where nothing is ever in memory.
/// Three replays.
///
/// # Errors
///
/// [`AdviseError`].
pub fn heat(
    files: &[PathBuf],
    prediction: &Prediction,
    places: &[usize],
    at_once: usize,
) -> Result<Vec<(usize, Heat)>, AdviseError> {
    let (replays, headers) = open(files)?;
    let first = for_settings(&headers).first().and_then(|&place| replays.get(place));
    let replay = first.ok_or(AdviseError::Nothing)?;
    // The first replay is of what is touched.
    let jobs: Vec<Option<usize>> = std::iter::once(None).chain(places.iter().copied().map(Some)).collect();
    let found = in_parallel(&jobs, at_once, &|_, _| {}, |job| {
        let Some(place) = job else { return Ok((touched_pages(replay, false)?, None)) };
        let (setting, _) = prediction.rows.get(*place).ok_or(AdviseError::Nothing)?;
        let khugepaged = phases(setting).first().copied().flatten();
        let options = ReplayOptions {
            life: false,
            heat: Some(HEAT_COLUMNS),
            ..options(setting, khugepaged, KernelCosts::default())
        };
        Ok::<_, AdviseError>((HeatMap::default(), Some(replay.with(options).run(&mut |_, _| {})?)))
    })?;
    let Some(((touched, _), rest)) = found.split_first() else { return Ok(Vec::new()) };
    let rest = rest.iter().zip(places);
    Ok(rest.filter_map(|((_, report), &place)| Some((place, Heat::of(report.as_ref()?, touched)?))).collect())
}

fn jobs(settings: &[Setting], recordings: &[usize], kernel: KernelCosts) -> Vec<Job> {
    let mut jobs = Vec::new();
    for (number, setting) in settings.iter().enumerate() {
        let phases = phases(setting);
        for &recording in recordings {
            jobs.extend(phases.iter().map(|&khugepaged| Job {
                recording,
                setting: number,
                options: options(setting, khugepaged, kernel),
            }));
        }
    }
    jobs
}

fn replay(job: &Job, replay: &Replay, setting: &Setting) -> Result<Outcome, AdviseError> {
    let report = replay.with(job.options.clone()).run(&mut |_, _| {})?;
    if let Some(finding) = &report.does_not_fit {
        return Err(AdviseError::DoesNotFit(setting.name.clone(), finding.what_it_needs()));
    }
    Ok(Outcome::of(report))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_lost_faults_of_many_change_nothing() {
        let bytes = 100.0 * f64::from(1 << 20);
        let lost: fn(u64) -> Lacking = |faults| Lacking { faults, ..Lacking::default() };
        let unrecorded: fn(u64) -> Lacking = |pages| Lacking { pages, ..Lacking::default() };
        for of in [lost, unrecorded] {
            assert_eq!(unreliable([bytes; 2], 1e7, of(900)), None, "of ten million");
            assert!(unreliable([bytes; 2], 26_000.0, of(900)).is_some(), "3.5 MiB of 100");
            assert_eq!(unreliable([bytes; 2], 26_000.0, of(200)), None);
        }
        let anonymous = Lacking { anonymous: 4 << 20, ..Lacking::default() };
        assert!(unreliable([bytes, 1e12], 26_000.0, anonymous).is_some());
    }

    /// A file in memory that was filled by write(2) is charged, and no limit has room for it.
    #[test]
    fn shared_memory_that_is_not_recorded_is_held_against_all_that_is_charged() {
        const MIB: u64 = 1 << 20;
        let of = |shared| {
            let lacking = Lacking { shared: shared * MIB, ..Lacking::default() };
            unreliable([10.0, 100.0].map(|all| all * MIB as f64), 1e6, lacking)
        };
        assert!(of(4).is_some_and(|why| why.contains("4.0 MiB of shared memory")), "{:?}", of(4));
        assert_eq!((of(3), of(0)), (None, None));
    }

    use crate::setting::grid_of;
    use quire_mm::thp::HugeConfig;

    #[test]
    fn a_setting_that_does_not_fit_has_no_row() {
        let settings: Vec<Setting> = grid_of(HugeConfig::default(), |_| true).into_iter().take(3).collect();
        let names: Vec<String> = settings.iter().map(|setting| setting.name.clone()).collect();
        let job = |setting| Job { recording: 0, setting, options: ReplayOptions::default() };
        let outcome = |differences| Ok(Outcome { differences, ..Outcome::default() });
        let outcomes = vec![outcome(1), outcome(2), Err("too much".to_owned()), outcome(3)];
        let found = Fitting::of(settings, vec![job(0), job(1), job(1), job(2)], outcomes);
        assert_eq!(found.settings.iter().map(|it| &it.name).collect::<Vec<_>>(), [&names[0], &names[2]]);
        assert_eq!(found.jobs.iter().map(|job| job.setting).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(found.outcomes.iter().map(|it| it.differences).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(found.misfits.len(), 1);
        assert_eq!(
            (&found.misfits[0].setting.name, found.misfits[0].finding.as_str()),
            (&names[1], "too much")
        );
    }
}

//! Replays of recordings under each setting.

use crate::figures::Row;
use crate::setting::{Setting, grid};
use crate::verdict::Verdict;
use quire_mm::{KhugepagedSetting, Techniques};
use quire_trace::format::TraceHeader;
use quire_trace::replay::{Audits, LifeFigures, Replay, ReplayError, ReplayOptions, recorded_huge_config};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use thiserror::Error;

/// Why nothing can be predicted.
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
    /// The programs needed more memory than the machine had: under which setting, and what was found.
    #[error("{0}: {1}")]
    DoesNotFit(String, String),
}

impl From<ReplayError> for AdviseError {
    fn from(error: ReplayError) -> Self {
        Self::Replay(error)
    }
}

/// Told how many replays are done, of how many.
pub type Progress<'p> = &'p (dyn Fn(usize, usize) + Sync);

/// What each setting would do.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// The command that was recorded.
    pub command: String,
    /// How many recordings there are of it.
    pub recordings: usize,
    /// The recorded time of the first, in seconds.
    pub seconds: f64,
    /// Calls and touches whose results differ from Linux's, in all replays under the present setting.
    pub differences: u64,
    /// How exact the page faults of the recordings are.
    pub exactness: &'static str,
    /// A row a setting, the present one first.
    pub rows: Vec<(Setting, Row)>,
    /// Which setting is worth trying.
    pub verdict: Verdict,
}

/// The phases of khugepaged that are tried, as shares of its pace: when it first looks is chance.
const PHASES: [f64; 2] = [0.25, 0.75];

/// One replay: of which recording, under which setting, with khugepaged in which phase.
struct Job {
    recording: usize,
    setting: usize,
    options: ReplayOptions,
}

/// What a replay came to.
struct Outcome {
    life: LifeFigures,
    differences: u64,
}

/// Replays the recordings in `files`, which are of one command, under each setting, so many at once. A page fault
/// costs `fault_seconds` beside zeroing, for the estimate of time.
///
/// # Errors
///
/// [`AdviseError`].
pub fn predict(
    files: &[PathBuf],
    at_once: usize,
    fault_seconds: f64,
    progress: Progress<'_>,
) -> Result<Prediction, AdviseError> {
    let replays = files
        .iter()
        .map(|file| Replay::open(file, ReplayOptions::default()))
        .collect::<Result<Vec<_>, _>>()?;
    let headers = replays.iter().map(Replay::header).collect::<Result<Vec<_>, _>>()?;
    let Some(header) = headers.first() else { return Err(AdviseError::Nothing) };
    check(files, &headers)?;
    let present = recorded_huge_config(header).unwrap_or_default();
    let settings = grid(present);
    let jobs = jobs(&settings, replays.len());
    let outcomes = run(&jobs, &replays, &settings, at_once, progress)?;

    let lives = |setting: usize| -> Vec<LifeFigures> {
        let mine = jobs.iter().zip(&outcomes).filter(|(job, _)| job.setting == setting);
        mine.map(|(_, outcome)| outcome.life.clone()).collect()
    };
    // Without huge pages each resident page was touched.
    let never = settings.iter().position(|setting| setting.name == "thp=never").unwrap_or(0);
    let touched = lives(never);
    let rows: Vec<(Setting, Row)> = settings
        .iter()
        .enumerate()
        .map(|(place, setting)| {
            let recordings =
                jobs.iter().filter(|job| job.setting == place).map(|job| &touched[job.recording]);
            (setting.clone(), Row::of(&lives(place), &recordings.collect::<Vec<_>>()))
        })
        .collect();
    let last = outcomes.first().and_then(|outcome| outcome.life.samples.last());
    let seconds = last.map_or(0.0, |sample| sample.time_ns as f64 / 1e9);
    let differences = jobs.iter().zip(&outcomes).filter(|(job, _)| job.setting == 0);
    Ok(Prediction {
        command: command(header),
        recordings: files.len(),
        seconds,
        differences: differences.map(|(_, outcome)| outcome.differences).sum(),
        exactness: header.faults.exactness(),
        verdict: Verdict::of(&rows, seconds, fault_seconds),
        rows,
    })
}

fn command(header: &TraceHeader) -> String {
    let words = header.command.iter().map(|word| String::from_utf8_lossy(word).into_owned());
    words.collect::<Vec<_>>().join(" ")
}

/// Whether predictions can be made from these recordings, and from all together.
fn check(files: &[PathBuf], headers: &[TraceHeader]) -> Result<(), AdviseError> {
    for (file, header) in files.iter().zip(headers) {
        header.supports_thp_predictions().map_err(|why| AdviseError::Unsuited(file.clone(), why))?;
        if header.command != headers[0].command {
            let named = |file: &Path, header: &TraceHeader| (file.to_path_buf(), command(header));
            let ((first, is), (other, was)) = (named(file, header), named(&files[0], &headers[0]));
            return Err(AdviseError::OtherCommand(first, is, other, was));
        }
    }
    Ok(())
}

fn jobs(settings: &[Setting], recordings: usize) -> Vec<Job> {
    let mut jobs = Vec::new();
    for (number, setting) in settings.iter().enumerate() {
        let pace = setting.huge.khugepaged.get(KhugepagedSetting::ScanSleepMillisecs);
        let phase = |share: f64| Duration::from_millis(u64::from(pace)).mul_f64(share);
        let phases: Vec<Option<Duration>> = if setting.runs_khugepaged() {
            PHASES.map(|share| Some(phase(share))).into()
        } else {
            vec![None]
        };
        for recording in 0..recordings {
            for &khugepaged in &phases {
                let mut techniques = Techniques::default();
                techniques.tables = setting.tables;
                let options = ReplayOptions {
                    huge: setting.huge,
                    techniques,
                    audits: Audits::Never,
                    life: true,
                    khugepaged,
                    ..ReplayOptions::default()
                };
                jobs.push(Job { recording, setting: number, options });
            }
        }
    }
    jobs
}

/// Does all jobs, `at_once` at once; the outcomes are in their order.
fn run(
    jobs: &[Job],
    replays: &[Replay],
    settings: &[Setting],
    at_once: usize,
    progress: Progress<'_>,
) -> Result<Vec<Outcome>, AdviseError> {
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let outcomes: Mutex<Vec<Option<Result<Outcome, AdviseError>>>> =
        Mutex::new(jobs.iter().map(|_| None).collect());
    progress(0, jobs.len());
    std::thread::scope(|scope| {
        for _ in 0..at_once.clamp(1, jobs.len().max(1)) {
            scope.spawn(|| {
                while let Some((place, job)) = take(&next, jobs) {
                    let outcome = replay(job, &replays[job.recording], &settings[job.setting]);
                    if outcome.is_err() {
                        // The rest would be for nothing.
                        next.store(jobs.len(), Ordering::Relaxed);
                    }
                    if let Ok(mut outcomes) = outcomes.lock() {
                        outcomes[place] = Some(outcome);
                    }
                    progress(done.fetch_add(1, Ordering::Relaxed) + 1, jobs.len());
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().unwrap_or_default();
    let (mut good, mut failed) = (Vec::new(), None);
    for outcome in outcomes {
        match outcome {
            Some(Ok(outcome)) => good.push(outcome),
            Some(Err(error)) => failed = failed.or(Some(error)),
            None => {}
        }
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(good),
    }
}

fn take<'j>(next: &AtomicUsize, jobs: &'j [Job]) -> Option<(usize, &'j Job)> {
    let place = next.fetch_add(1, Ordering::Relaxed);
    Some((place, jobs.get(place)?))
}

fn replay(job: &Job, replay: &Replay, setting: &Setting) -> Result<Outcome, AdviseError> {
    let report = replay.with(job.options.clone()).run(&mut |_, _| {})?;
    if let Some(finding) = &report.does_not_fit {
        return Err(AdviseError::DoesNotFit(setting.name.clone(), finding.to_string()));
    }
    let differences = report.processes.iter().map(|process| process.mismatches).sum();
    Ok(Outcome { life: report.life.unwrap_or_default(), differences })
}

//! Runs of the program itself under the predicted settings.

use crate::limits::{LimitRow, LimitSetting, swap_bytes};
use crate::range::Range;
use crate::row::Row;
use crate::setting::Setting;
use quire_arch::PAGE_SIZE;
use quire_measure::{
    AtPeak, Guard, HostSettings, HugeSettings, LimitTruth, MeasureError, MemoryLimit, Options, Swap, Truth,
    measure,
};
use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{fmt, io};

/// A figure of a setting: what was predicted, and what the program then did.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Figure {
    /// Its name, as in `advise --json`.
    pub name: &'static str,
    /// `bytes`, `faults`, or `share` (0 to 1).
    pub unit: &'static str,
    /// What was predicted.
    pub predicted: Range,
    /// What was measured.
    pub measured: Range,
}

/// What was predicted for a setting, and what the program then did.
#[derive(Clone, PartialEq, Debug)]
pub struct Validation {
    /// The setting's name.
    pub setting: String,
    /// The figures that can be compared.
    pub figures: Vec<Figure>,
    /// The program's time from start to end, in seconds.
    pub seconds: Range,
}

/// What was predicted for a limit of memory, and what the program then did.
#[derive(Clone, PartialEq, Debug)]
pub struct LimitValidation {
    /// The limit.
    pub setting: LimitSetting,
    /// What can be compared, of the runs that ended well; empty if nothing was predicted, or none did.
    pub figures: Vec<Figure>,
    /// The time of those runs, in seconds.
    pub seconds: Range,
    /// What the cgroup was charged beside anonymous memory, in bytes, if the limit was reached.
    pub beside: Option<u64>,
    /// The program was predicted to fit.
    pub fits: bool,
    /// Runs in which Linux killed for memory.
    pub killed: u16,
    /// Runs that were ended because they took too long.
    pub late: u16,
}

/// Puts the files of `setting` in place.
fn apply(setting: &Setting) -> Result<Guard, MeasureError> {
    let host = HostSettings::default();
    let files = setting.files(|file| host.has(file)).into_iter();
    let words = files.fold(HugeSettings::new(), |words, (file, word)| words.with(file, word));
    host.apply(&words)
}

/// The program that is run.
pub struct Program<'p> {
    /// Its words.
    pub command: &'p [OsString],
    /// The standard input of each run.
    pub stdin: &'p dyn Fn() -> io::Result<Stdio>,
}

impl fmt::Debug for Program<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("command", &self.command).finish_non_exhaustive()
    }
}

impl Program<'_> {
    /// Runs it once.
    fn run(&self, options: &Options) -> Result<Truth, MeasureError> {
        let stdin = (self.stdin)()
            .map_err(|why| MeasureError::System { what: "the standard input of a run".to_owned(), why })?;
        let mut command = Command::new(self.command.first().cloned().unwrap_or_default());
        command.args(self.command.iter().skip(1)).stdin(stdin).stdout(Stdio::null());
        measure(command, options)
    }
}

/// A program within a limit may take so many times as long, and at least so many seconds.
const LONGER: f64 = 20.0;
const SHORTEST: f64 = 60.0;

/// Runs of the program within a limit.
#[derive(Debug)]
pub struct LimitRuns {
    setting: LimitSetting,
    /// Those that ended well, with their seconds.
    truths: Vec<(LimitTruth, f64)>,
    killed: u16,
    late: u16,
}

/// Runs `program`, which took `recorded` seconds, so many times in a memory cgroup with the limit of
/// `setting` and its swap, under the present setting of huge pages, and restores the host.
///
/// # Errors
///
/// [`MeasureError`]. That the program was killed for memory, or ended because it took too long, is none.
pub fn run_within(
    setting: &LimitSetting,
    present: &Setting,
    program: &Program<'_>,
    runs: u16,
    recorded: f64,
) -> Result<LimitRuns, MeasureError> {
    let swap = Swap { kind: setting.swap.measured(), bytes: swap_bytes(setting.need.anonymous) };
    let options = Options {
        timeout: Some(Duration::from_secs_f64((LONGER * recorded).max(SHORTEST))),
        limit: Some(MemoryLimit::new(setting.bytes, Some(swap))),
        ..Options::default()
    };
    let guard = apply(present)?;
    let runs = (0..runs).map(|_| program.run(&options)).collect::<Vec<_>>();
    guard.restore()?;
    let mut found = LimitRuns { setting: *setting, truths: Vec::new(), killed: 0, late: 0 };
    for run in runs {
        match run {
            Ok(Truth { limited: Some(limited), .. }) if limited.oom_kills > 0 => found.killed += 1,
            Ok(Truth { status, .. }) if !status.success() => return Err(MeasureError::Failed(status)),
            Ok(Truth { limited: Some(limited), wall, .. }) => {
                found.truths.push((limited, wall.as_secs_f64()));
            }
            Ok(_) => {}
            Err(MeasureError::Killed { .. }) => found.killed += 1,
            Err(MeasureError::Timeout(_)) => found.late += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

impl LimitRuns {
    /// What the cgroup was charged beside anonymous memory, in bytes, once the limit was reached: the median
    /// of the runs that ended well. None if it was not in any.
    #[must_use]
    pub fn beside(&self) -> Option<u64> {
        let charges = self.truths.iter().filter_map(|(truth, _)| truth.limited);
        let beside: Vec<f64> = charges.map(|charge| (charge.kernel + charge.file) as f64).collect();
        (!beside.is_empty()).then(|| Range::of(beside).median as u64)
    }

    /// Compares a prediction with them.
    #[must_use]
    pub fn compare(&self, predicted: &LimitRow) -> LimitValidation {
        let truths = &self.truths;
        let measured =
            |of: fn(&LimitTruth) -> u64| Range::of(truths.iter().map(|(truth, _)| of(truth) as f64));
        let mut figures = Vec::new();
        if let Some(found) = predicted.figures.filter(|_| !truths.is_empty()) {
            let figure = |name, unit, predicted, of| Figure { name, unit, predicted, measured: measured(of) };
            figures.push(figure("major_faults", "faults", found.major_faults, |truth| truth.major_faults));
            figures.push(figure("swap_read", "bytes", found.swap_read, |truth| pages(truth).0 * PAGE_SIZE));
            figures.push(figure("swap_written", "bytes", found.swap_written, |truth| {
                pages(truth).1 * PAGE_SIZE
            }));
            if let Some(compressed) = found.compressed {
                figures.push(figure("compressed", "bytes", compressed, |truth| {
                    let swap = truth.swap.as_ref();
                    swap.and_then(|swap| swap.fullest).map_or(0, |fullest| fullest.compressed)
                }));
            }
        }
        LimitValidation {
            setting: self.setting,
            figures,
            seconds: Range::of(truths.iter().map(|&(_, seconds)| seconds)),
            beside: self.beside(),
            fits: predicted.fits(),
            killed: self.killed,
            late: self.late,
        }
    }
}

/// Pages in and out, as a replay counts them: from and to the device or the pool in front of it, those that
/// were written back from the pool once.
fn pages(truth: &LimitTruth) -> (u64, u64) {
    let Some(swap) = &truth.swap else { return (0, 0) };
    let pages = swap.pages;
    let out = (pages.written + pages.zswap_written).saturating_sub(pages.zswap_written_back);
    (pages.read + pages.zswap_read, out)
}

/// Runs `program` so many times under each of `settings` on this host, which come with their predictions, and
/// restores the host's settings. The settings take turns: other load on the host affects all of them. The
/// program's standard output is dropped: it was shown when the program was recorded.
///
/// # Errors
///
/// [`MeasureError`]. The host's settings are as they were.
pub fn validate(
    settings: &[(&Setting, &Row)],
    program: &Program<'_>,
    runs: u16,
) -> Result<Vec<Validation>, MeasureError> {
    let mut truths: Vec<Vec<Truth>> = settings.iter().map(|_| Vec::new()).collect();
    for round in 0..runs {
        // Counting takes time that is not the program's: only the first run's.
        let options = Options { huge_faults: round == 0, ..Options::default() };
        for ((setting, _), truths) in settings.iter().zip(&mut truths) {
            let guard = apply(setting)?;
            let truth = program.run(&options);
            guard.restore()?;
            let truth = truth?;
            if !truth.status.success() {
                return Err(MeasureError::Failed(truth.status));
            }
            truths.push(truth);
        }
    }
    let pairs = settings.iter().zip(&truths);
    Ok(pairs.map(|(&(setting, row), truths)| validation(setting, row, truths)).collect())
}

fn validation(setting: &Setting, predicted: &Row, truths: &[Truth]) -> Validation {
    let range = |of: &dyn Fn(&Truth) -> f64| Range::of(truths.iter().map(of));
    let figure = |name, unit, predicted, of: &dyn Fn(&Truth) -> f64| Figure {
        name,
        unit,
        predicted,
        measured: range(of),
    };
    let huge_share = |truth: &Truth| truth.at_peak.as_ref().map_or(0.0, AtPeak::huge_share);
    let own: Vec<f64> = truths.iter().filter_map(|truth| Some(truth.huge_faults? as f64)).collect();
    // Where the program's own cannot be counted there is the host's count.
    let huge_faults =
        if own.is_empty() { range(&|truth| truth.host.huge_faults as f64) } else { Range::of(own) };
    Validation {
        setting: setting.name.clone(),
        figures: vec![
            figure("peak_anonymous", "bytes", predicted.peak_anonymous, &|truth| {
                truth.peak_anonymous_once as f64
            }),
            figure("peak_largest", "bytes", predicted.peak_largest, &|truth| truth.peak_anonymous as f64),
            figure("peak_page_tables", "bytes", predicted.peak_page_tables, &|truth| {
                truth.peak_page_tables_all as f64
            }),
            Figure {
                name: "huge_faults",
                unit: "faults",
                predicted: predicted.huge_faults,
                measured: huge_faults,
            },
            figure("huge_share", "share", predicted.huge_share, &huge_share),
        ],
        seconds: range(&|truth| truth.wall.as_secs_f64()),
    }
}

impl Figure {
    /// How far the median of the prediction is from what was measured, as a share of that. None where nothing
    /// was measured.
    #[must_use]
    pub fn error(&self) -> Option<f64> {
        let (predicted, measured) = (self.predicted.median, self.measured.median);
        (measured != 0.0).then(|| predicted / measured - 1.0)
    }
}

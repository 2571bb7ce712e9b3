//! `quire advise`.

use super::at_once;
use super::record::{not_recorded, pressure, swap_to_keep};
use super::scratch::scratch;
use crate::args::AdviseArguments;
use crate::exit::Failure;
use crate::output::{advice, progress::Bar, say, spark::may_draw};
use crate::pictures::{self, Report};
use quire_advise::{
    AdviseError, LimitSetting, LimitValidation, Prediction, Validation, heat, peak_anonymous, predict,
    predict_beside, run_within, validate,
};
use quire_measure::{Costs, HostSettings, HostSwap, MeasureError, limit_files};
use quire_trace::format::Pressure;
use quire_trace::record::{RecordError, RecordOptions, RecordTarget, ShownLimit, record};
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

pub(crate) fn run(arguments: &AdviseArguments) -> Result<ExitCode, Failure> {
    if arguments.files.is_empty() && arguments.command.is_empty() {
        return Err(Failure::input(
            "name a program, `quire advise -- CMD ARGS...`, or recordings, `quire advise FILE...`; `quire advise --help` \
             tells what there is",
        ));
    }
    let mut report = Report::new(arguments.report.as_deref(), "quire advise")?;
    if arguments.validate {
        HostSettings::default().check_free().map_err(Failure::work)?;
    }
    let mut recordings = Recordings { files: arguments.files.clone(), open: Vec::new(), opened: None };
    if recordings.files.is_empty() {
        let wall = recordings.record(&arguments.command, arguments.runs)?;
        if !arguments.no_limits {
            recordings.record_under_pressure(arguments, wall)?;
        }
    }
    let prediction = with_progress(&recordings.files, arguments.jobs, Costs::kept().as_ref())?;
    if !arguments.json {
        advice::print(&prediction, may_draw(arguments.plain));
    }
    let (validations, limited) = if arguments.validate {
        (
            run_under_settings(&prediction, &arguments.command, arguments.runs)?,
            run_within_limit(&prediction, &recordings.files, arguments)?,
        )
    } else {
        (Vec::new(), None)
    };
    if arguments.json {
        advice::objects(&prediction, &validations, limited.as_ref()).iter().for_each(say);
    } else if arguments.validate {
        advice::print_validations(&validations, limited.as_ref(), arguments.runs);
    }
    if report.is_wanted() {
        let places: Vec<usize> = std::iter::once(0).chain(other_place(&prediction)).collect();
        let heats =
            heat(&recordings.files, &prediction, &places, at_once(arguments.jobs)).map_err(failure)?;
        report.add(pictures::advice(&prediction, &heats, &validations, limited.as_ref()), arguments.json);
        report.write()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The setting that is compared with the present one, by its place among the rows: the advised one; where
/// nothing is advised, the one that takes most more memory, or else huge pages always on.
fn other_place(prediction: &Prediction) -> Option<usize> {
    let (rows, verdict) = (&prediction.rows, &prediction.verdict);
    let named = verdict.recommended().or(verdict.most_memory.as_ref()).map(|gain| gain.place);
    let always = || rows.iter().position(|(setting, _)| setting.name == "thp=always");
    named.or_else(always).filter(|&place| place > 0)
}

/// Under pressure this share of the peak of anonymous memory stays resident: half of the smallest limit that
/// is tried for every program.
const PRESSURE_PERCENT: u64 = 25;
/// The least that stays resident.
const LEAST_PRESSURE: u64 = 1 << 20;
/// From this peak on one block in so many is paged out that about half of it is: a program of gigabytes would
/// be slowed many times.
const SAMPLED_PEAK: u64 = 512 << 20;
/// A program that takes so many times as long under pressure is recorded so once.
const TOO_SLOW: f64 = 4.0;

/// Recordings of one command.
struct Recordings {
    files: Vec<PathBuf>,
    /// Those that were made here have no names: they exist until all is replayed.
    open: Vec<Arc<File>>,
    /// The file in which the command read its memory limit, if it did.
    opened: Option<PathBuf>,
}

/// How a command is recorded.
#[derive(Clone, Copy, Default)]
struct Way {
    pressure: Option<Pressure>,
    /// The memory limit that it is shown.
    limit: Option<u64>,
}

impl Recordings {
    /// Records the command so many times. Returns how long it ran the first time.
    fn record(&mut self, command: &[OsString], runs: u16) -> Result<Duration, Failure> {
        let mut first = None;
        for run in 1..=runs {
            let wall =
                self.record_once(command, Way::default(), run)?.map_err(|error| not_recorded(error, None))?;
            first.get_or_insert(wall);
        }
        Ok(first.unwrap_or_default())
    }

    /// Records it as often under pressure, so that it is known what memory limits cost; once if it takes much
    /// longer than `plain` then. Where that cannot be done, the advice goes without.
    fn record_under_pressure(&mut self, arguments: &AdviseArguments, plain: Duration) -> Result<(), Failure> {
        let peak = peak_anonymous(&self.files, at_once(arguments.jobs)).map_err(failure)?;
        let bytes = (peak * PRESSURE_PERCENT / 100).max(LEAST_PRESSURE);
        let usual = (peak / (SAMPLED_PEAK / 2)).clamp(1, 4096).next_power_of_two() as u32;
        let one_in = arguments.sample.unwrap_or(usual);
        let part =
            if one_in == 1 { "all of its memory".to_owned() } else { format!("one block of {one_in}") };
        let goes_without = |why: &dyn fmt::Display| {
            eprintln!("quire: what memory limits cost is not predicted: {why}");
        };
        // Until the last recording ends.
        let swap = match swap_to_keep() {
            Ok(swap) => swap,
            Err(error) => {
                goes_without(&error.line());
                return Ok(());
            }
        };
        let mut runs = 0;
        for run in 1..=arguments.runs {
            let way = Way { pressure: Some(pressure(bytes, one_in)), limit: None };
            match self.record_once(&arguments.command, way, run)? {
                Ok(wall) => {
                    let [plain, pressed] = [plain, wall].map(|time| time.as_secs_f64());
                    eprintln!(
                        "quire: recorded under pressure in {pressed:.1} s, {:.1} times as long as without (on {part}; --sample N \
                         slows it less)",
                        pressed / plain.max(1e-3)
                    );
                    runs = run;
                    if pressed > plain * TOO_SLOW {
                        break;
                    }
                }
                Err(RecordError::Pressure(why)) => {
                    goes_without(&why);
                    break;
                }
                Err(error) => return Err(not_recorded(error, None)),
            }
        }
        if let Some(file) = self.opened.clone().filter(|_| runs > 0) {
            eprintln!(
                "quire: the program read its memory limit in {}, and may size itself by it: it is recorded again with each limit \
                 that is tried",
                file.display()
            );
            for limit in LimitSetting::tried(peak) {
                for run in 1..=runs {
                    let way = Way { pressure: Some(pressure(bytes, one_in)), limit: Some(limit) };
                    match self.record_once(&arguments.command, way, run)? {
                        Ok(_) => {}
                        // Its limits are predicted as those of other programs are.
                        Err(error @ RecordError::ShownLimit { .. }) => {
                            eprintln!("quire: {error}");
                            return swap.map_or(Ok(()), HostSwap::finish).map_err(Failure::work);
                        }
                        Err(error) => return Err(not_recorded(error, None)),
                    }
                }
            }
        }
        swap.map_or(Ok(()), HostSwap::finish).map_err(Failure::work)
    }

    /// Records it in run `run`, in this way. Returns how long it ran.
    fn record_once(
        &mut self,
        command: &[OsString],
        way: Way,
        run: u16,
    ) -> Result<Result<Duration, RecordError>, Failure> {
        let open = scratch().map_err(Failure::input)?;
        let mut options = RecordOptions::new(command.to_vec(), RecordTarget::Open(Arc::clone(&open)));
        let Way { pressure, limit } = way;
        options.reuse = None;
        options.pressure = pressure;
        match limit {
            Some(bytes) => options.shown_limit = Some(ShownLimit { files: limit_files(), bytes }),
            None => options.watched = limit_files(),
        }
        options.stdout_is_taken = true;
        let summary = match record(&options) {
            Ok(summary) => summary,
            Err(error) => return Ok(Err(error)),
        };
        if self.opened.is_none() {
            self.opened.clone_from(&summary.opened);
        }
        let run = if pressure.is_some() { format!("{run} under pressure") } else { run.to_string() };
        if let Some(signal) = summary.interrupted {
            return Err(Failure::work(format!(
                "interrupted by signal {signal} in run {run}; nothing is kept"
            )));
        }
        if summary.exit_code() != 0 {
            eprintln!("quire: the program ended with code {} (run {run})", summary.exit_code());
        }
        self.files.push(PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd())));
        self.open.push(open);
        Ok(Ok(summary.wall))
    }
}

/// Runs the program under the present setting, and under the other one.
fn run_under_settings(
    prediction: &Prediction,
    command: &[OsString],
    runs: u16,
) -> Result<Vec<Validation>, Failure> {
    let places = std::iter::once(0).chain(other_place(prediction));
    let rows = places.filter_map(|place| prediction.rows.get(place));
    let settings: Vec<_> = rows.map(|(setting, row)| (setting, row)).collect();
    validate(&settings, command, runs).map_err(Failure::work)
}

/// Runs the program within the limit that is enough, or else within 75 % of its peak with the first kind of
/// swap. What is predicted for that takes what the cgroup was charged beside anonymous memory as it was
/// measured.
fn run_within_limit(
    prediction: &Prediction,
    files: &[PathBuf],
    arguments: &AdviseArguments,
) -> Result<Option<LimitValidation>, Failure> {
    let limits = &prediction.limits;
    let enough = limits.enough.as_ref().map(|enough| enough.least.setting);
    let chosen =
        limits.all().find(|(setting, _)| enough.map_or(setting.percent == 75, |least| least == **setting));
    let (Some((setting, row)), Some((present, _))) = (chosen, prediction.rows.first()) else {
        return Ok(None);
    };
    let (command, runs) = (&arguments.command, arguments.runs);
    match run_within(setting, present, command, runs, prediction.seconds) {
        Ok(found) => {
            let beside = found.beside().filter(|_| limits.known);
            let beside = beside.map(|bytes| predict_beside(files, at_once(arguments.jobs), setting, bytes));
            let beside = beside.transpose().map_err(failure)?;
            Ok(Some(found.compare(beside.as_ref().unwrap_or(row))))
        }
        Err(error @ MeasureError::NotRestored(_)) => Err(Failure::work(error)),
        // As on a host without zram: what was measured without a limit is worth printing.
        Err(error) => {
            eprintln!("quire: not run within {}: {error}", setting.name());
            Ok(None)
        }
    }
}

/// Predicts, with progress on a terminal. `costs` are this host's, if it was calibrated.
pub(crate) fn with_progress(
    files: &[PathBuf],
    jobs: Option<usize>,
    costs: Option<&Costs>,
) -> Result<Prediction, Failure> {
    let bar = Bar::new("advise", "replays");
    let prediction = predict(files, at_once(jobs), costs, &|done, total| {
        bar.set(done as u64, total as u64);
    });
    bar.finish();
    prediction.map_err(failure)
}

fn failure(error: AdviseError) -> Failure {
    match error {
        AdviseError::DoesNotFit(..) => Failure::work(error),
        _ => Failure::input(error),
    }
}

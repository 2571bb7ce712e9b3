//! `quire advise`.

use super::input::Input;
use super::recordings::Recordings;
use super::replay::refuse_pipe;
use super::{at_once, merge, other_place};
use crate::args::AdviseArguments;
use crate::failure::{FOUND_FAILURE, Failure};
use crate::output::{advice, progress::Bar, say_json, spark::may_draw, warn};
use crate::pictures::{self, ReportPage};
use quire_advise::{
    Host, LimitValidation, Prediction, Program, Validation, heat, predict, predict_beside, run_within,
    validate,
};
use quire_measure::{Costs, HostSettings, MeasureError, SwapSupport};
use quire_trace::format::TraceReader;
use quire_trace::strip::is_stripped;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(crate) fn run(arguments: &AdviseArguments) -> Result<ExitCode, Failure> {
    let host = || Host { costs: Costs::kept(), swaps: Some(SwapSupport::default()) };
    if !arguments.from.is_empty() {
        return merge::run(arguments, &host(), ReportPage::new(arguments.report.as_deref(), "quire advise")?);
    }
    if arguments.files.is_empty() && arguments.command.is_empty() {
        return Err(Failure::input(
            "name a program, `quire advise -- CMD ARGS...`, or recordings, `quire advise FILE...`; \
             `quire advise --help` tells what there is",
        ));
    }
    let mut report = ReportPage::new(arguments.report.as_deref(), "quire advise")?;
    if arguments.validate {
        HostSettings::default().check_free().map_err(Failure::work)?;
    }
    arguments.files.iter().try_for_each(|file| refuse_pipe(file))?;
    if arguments.validate {
        arguments.files.iter().try_for_each(|file| is_recording_of(file, &arguments.command))?;
    }
    let input = if arguments.command.is_empty() { Input::none() } else { Input::of_this_process()? };
    let mut recordings = Recordings::of(arguments.files.clone(), input);
    if recordings.files.is_empty() {
        let wall = recordings.record(&arguments.command, arguments.runs)?;
        if !arguments.no_limits {
            recordings.record_under_pressure(arguments, wall)?;
        }
    }
    let prediction = with_progress(&recordings.files, arguments.jobs, &host())?;
    if !arguments.json {
        advice::print(&prediction, may_draw(arguments.plain));
    }
    let (validations, limited) = if arguments.validate {
        (
            run_under_settings(&prediction, &recordings, arguments)?,
            run_within_limit(&prediction, &recordings, arguments)?,
        )
    } else {
        (Vec::new(), None)
    };
    if arguments.json {
        advice::objects(&prediction, &validations, limited.as_ref()).iter().for_each(say_json);
    } else if arguments.validate {
        advice::print_validations(&validations, limited.as_ref(), arguments.runs);
    }
    if report.is_wanted() {
        let places: Vec<usize> = std::iter::once(0).chain(other_place(&prediction)).collect();
        let heats = heat(&recordings.files, &prediction, &places, at_once(arguments.jobs))?;
        report.add(pictures::advice(&prediction, &heats, &validations, limited.as_ref()), arguments.json);
        report.write()?;
    }
    let Some(why) = &prediction.unreliable else { return Ok(ExitCode::SUCCESS) };
    if arguments.json {
        warn(format_args!("no verdict, and no limit: {why}"));
    }
    Ok(ExitCode::from(FOUND_FAILURE))
}

/// Refuses a recording of another command than the one that is to be run. Where the program's folders were
/// stripped from the recording they do not count, nor does the way in which it was named.
fn is_recording_of(file: &Path, command: &[OsString]) -> Result<(), Failure> {
    let reader = TraceReader::open(file).map_err(Failure::input)?;
    let recorded = &reader.header().command;
    let last = |word: &[u8]| word.rsplit(|&byte| byte == b'/').next().unwrap_or_default().to_vec();
    let given = command.iter().map(|word| last(word.as_bytes()));
    if is_stripped(recorded) {
        warn(format_args!("{} was stripped: whether it is of this command is not known", file.display()));
    } else if !given.eq(recorded.iter().map(|word| last(word))) {
        let words: Vec<_> = recorded.iter().map(|word| String::from_utf8_lossy(word)).collect();
        return Err(Failure::input(format!(
            "{} is a recording of `{}`: name that command after --validate",
            file.display(),
            words.join(" ")
        )));
    }
    Ok(())
}

/// Runs the program under the present setting, and under the other one.
fn run_under_settings(
    prediction: &Prediction,
    recordings: &Recordings,
    arguments: &AdviseArguments,
) -> Result<Vec<Validation>, Failure> {
    let places = std::iter::once(0).chain(other_place(prediction));
    let rows = places.filter_map(|place| prediction.rows.get(place));
    let settings: Vec<_> = rows.map(|(setting, row)| (setting, row)).collect();
    let program = Program { command: &arguments.command, stdin: &|| recordings.stdio() };
    let found = validate(&settings, &program, arguments.runs).map_err(Failure::work)?;
    recordings.end_input()?;
    Ok(found)
}

/// Runs the program within the limit that is enough, or else within 75 % of its peak with the first kind of
/// swap. What is predicted for that takes what the cgroup was charged beside anonymous memory as it was
/// measured.
fn run_within_limit(
    prediction: &Prediction,
    recordings: &Recordings,
    arguments: &AdviseArguments,
) -> Result<Option<LimitValidation>, Failure> {
    let limits = &prediction.limits;
    let enough = limits.enough.as_ref().map(|enough| enough.least.setting);
    let chosen =
        limits.all().find(|(setting, _)| enough.map_or(setting.percent == 75, |least| least == **setting));
    let (Some((setting, row)), Some((present, _))) = (chosen, prediction.rows.first()) else {
        return Ok(None);
    };
    let (files, runs) = (&recordings.files, arguments.runs);
    let program = Program { command: &arguments.command, stdin: &|| recordings.stdio() };
    let found = run_within(setting, present, &program, runs, prediction.seconds);
    recordings.end_input()?;
    match found {
        Ok(found) => {
            let beside = found.beside().filter(|_| limits.known);
            let beside = beside.map(|bytes| predict_beside(files, at_once(arguments.jobs), setting, bytes));
            let beside = beside.transpose()?;
            Ok(Some(found.compare(beside.as_ref().unwrap_or(row))))
        }
        Err(error @ (MeasureError::NotRestored(_) | MeasureError::Failed(_))) => Err(Failure::work(error)),
        // As on a host without zram: what was measured without a limit is worth printing.
        Err(error) => {
            warn(format_args!("not run within {}: {error}", setting.name()));
            Ok(None)
        }
    }
}

/// Predicts, with progress on a terminal: advice for this host.
pub(crate) fn with_progress(
    files: &[PathBuf],
    jobs: Option<usize>,
    host: &Host,
) -> Result<Prediction, Failure> {
    let bar = Bar::new("advise", "replays");
    let prediction = predict(files, at_once(jobs), host, &|done, total| {
        bar.set(done as u64, total as u64);
    });
    bar.finish();
    Ok(prediction?)
}

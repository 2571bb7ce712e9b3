//! `quire advise`.

use super::calibrate::fault_seconds;
use super::scratch::scratch;
use crate::args::AdviseArguments;
use crate::exit::Failure;
use crate::output::{advice, progress::Bar};
use quire_advise::{AdviseError, FAULT_SECONDS, Prediction, Validation, predict, validate};
use quire_trace::record::{RecordOptions, RecordTarget, record};
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

pub(crate) fn run(arguments: AdviseArguments) -> Result<ExitCode, Failure> {
    // Kept until all is replayed.
    let mut recordings: Vec<Arc<File>> = Vec::new();
    let mut files = arguments.files;
    let to_record = if files.is_empty() { arguments.runs } else { 0 };
    for number in 0..to_record {
        let open = scratch().map_err(Failure::input)?;
        files.push(PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd())));
        let mut options =
            RecordOptions::new(arguments.command.clone(), RecordTarget::Open(Arc::clone(&open)));
        options.reuse = None;
        options.stdout_is_taken = true;
        let summary = record(&options).map_err(Failure::input)?;
        if summary.exit_code() != 0 {
            eprintln!("quire: the program ended with code {} (run {})", summary.exit_code(), number + 1);
        }
        recordings.push(open);
    }
    let prediction = with_progress(&files, arguments.jobs)?;
    if arguments.json {
        advice::print_json(&prediction);
    } else {
        advice::print(&prediction);
    }
    if arguments.validate {
        let validations = run_under_settings(&prediction, &arguments.command, arguments.runs)?;
        if arguments.json {
            advice::print_validations_json(&validations);
        } else {
            advice::print_validations(&validations, arguments.runs);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the program under the present setting, and under the advised one; where nothing is advised, under the one
/// that takes most more memory, or else with huge pages always on.
fn run_under_settings(
    prediction: &Prediction,
    command: &[OsString],
    runs: u16,
) -> Result<Vec<Validation>, Failure> {
    let rows = &prediction.rows;
    let verdict = &prediction.verdict;
    let advised = verdict.recommended().or(verdict.most_memory.as_ref()).map(|gain| gain.place);
    let always = || rows.iter().position(|(setting, _)| setting.name == "thp=always");
    let other = advised.or_else(always).filter(|&place| place > 0);
    std::iter::once(0)
        .chain(other)
        .filter_map(|place| rows.get(place))
        .map(|(setting, row)| validate(setting, row, command, runs).map_err(Failure::work))
        .collect()
}

/// Predicts, with progress on a terminal.
pub(crate) fn with_progress(files: &[PathBuf], jobs: Option<usize>) -> Result<Prediction, Failure> {
    let bar = Bar::new("advise", "replays");
    let at_once = jobs.or_else(|| std::thread::available_parallelism().ok().map(usize::from)).unwrap_or(1);
    let prediction = predict(files, at_once, fault_seconds().unwrap_or(FAULT_SECONDS), &|done, total| {
        bar.set(done as u64, total as u64);
    });
    bar.finish();
    prediction.map_err(|error| match error {
        AdviseError::DoesNotFit(..) => Failure::work(error),
        _ => Failure::input(error),
    })
}

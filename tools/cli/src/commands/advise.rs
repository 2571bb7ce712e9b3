//! `quire advise`.

use super::scratch::scratch;
use crate::args::AdviseArguments;
use crate::exit::Failure;
use crate::output::{advice, progress::Bar};
use quire_advise::{AdviseError, Prediction, predict};
use quire_trace::record::{RecordOptions, RecordTarget, record};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

pub(crate) fn run(arguments: AdviseArguments) -> Result<ExitCode, Failure> {
    // Kept until all is replayed.
    let mut recordings: Vec<Arc<File>> = Vec::new();
    let mut files = arguments.files;
    for number in 0..if arguments.command.is_empty() { 0 } else { arguments.runs } {
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
    Ok(ExitCode::SUCCESS)
}

/// Predicts, with progress on a terminal.
pub(crate) fn with_progress(files: &[PathBuf], jobs: Option<usize>) -> Result<Prediction, Failure> {
    let bar = Bar::new("advise", "replays");
    let at_once = jobs.or_else(|| std::thread::available_parallelism().ok().map(usize::from)).unwrap_or(1);
    let prediction = predict(files, at_once, &|done, total| bar.set(done as u64, total as u64));
    bar.finish();
    prediction.map_err(|error| match error {
        AdviseError::DoesNotFit(..) => Failure::work(error),
        _ => Failure::input(error),
    })
}

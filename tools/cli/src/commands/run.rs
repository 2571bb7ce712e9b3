//! `quire run`: record and replay in one.

use super::record::not_recorded;
use super::replay::{replay, show};
use crate::args::RunArguments;
use crate::failure::{FOUND_FAILURE, Failure};
use crate::output::tell;
use quire_output::temporary_file;
use quire_record::{CallChoice, RecordOptions, RecordTarget, record};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

pub(crate) fn run(arguments: RunArguments) -> Result<ExitCode, Failure> {
    // What to record to, where to read it, and what to call it.
    let output = arguments.output.clone();
    let (target, file, name) = match arguments.output {
        Some(file) => (RecordTarget::File(file.clone()), file.clone(), file),
        None => {
            let open = Arc::new(temporary_file()?);
            let file = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
            (RecordTarget::Open(open), file, Path::new("quire run").to_path_buf())
        }
    };
    let mut options = RecordOptions::new(arguments.command, target);
    options.force = arguments.force;
    // Results are compared with those of a Linux that has huge pages.
    options.thp = true;
    // One by one, in an order that is observed and not derived.
    options.calls = CallChoice::Stops;
    let summary = record(&options).map_err(|error| not_recorded(error, output.as_deref()))?;
    tell(&summary);
    let report = replay(&file, &arguments.machine, false, false)?;
    show(&name, &report, arguments.json);
    Ok(if report.is_good() { ExitCode::from(summary.exit_code()) } else { ExitCode::from(FOUND_FAILURE) })
}

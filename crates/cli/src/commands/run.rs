//! `quire run`: record and replay in one.

use super::replay::{replay, show};
use crate::args::RunArguments;
use crate::exit::{FOUND_FAILURE, Failure};
use quire_trace::format::EXTENSION;
use quire_trace::record::{RecordOptions, record};
use std::path::PathBuf;
use std::process::ExitCode;

/// A recording that goes away when the command ends.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // It may be gone already; there is nobody to tell.
        let _ = std::fs::remove_file(&self.0);
    }
}

pub(crate) fn run(arguments: RunArguments) -> Result<ExitCode, Failure> {
    let scratch;
    let file = match arguments.output {
        Some(file) => file,
        None => {
            let name = format!("quire-run-{}.{EXTENSION}", std::process::id());
            scratch = Scratch(std::env::temp_dir().join(name));
            scratch.0.clone()
        }
    };
    let summary = record(&RecordOptions::new(arguments.command, file.clone())).map_err(Failure::input)?;
    eprint!("{summary}");
    let report = replay(&file, &arguments.machine, false)?;
    show(&file, &report, arguments.machine.json);
    Ok(if report.is_good() { ExitCode::from(summary.exit_code()) } else { ExitCode::from(FOUND_FAILURE) })
}

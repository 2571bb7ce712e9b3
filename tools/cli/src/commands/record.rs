//! `quire record`.

use crate::args::{RecordArguments, Switch};
use crate::exit::Failure;
use quire_trace::record::{RecordOptions, RecordTarget, record};
use std::process::ExitCode;
use std::time::Duration;

pub(crate) fn run(arguments: RecordArguments) -> Result<ExitCode, Failure> {
    let output = match arguments.output.to_str() {
        Some("-") => RecordTarget::Stdout,
        _ => RecordTarget::File(arguments.output),
    };
    let mut options = RecordOptions::new(arguments.command, output);
    options.force = arguments.force;
    options.faults = arguments.faults;
    options.thp = arguments.thp == Switch::On;
    options.reuse = (!arguments.no_reuse).then(|| Duration::from_millis(arguments.reuse));
    let summary = record(&options).map_err(Failure::input)?;
    // On stderr: standard output is the recorded program's.
    eprint!("{summary}");
    Ok(ExitCode::from(summary.exit_code()))
}

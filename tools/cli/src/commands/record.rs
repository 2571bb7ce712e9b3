//! `quire record`.

use crate::args::{RecordArguments, Switch};
use crate::exit::Failure;
use quire_measure::{HostSwap, Swap, SwapKind};
use quire_trace::record::{RecordError, RecordOptions, RecordTarget, host_memory, record};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

pub(crate) fn run(arguments: RecordArguments) -> Result<ExitCode, Failure> {
    let name = arguments.output.clone();
    let output = match arguments.output.to_str() {
        Some("-") => RecordTarget::Stdout,
        _ => RecordTarget::File(arguments.output),
    };
    let mut options = RecordOptions::new(arguments.command, output);
    options.force = arguments.force;
    options.faults = arguments.faults;
    options.thp = arguments.thp == Switch::On;
    options.reuse = (!arguments.no_reuse).then(|| Duration::from_millis(arguments.reuse));
    options.pressure = arguments.pressure;
    // Until the recording ends.
    let swap = options.pressure.map(|_| swap_if_none()).transpose()?.flatten();
    let summary = record(&options).map_err(|error| not_recorded(error, Some(&name)))?;
    if let Some(swap) = swap {
        swap.finish().map_err(Failure::work)?;
    }
    // On stderr: standard output is the recorded program's.
    eprint!("{summary}");
    Ok(ExitCode::from(summary.exit_code()))
}

/// Why there is no recording, which was to be written to `output`, or to a file without a name.
pub(crate) fn not_recorded(error: RecordError, output: Option<&Path>) -> Failure {
    match error {
        RecordError::Trace(error) => {
            let place = output.map_or_else(std::env::temp_dir, Path::to_path_buf);
            let hint = if output.is_none() { "; TMPDIR names another folder" } else { "" };
            Failure::work(format!(
                "{}: not recorded, though the program ran to its end: {error}{hint}",
                place.display()
            ))
        }
        RecordError::Start { .. } | RecordError::Broken => Failure::work(error),
        error => Failure::input(error),
    }
}

/// Compressed memory as swap, if the host has none: as much as it has memory.
pub(crate) fn swap_if_none() -> Result<Option<HostSwap>, Failure> {
    let (ram, swap) = host_memory();
    if swap > 0 {
        return Ok(None);
    }
    HostSwap::start(Swap { kind: SwapKind::Zram, bytes: ram }).map(Some).map_err(Failure::input)
}

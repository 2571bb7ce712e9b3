//! `quire record`.

use crate::args::{RecordArguments, Switch};
use crate::exit::Failure;
use quire_measure::{HostSwap, Swap, SwapKind};
use quire_trace::record::{RecordOptions, RecordTarget, host_memory, record};
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
    options.pressure = arguments.pressure;
    // Until the recording ends.
    let swap = options.pressure.map(|_| swap_if_none()).transpose()?.flatten();
    let summary = record(&options).map_err(Failure::input)?;
    if let Some(swap) = swap {
        swap.finish().map_err(Failure::work)?;
    }
    // On stderr: standard output is the recorded program's.
    eprint!("{summary}");
    Ok(ExitCode::from(summary.exit_code()))
}

/// Compressed memory as swap, if the host has none: as much as it has memory.
pub(crate) fn swap_if_none() -> Result<Option<HostSwap>, Failure> {
    let (ram, swap) = host_memory();
    if swap > 0 {
        return Ok(None);
    }
    HostSwap::start(Swap { kind: SwapKind::Zram, bytes: ram }).map(Some).map_err(Failure::input)
}

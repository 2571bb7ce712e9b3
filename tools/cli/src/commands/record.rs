//! `quire record`.

use crate::args::{RecordArguments, Switch};
use crate::failure::Failure;
use crate::output::{tell, warn};
use quire_measure::{HostSwap, MeasureError, Swap, SwapKind, limit_files};
use quire_record::{RecordError, RecordOptions, RecordTarget, ShownLimit, host_memory, record};
use quire_trace::format::Pressure;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) fn run(arguments: RecordArguments) -> Result<ExitCode, Failure> {
    let name = arguments.output.clone();
    let output = match arguments.output.to_str() {
        Some("-") => RecordTarget::Stdout,
        _ => RecordTarget::File(arguments.output),
    };
    let mut options = RecordOptions::new(arguments.command, output);
    options.force = arguments.force;
    options.faults = arguments.faults;
    options.calls = arguments.calls;
    options.cold = arguments.cold;
    options.thp = arguments.thp == Switch::On;
    options.reuse = (!arguments.no_reuse).then(|| Duration::from_millis(arguments.reuse));
    options.pressure = arguments.pressure.map(|bytes| pressure(bytes, arguments.sample.unwrap_or(1)));
    // Until the recording ends.
    let swap = options.pressure.map(|_| swap_to_keep()).transpose()?.flatten();
    match arguments.show_limit {
        Some(bytes) => options.shown_limit = Some(ShownLimit { files: limit_files(), bytes }),
        None => options.watched = limit_files(),
    }
    let summary = record(&options).map_err(|error| not_recorded(error, Some(&name)))?;
    if let Some(swap) = swap {
        swap.finish().map_err(Failure::work)?;
    }
    // On stderr: standard output is the recorded program's.
    tell(&summary);
    if let Some(file) = &summary.opened {
        warn(format_args!(
            "the program read its memory limit in {}, and may size itself by it; record it with --pressure and \
             --show-limit to predict a limit",
            file.display()
        ));
    }
    Ok(ExitCode::from(summary.exit_code()))
}

/// Pressure on one block in `one_in`, others each time. Blocks are as large as 2 MiB pages where any program
/// may get such, so that a replay finds them whole.
pub(crate) fn pressure(bytes: u64, one_in: u32) -> Pressure {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let pressure = Pressure::of_sample(bytes, one_in, now.map_or(0, |now| now.as_nanos() as u64));
    let huge = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if huge.is_ok_and(|words| words.contains("[always]")) { pressure } else { pressure.in_small_blocks() }
}

/// Why there is no recording, which was to be written to `output`, or to a file without a name.
pub(crate) fn not_recorded(error: RecordError, output: Option<&Path>) -> Failure {
    match error {
        RecordError::Trace(error) => {
            let place = output.map_or_else(tempfile::env::temp_dir, Path::to_path_buf);
            let hint = if output.is_none() { "; TMPDIR names another folder" } else { "" };
            Failure::work(format!(
                "{}: not recorded, though the program ran to its end: {error}{hint}",
                place.display()
            ))
        }
        RecordError::Output(error) => error.into(),
        RecordError::Start { .. } | RecordError::Broken => Failure::work(error),
        error => Failure::input(error),
    }
}

/// Swap that stays for a recording: compressed memory, as much as the host has memory, if it has none of its
/// own. Only root can change the host's.
pub(crate) fn swap_to_keep() -> Result<Option<HostSwap>, Failure> {
    let (ram, swap) = host_memory();
    match HostSwap::where_none(Swap { kind: SwapKind::Zram, bytes: ram }) {
        Ok(kept) => Ok(Some(kept)),
        Err(MeasureError::Denied { .. }) if swap > 0 => Ok(None),
        Err(error) => Err(Failure::input(error)),
    }
}

//! `quire trace`.

use crate::args::{TraceAction, TraceArguments};
use crate::failure::Failure;
use crate::output::{dump, tell, warn};
use quire_trace::format::TraceReader;
use quire_trace::strip::{StripError, StripOptions, strip};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(arguments: &TraceArguments) -> Result<ExitCode, Failure> {
    match &arguments.action {
        TraceAction::Dump { file, salvage } => print_recording(file, *salvage),
        TraceAction::Strip { input, output, keep_names, force } => {
            let options = StripOptions { keep_names: *keep_names, force: *force };
            tell(strip(input, output, options).map_err(|error| match error {
                StripError::Output(error) => error.into(),
                // The disk is full.
                error @ StripError::Write { .. } => Failure::work(error),
                error => Failure::input(error),
            })?);
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn print_recording(file: &Path, salvage: bool) -> Result<ExitCode, Failure> {
    let reader = TraceReader::open(file).map_err(Failure::input)?;
    let mut reader = if salvage { reader.salvaging() } else { reader };
    let mut out = BufWriter::new(io::stdout().lock());
    let mut written = dump::header(&mut out, reader.header());
    for event in &mut reader {
        if written.is_err() {
            break;
        }
        written = dump::event(&mut out, &event.map_err(Failure::input)?);
    }
    if let (Ok(()), Some(trailer)) = (&written, reader.trailer()) {
        written = dump::trailer(&mut out, trailer);
    }
    match written.and_then(|()| out.flush()) {
        // The reader of the pipe wants no more.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
        Err(error) => return Err(Failure::work(format!("standard output: {error}"))),
        Ok(()) => {}
    }
    if let Some(damage) = reader.damage() {
        warn(format_args!("{}: {damage}", file.display()));
    }
    Ok(ExitCode::SUCCESS)
}

//! `quire import`.

use crate::args::{ImportArguments, ImportFormat};
use crate::exit::Failure;
use quire_trace::import;
use std::process::ExitCode;

pub(crate) fn run(arguments: ImportArguments) -> Result<ExitCode, Failure> {
    let ImportFormat::Lackey { input, output } = arguments.format;
    let summary = import::lackey(&input, &output).map_err(Failure::input)?;
    eprint!("{summary}");
    Ok(ExitCode::SUCCESS)
}

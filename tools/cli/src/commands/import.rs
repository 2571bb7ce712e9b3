//! `quire import`.

use crate::args::{ImportArguments, ImportFormat};
use crate::failure::Failure;
use crate::output::tell;
use quire_trace::import::{self, ImportError};
use std::process::ExitCode;

pub(crate) fn run(arguments: ImportArguments) -> Result<ExitCode, Failure> {
    let ImportFormat::Lackey { input, output, force } = arguments.format;
    let summary = import::lackey(&input, &output, force).map_err(|error| match error {
        ImportError::Output(error) => error.into(),
        // The disk is full.
        error @ ImportError::Trace { .. } => Failure::work(error),
        error => Failure::input(error),
    })?;
    tell(summary);
    Ok(ExitCode::SUCCESS)
}

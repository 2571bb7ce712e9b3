//! `quire calibrate`.

use crate::args::CalibrateArguments;
use crate::failure::Failure;
use crate::output::costs;
use std::process::ExitCode;

pub(crate) fn run(arguments: &CalibrateArguments) -> Result<ExitCode, Failure> {
    let measured = quire_measure::calibrate().map_err(Failure::work)?;
    if arguments.json {
        costs::print_json(&measured)?;
    } else {
        costs::print(&measured);
    }
    measured
        .keep()
        .map_err(|error| Failure::work(format!("the costs could not be kept for `quire advise`: {error}")))?;
    Ok(ExitCode::SUCCESS)
}

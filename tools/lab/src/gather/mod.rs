//! The experiment `gather`: what unmapping and forking cost, page by page and a run at a time.
//!
//! Everything is measured for both strategies and, where it can do the same, on the host's Linux, round by
//! round in turn; `comparison` does that.

mod builds;
mod comparison;
mod count;
mod fork;
mod interrupts;
mod linux;
mod scale;
mod teardown;

pub use count::count;
pub use scale::Scale;

use crate::error::LabError;
use crate::report::Report;
use quire_mm::GatherTechnique;

/// The experiment's name on the command line.
pub const NAME: &str = "gather";

/// A machine under one strategy.
type Site = crate::site::Site<GatherTechnique>;

/// Bytes of memory that are unmapped at a time where it is unmapped in pieces.
const PIECE: u64 = 64 << 10;

/// Runs the experiment. `progress` gets the current step, how many steps are done, and how many there
/// are.
///
/// Where the process may, it sets the host's controls of large folios for as long as Linux is measured.
///
/// # Errors
///
/// It could not be carried out. What it finds wrong is in the report.
pub fn run(
    scale: &Scale,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<Report<GatherTechnique>, LabError> {
    let total = teardown::steps() + fork::steps() + builds::steps() + interrupts::steps();
    let mut report = Report::new(NAME);
    let mut done = 0;
    let mut step = |what: &str| {
        progress(what, done, total);
        done += 1;
    };
    teardown::run(scale, &mut report, &mut step)?;
    fork::run(scale, &mut report, &mut step)?;
    builds::run(scale, &mut report, &mut step)?;
    interrupts::run(scale, &mut report, &mut step)?;
    Ok(report)
}

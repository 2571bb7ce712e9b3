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
use crate::experiment::{self, Progress};
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
pub fn run(scale: &Scale, progress: Progress<'_>) -> Result<Report<GatherTechnique>, LabError> {
    let others = [fork::part(scale), builds::part(scale), interrupts::part(scale)];
    experiment::run(NAME, teardown::parts(scale).chain(others).collect(), progress)
}

//! The experiment `mremap`: moves by entries, by PTE tables and by PMD tables.
//!
//! Everything is measured for the three strategies and, where it can do the same, on the host's Linux, round
//! by round in turn.

mod collector;
mod count;
mod growth;
mod moves;
mod scale;

pub use count::count;
pub use scale::Scale;

use crate::error::LabError;
use crate::experiment::{self, Progress};
use crate::report::{Metric, RATIO, Report};
use quire_space::RemapTechnique;

/// The experiment's name on the command line.
pub const NAME: &str = "mremap";

const TIME_RATIO: Metric = Metric::lower(RATIO, "to ptes");

/// Runs the experiment. `progress` gets the current step, how many steps are done, and how many there
/// are.
///
/// Where the process may, it sets the host's controls of large folios for as long as Linux populates memory.
///
/// # Errors
///
/// It could not be carried out. What it finds wrong is in the report.
pub fn run(scale: &Scale, progress: Progress<'_>) -> Result<Report<RemapTechnique>, LabError> {
    experiment::run(
        NAME,
        moves::parts(scale).chain([growth::part(scale), collector::part(scale)]).collect(),
        progress,
    )
}

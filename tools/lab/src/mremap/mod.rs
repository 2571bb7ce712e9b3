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
pub fn run(
    scale: &Scale,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<Report<RemapTechnique>, LabError> {
    let total = moves::steps(scale) + growth::steps() + collector::steps();
    let mut report = Report::new(NAME);
    let mut done = 0;
    let mut step = |what: &str| {
        progress(what, done, total);
        done += 1;
    };
    moves::run(scale, &mut report, &mut step)?;
    growth::run(scale, &mut report, &mut step)?;
    collector::run(scale, &mut report, &mut step)?;
    Ok(report)
}

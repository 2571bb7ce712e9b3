//! The experiment `tables`: what freeing of empty page tables saves and costs.
//!
//! Everything is measured with such tables kept and freed and, where it can do the same, on the host's Linux,
//! round by round in turn.

mod borders;
mod count;
mod faults;
mod heap;
mod scale;
mod sweep;

pub use count::count;
pub use scale::Scale;

use crate::error::LabError;
use crate::experiment::{self, Progress};
use crate::report::{Metric, RATIO, Report};
use quire_space::TablesTechnique;

/// The experiment's name on the command line.
pub const NAME: &str = "tables";

const TIME_RATIO: Metric = Metric::lower(RATIO, "to keep");

/// Runs the experiment. `progress` gets the current step, how many steps are done, and how many there
/// are.
///
/// # Errors
///
/// It could not be carried out. What it finds wrong is in the report.
pub fn run(scale: &Scale, progress: Progress<'_>) -> Result<Report<TablesTechnique>, LabError> {
    experiment::run(
        NAME,
        vec![sweep::part(scale), heap::part(scale), borders::part(scale), faults::part(scale)],
        progress,
    )
}

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
pub fn run(
    scale: &Scale,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<Report<TablesTechnique>, LabError> {
    let total = sweep::steps() + heap::steps() + borders::steps() + faults::steps();
    let mut report = Report::new(NAME);
    let mut done = 0;
    let mut step = |what: &str| {
        progress(what, done, total);
        done += 1;
    };
    sweep::run(scale, &mut report, &mut step)?;
    heap::run(scale, &mut report, &mut step)?;
    borders::run(scale, &mut report, &mut step)?;
    faults::run(scale, &mut report, &mut step)?;
    Ok(report)
}

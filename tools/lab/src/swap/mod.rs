//! The experiment `swap`: what the swap cache saves and costs as the one synchronisation layer.
//!
//! The posted table is also measured on the host's Linux, where it can have a swap device of its own.

mod count;
mod latency;
mod layer;
mod linux;
mod off;
mod race;
mod scale;
mod stage;
mod store;
mod table;

pub use count::count;
pub use scale::Scale;

use crate::error::LabError;
use crate::experiment::{self, Progress};
use crate::report::{Metric, RATIO, Report};
use quire_swap::SwapTechnique;

/// The experiment's name on the command line.
pub const NAME: &str = "swap";

const TIME_RATIO: Metric = Metric::lower(RATIO, "to bypass");

/// Runs the experiment. `progress` gets the current step, how many steps are done, and how many there
/// are.
///
/// Where the process is root, no swap is in use and `scale` does not forbid it, the host's Linux swaps to a
/// compressed device of its own meanwhile, which is removed afterwards.
///
/// # Errors
///
/// It could not be carried out. What it finds wrong is in the report.
pub fn run(scale: &Scale, progress: Progress<'_>) -> Result<Report<SwapTechnique>, LabError> {
    let parts =
        vec![table::part(scale), layer::part(scale), store::part(scale), race::part(scale), off::part(scale)];
    experiment::run(NAME, parts, progress)
}

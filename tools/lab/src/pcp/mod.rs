//! The experiment `pcp`: what per-CPU lists of blocks save and cost, by the orders that they hold.
//!
//! Everything is measured for every strategy, round by round in turn; `comparison` does that.

mod blocks;
mod burst;
mod comparison;
mod idle;
mod long_run;
mod packets;
mod pipes;
mod scale;
mod traffic;

pub use scale::Scale;

use crate::error::LabError;
use crate::report::Report;

/// The experiment's name on the command line.
pub const NAME: &str = "pcp";

/// Called with the current step's name, how many steps of the experiment are done, and how many there are.
pub type Progress<'p> = &'p mut dyn FnMut(&str, u64, u64);

/// Runs the experiment.
///
/// # Errors
///
/// It could not be carried out. What it finds wrong is in the report.
pub fn run(scale: &Scale, progress: Progress<'_>) -> Result<Report, LabError> {
    let total =
        blocks::steps() + packets::STEPS + pipes::STEPS + burst::STEPS + idle::STEPS + long_run::STEPS;
    let mut report = Report::new(NAME);
    let mut done = 0;
    let mut step = |what: &str| {
        progress(what, done, total);
        done += 1;
    };
    blocks::run(scale, &mut report, &mut step)?;
    packets::run(scale, &mut report, &mut step)?;
    pipes::run(scale, &mut report, &mut step)?;
    burst::run(scale, &mut report, &mut step)?;
    idle::run(scale, &mut report, &mut step)?;
    long_run::run(scale, &mut report, &mut step)?;
    Ok(report)
}

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
use crate::experiment::{self, Progress};
use crate::report::Report;

/// The experiment's name on the command line.
pub const NAME: &str = "pcp";

/// Runs the experiment.
///
/// # Errors
///
/// It could not be carried out. What it finds wrong is in the report.
pub fn run(scale: &Scale, progress: Progress<'_>) -> Result<Report, LabError> {
    let parts = vec![
        blocks::part(scale),
        packets::part(scale),
        pipes::part(scale),
        burst::part(scale),
        idle::part(scale),
        long_run::part(scale),
    ];
    experiment::run(NAME, parts, progress)
}

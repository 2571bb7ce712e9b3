//! The experiment `tables`: what freeing of empty page tables saves and costs.
//!
//! Everything is measured with such tables kept and freed and, where it can do the same, on the host's Linux,
//! round by round in turn.

mod borders;
mod count;
mod faults;
mod heap;
mod sweep;

pub use count::count;

use crate::error::LabError;
use crate::experiment::{self, Progress};
use crate::report::Report;
use crate::scale::{GIB, MIB, scale};
use quire_space::TablesTechnique;

/// The experiment's name on the command line.
pub const NAME: &str = "tables";

scale! {
    /// Bytes of addresses that the loops go over.
    span: u64 = 50 * GIB, 4 * GIB, 64 * MIB;
    /// Rounds in which they do.
    sweep_rounds: usize = 50, 8, 2;
    /// Of so many pages one is touched, in the loops that are not as posted.
    stride: u64 = 8, 32, 64;
    /// Bytes that the heap has resident at most.
    heap_resident: u64 = 512 * MIB, 64 * MIB, 4 * MIB;
    /// Extents that the heap gives out in each of its rounds.
    heap_extents: u64 = 20_000, 1000, 100;
    /// Calls in a round at borders.
    calls: u64 = 10_000, 1000, 20;
    /// Bytes that each thread faults in, in a round.
    fault_bytes: u64 = 64 * MIB, 16 * MIB, MIB;
    /// Rounds of these two.
    rounds: usize = 30, 5, 1;
}

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

//! The experiment `mremap`: moves by entries, by PTE tables and by PMD tables.
//!
//! Everything is measured for the three strategies and, where it can do the same, on the host's Linux, round
//! by round in turn.

mod collector;
mod count;
mod growth;
mod moves;

pub use count::count;

use crate::error::LabError;
use crate::experiment::{self, Progress};
use crate::report::Report;
use crate::scale::{GIB, MIB, scale};
use quire_space::RemapTechnique;

/// The experiment's name on the command line.
pub const NAME: &str = "mremap";

scale! {
    /// In moves of more than 64 MiB one page of so many is present.
    stride: u64 = 1, 16, 512;
    /// The most bytes that move at a time.
    largest: u64 = 16 * GIB, 16 * GIB, GIB;
    /// Bytes that move in large folios.
    folio_bytes: u64 = GIB, 64 * MIB, 4 * MIB;
    /// Rounds of moves.
    rounds: usize = 21, 7, 1;
    /// What arrays grow to by doubling.
    array: u64 = GIB, 64 * MIB, 4 * MIB;
    /// Rounds of arrays and of the collector.
    other_rounds: usize = 11, 3, 1;
    /// Bytes of each region that the collector moves.
    region: u64 = 64 * MIB, 16 * MIB, 2 * MIB;
    /// Bytes that each other thread faults in meanwhile.
    fault_bytes: u64 = 128 * MIB, 16 * MIB, 4 * MIB;
    /// Whether the host's controls of large folios may be set for Linux.
    host_controls: bool = true, true, false;
}

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

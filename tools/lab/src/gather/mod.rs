//! The experiment `gather`: the cost of unmapping and forking, page by page and a run at a time.
//!
//! Everything is measured for both strategies and, where it can do the same, on the host's Linux, round by
//! round in turn.

mod builds;
mod count;
mod interrupts;
mod teardown;

pub use count::count;

use crate::error::LabError;
use crate::experiment::{self, Progress};
use crate::report::Report;
use crate::scale::{GIB, MIB, scale};
use quire_mm::space::GatherTechnique;

/// The experiment's name on the command line.
pub const NAME: &str = "gather";

/// A machine under one strategy.
type Site = crate::site::Site<GatherTechnique>;

scale! {
    /// Bytes of populated memory that one `munmap` removes.
    munmap_bytes: u64 = GIB, 128 * MIB, 8 * MIB;
    /// Bytes of populated memory in the other cases.
    other_bytes: u64 = 256 * MIB, 64 * MIB, 8 * MIB;
    /// Rounds of each case.
    rounds: usize = 11, 5, 1;
    /// Times that the recording of a build is replayed in a round.
    builds: usize = 20, 8, 1;
    /// Rounds of these.
    build_rounds: usize = 30, 5, 1;
    /// Whether the host's controls of large folios may be set for Linux.
    host_controls: bool = true, true, false;
}

/// Runs the experiment. `progress` gets the current step, how many steps are done, and how many there
/// are.
///
/// Where the process may, it sets the host's controls of large folios for as long as Linux is measured.
///
/// # Errors
///
/// It could not be carried out. What it finds wrong is in the report.
pub fn run(scale: &Scale, progress: Progress<'_>) -> Result<Report<GatherTechnique>, LabError> {
    let others = [builds::part(scale), interrupts::part(scale)];
    experiment::run(NAME, teardown::parts(scale).chain(others).collect(), progress)
}

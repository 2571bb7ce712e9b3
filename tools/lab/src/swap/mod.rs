//! The experiment `swap`: what the swap cache saves and costs as the one synchronisation layer.
//!
//! The posted table is also measured on the host's Linux, where it can have a swap device of its own.

mod count;
mod latency;
mod layer;
mod linux;
mod off;
mod race;
mod stage;
mod store;
mod table;

pub use count::count;

use crate::error::LabError;
use crate::experiment::{self, Progress};
use crate::report::{Metric, Report};
use crate::scale::{GIB, MIB, scale};
use quire_swap::SwapTechnique;

/// The experiment's name on the command line.
pub const NAME: &str = "swap";

/// The time of one thread, which does everything, on the CPU.
const CPU_TIMES: [Metric; 2] = [Metric::lower("cpu_min", "ns/page"), Metric::lower("cpu_median", "ns/page")];

scale! {
    /// Bytes of zeros that are swapped out and in.
    zeros: u64 = 30 * GIB, 192 * MIB, 8 * MIB;
    /// Bytes of other contents.
    contents: u64 = 512 * MIB, 8 * MIB, 4 * MIB;
    /// Bytes that are in memory at a time meanwhile: a round.
    window: u64 = 256 * MIB, 48 * MIB, 4 * MIB;
    /// Bytes that the stores hold.
    store: u64 = 256 * MIB, 32 * MIB, 8 * MIB;
    /// Accesses in a round of a store.
    accesses: u64 = 200_000, 10_000, 1000;
    /// Rounds of a store.
    rounds: usize = 15, 5, 1;
    /// Accesses in a round of a store on a file, where they take longer.
    file_accesses: u64 = 5000, 300, 50;
    /// Pages that threads race for. A host that takes its CPUs away does so for some races in a row, about
    /// once a second: of so many races that is less than one in 1000.
    races: u64 = 40_000, 8000, 40;
    /// Bytes on a device that is removed by swapoff.
    device: u64 = 512 * MIB, 32 * MIB, 4 * MIB;
    /// Whether the host's Linux may swap.
    host_swap: bool = true, true, false;
}

impl Scale {
    /// The same, with the host's Linux left alone.
    #[must_use]
    pub const fn without_host_swap(self) -> Self {
        Self { host_swap: false, ..self }
    }
}

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

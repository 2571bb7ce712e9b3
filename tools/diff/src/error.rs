//! Why both sides cannot be compared.

use crate::linux::OracleError;
use quire_host::{MachineError, VcpuError};
use quire_mm::file::PageError;
use quire_mm::space::Error;

/// Why the sides cannot be compared at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiffError {
    /// The oracle cannot be used.
    #[error(transparent)]
    Oracle(#[from] OracleError),
    /// The machine cannot be built.
    #[error("the machine cannot be built: {0}")]
    Machine(#[source] MachineError),
    /// The machine's CPU is not free.
    #[error("the machine's CPU: {0}")]
    Cpu(#[source] VcpuError),
    /// The machine gets no swap device.
    #[error("the machine's swap device: {0}")]
    Swap(String),
    /// What Linux grants depends on what all programs of the host have.
    #[error(
        "nothing is compared on this host: vm.overcommit_memory is 2, so what Linux grants a program depends on all \
         others (0 and 1 can be compared)"
    )]
    StrictOvercommit,
    /// The machine has no memory for a program's file.
    #[error("the machine's file: {0}")]
    File(#[source] PageError),
    /// A space that looks like the oracle's processes cannot be made.
    #[error("a space like Linux's cannot be made: {0}")]
    Space(#[source] Error),
}

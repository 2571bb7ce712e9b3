//! Linux as the oracle: random memory calls run on the host's Linux and on Quire, and everything visible is
//! compared.
//!
//! A [`Program`](program::Program) is a list of calls and accesses by a tree of processes. [`SideBySide`]
//! runs one on both sides and reports where they diverge; [`run()`] does so with any number of them, on
//! several threads, minimises what fails and counts what was covered. [`threads`] does the same with
//! concurrent programs.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod compare;
mod confirmation;
pub mod coverage;
mod known;
mod linux;
pub mod observation;
pub mod program;
mod quire;
mod random;
mod run;
mod shrink;
mod side_by_side;
mod standing;
mod sum;
pub mod threads;
mod verdict;

pub use confirmation::Belief;
pub use known::{KnownCounts, KnownDifference};
pub use linux::{Effort, HostSwap, HostSwapError, OracleError};
pub use run::{DiffOptions, DiffReport, Failure, run, run_program};
pub use side_by_side::{DiffError, Setup, SideBySide};
pub use verdict::{Mismatch, Verdict};

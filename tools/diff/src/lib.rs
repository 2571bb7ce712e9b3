//! Linux as the oracle: random memory calls run on the host's Linux and on Quire, and everything visible is
//! compared.
//!
//! A [`Program`](program::Program) is a list of calls and accesses by a tree of processes. [`SideBySide`]
//! runs one on both sides and reports where they diverge; [`run()`] does so with any number of them, on
//! several threads, minimises what fails and counts what was covered. [`threads`] does the same with
//! concurrent programs.
//!
//! # Modules, lowest first
//!
//! - `random`, `sum`: random choices; checksums of pages.
//! - `observation`: the observable state of a process after an operation, on either side.
//! - `program`: programs, with the same meaning on Linux and on Quire.
//! - `linux`: the oracle: processes of the host's Linux that make the calls of a program.
//! - `error`: why both sides cannot be compared.
//! - `shrink`: minimising a failing program.
//! - `standing`: the privileges and limits of a process at the moment of a call.
//! - `coverage`: which calls, flags, places and results have occurred together.
//! - `known`: differences that remain, by name.
//! - `past`: which of them there is, by what a program did before.
//! - `quire_file`: the file of a program on Quire.
//! - `quire_memfd`: the memfds of a program on Quire.
//! - `quire_segments`: the segments of SysV shared memory of a program on Quire.
//! - `quire`: the same program on Quire.
//! - `threads`: concurrent programs on one address space.
//! - `compare`: comparing the observations of both sides.
//! - `taken`: that neither maps what a call took out of the file.
//! - `verdict`: what running a program on both sides comes to.
//! - `confirmation`: when a difference is one.
//! - `side_by_side`: one program on both sides.
//! - `run`: many programs, on several threads.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod compare;
mod confirmation;
pub mod coverage;
mod error;
mod known;
mod linux;
pub mod observation;
mod past;
pub mod program;
mod quire;
mod quire_file;
mod quire_memfd;
mod quire_segments;
mod random;
mod run;
mod shrink;
mod side_by_side;
mod standing;
mod sum;
mod taken;
pub mod threads;
mod verdict;

pub use confirmation::Belief;
pub use error::DiffError;
pub use known::{KnownCounts, KnownDifference};
pub use linux::{Effort, HostSwap, HostSwapError, OracleError};
pub use run::{DiffOptions, DiffReport, Failure, run, run_program};
pub use side_by_side::{Setup, SideBySide};
pub use verdict::{Mismatch, Verdict};

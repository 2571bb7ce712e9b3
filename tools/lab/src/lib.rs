//! Experiments that compare what Quire's techniques cost and save, on real threads.
//!
//! [`EXPERIMENTS`] has one for each technique: the per-CPU lists, unmapping and fork, empty page tables,
//! moves, the swap cache. Each compares the strategies of its technique, round by round in turn. A [`Report`]
//! is printed as tables or as [`Record`]s. [`harness`] is generic over the allocator, so that the workspace
//! `bench/` runs peers under the same code. docs/lab.md describes each experiment.

mod case;
mod clock;
mod crew;
mod error;
mod experiment;
mod experiments;
mod folios;
mod gather;
pub mod harness;
mod host_memory;
mod linux;
pub mod machine;
mod measured;
mod mremap;
mod objects;
mod patterns;
mod pcp;
mod process;
mod quire;
mod report;
mod rounds;
mod scale;
mod site;
mod swap;
mod table;
mod tables;
mod technique;

pub use error::LabError;
pub use experiment::{Experiment, Progress};
pub use experiments::{EXPERIMENTS, count};
pub use quire::{PinEach, PinHeld};
pub use report::{Better, Figure, Metric, Record, Report, Section};
pub use rounds::{Series, in_turn};
pub use scale::Scale;
pub use table::table;
pub use technique::Technique;

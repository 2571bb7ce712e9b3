//! Experiments that compare what Quire's techniques cost and save, on real threads.
//!
//! [`EXPERIMENTS`] has one for each technique: the per-CPU lists, unmapping and fork, empty page tables,
//! moves, the swap cache for private and for shared memory. Each compares the strategies of its technique,
//! round by round in turn. A [`Report`] is printed as tables or as [`Record`]s. [`harness`] is generic over
//! the allocator, so that the workspace `bench/` runs peers under the same code. docs/lab.md describes each
//! experiment.
//!
//! # Modules, lowest first
//!
//! - `error`: why an experiment could not be carried out.
//! - `clock`, `crew`: clocks of the host; threads that start at the same moment.
//! - `technique`: the techniques whose strategies are compared.
//! - `scale`: how much an experiment does.
//! - `rounds`: rounds in turn over the subjects.
//! - `folios`, `patterns`: what memory is populated with, and pages are filled with.
//! - `harness`: rounds of work on an allocator of blocks.
//! - `host_memory`: whether the host has the memory for what is about to be made.
//! - `report`: the results of an experiment.
//! - `table`: figures for people.
//! - `machine`, `site`: machines to experiment on, and such on which mappings are made and removed.
//! - `objects`: objects of any size for workloads.
//! - `process`: a process that makes the same calls on Quire and on Linux.
//! - `quire`, `linux`: Quire as an allocator; the host's Linux doing the same.
//! - `measured`: one action repeated, for tools that count instructions.
//! - `lab`: the harness of all experiments.
//! - `prelude`: the words that experiments are written in.
//! - `gather`, `mremap`, `pcp`, `swap`, `tables`: experiments.
//! - `shm`: the experiment that does with shared memory what `swap` does.
//! - `experiments`: their list.

mod clock;
mod crew;
mod error;
mod experiments;
mod folios;
mod gather;
pub mod harness;
mod host_memory;
mod lab;
mod linux;
pub mod machine;
mod measured;
mod mremap;
mod objects;
mod patterns;
mod pcp;
mod prelude;
mod process;
mod quire;
mod report;
mod rounds;
mod scale;
mod shm;
mod site;
mod swap;
mod table;
mod tables;
mod technique;

pub use error::LabError;
pub use experiments::{EXPERIMENTS, count};
pub use lab::{Experiment, Progress};
pub use quire::{PinEach, PinHeld};
pub use report::{Better, Figure, Metric, Record, Report, Section};
pub use rounds::{Series, in_turn};
pub use scale::Scale;
pub use table::table;
pub use technique::Technique;

/// Whether this is a build for figures: one with the profile `measure`, or a benchmark.
pub const IS_FOR_FIGURES: bool = cfg!(optimised);

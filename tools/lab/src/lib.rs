//! Experiments that compare what Quire's techniques cost and save, on real threads.
//!
//! [`pcp::run`] is the experiment on the per-CPU lists, [`gather::run`] on unmapping and fork,
//! [`tables::run`] on empty page tables, [`mremap::run`] on moves, [`swap::run`] on the swap cache. Each
//! compares the strategies of its technique, round by round in turn. A [`Report`] is printed as tables or as
//! [`Record`]s. [`harness`] is generic over the allocator, so that the workspace `bench/` runs peers under
//! the same code. docs/lab.md describes each experiment.

mod contest;
mod crew;
mod error;
mod experiment;
mod folios;
pub mod gather;
pub mod harness;
mod host_memory;
mod linux;
pub mod machine;
mod measured;
pub mod mremap;
mod objects;
pub mod pcp;
mod process;
mod quire;
mod record;
mod report;
mod rounds;
mod scale;
mod site;
pub mod swap;
mod table;
pub mod tables;

pub use error::LabError;
pub use experiment::Progress;
pub use quire::{PinEach, PinHeld};
pub use quire_frame::PcpTechnique;
pub use quire_space::{GatherTechnique, RemapTechnique, TablesTechnique};
pub use quire_swap::SwapTechnique;
pub use record::Record;
pub use report::{Better, Compared, Figure, Metric, Report, Section};
pub use rounds::{Series, in_turn};

//! Experiments that compare what Quire's techniques cost and save, on real threads.
//!
//! [`pcp::run`] is the experiment on the per-CPU lists, [`gather::run`] that on the teardown of mappings, [`tables::run`] that
//! on empty page tables, [`mremap::run`] that on pages that move, [`swap::run`] that
//! on the swap cache: everything that they measure, they measure for each strategy of their technique, round by round in turn. A [`Report`] goes to people as tables and to
//! scripts as [`Record`]s. [`harness`] is generic over the allocator, so that the workspace `bench/` runs peers under
//! the same code. docs/lab.md says what each experiment does.

mod contest;
mod crew;
mod error;
mod folios;
pub mod gather;
pub mod harness;
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
mod site;
pub mod swap;
mod table;
pub mod tables;

pub use error::LabError;
pub use quire::{PinEach, PinHeld};
pub use quire_frame::PcpTechnique;
pub use quire_space::{GatherTechnique, RemapTechnique, TablesTechnique};
pub use quire_swap::SwapTechnique;
pub use record::Record;
pub use report::{Better, Compared, Figure, Metric, Report, Section, TIME_RATIO};
pub use rounds::{Series, in_turn};

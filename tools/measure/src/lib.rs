//! What a program really uses on this host, and what huge pages cost here.
//!
//! A prediction is believed when it stands beside a measurement. This crate measures:
//!
//! - [`HostSettings`] puts the settings of transparent huge pages in place for a while, and back again
//!   whatever happens to the process that asked for them;
//! - [`measure`] runs a program, follows all its processes, and returns its peaks, times, faults and huge
//!   pages;
//! - [`calibrate`] measures what faults, zeroing and collapses cost on this host, in nanoseconds.
//!
//! How it is done, and how exact it is: `docs/measuring.md`, "What a program really uses".

mod calibrate;
mod counters;
mod error;
mod guard;
mod run;
mod settings;
mod truth;

pub use calibrate::{Cost, Costs, FaultCost, calibrate};
pub use counters::{HostCounters, folio_sizes};
pub use error::MeasureError;
pub use guard::Guard;
pub use run::measure;
pub use settings::{HostSettings, HugeSettings};
pub use truth::{AtPeak, Options, ProcessTruth, Truth};

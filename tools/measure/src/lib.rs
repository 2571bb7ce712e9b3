//! What a program really uses on this host, and what huge pages cost here.
//!
//! Predictions are validated by measurements. This crate measures:
//!
//! - [`HostSettings`] changes the settings of transparent huge pages for a while, and restores them
//!   whatever happens to the process that changed them;
//! - [`measure`] runs a program, traces all its processes, and returns its peaks, times, faults and huge
//!   pages; within a [`MemoryLimit`] it runs in a memory cgroup, with swap that is set up for it;
//! - [`calibrate`] measures what faults, zeroing and collapses cost on this host, in nanoseconds, and what
//!   the kernel keeps for threads, processes and mappings, in bytes.
//!
//! How it is done, and how exact it is: `docs/measuring.md`, "What a program really uses".
//!
//! # Modules, lowest first
//!
//! - `error`: why a measurement is not possible.
//! - `flat_keyed`: files with a name and a number in each line.
//! - `mean`: a mean over time.
//! - `change`: one file that gets another value for a while.
//! - `lock`: the right to change the host's settings.
//! - `guard`: restores settings, whatever happens.
//! - `settings`: those of huge pages.
//! - `counters`: the host's counters of huge pages.
//! - `swap`: the swap behind a memory limit, and its traffic.
//! - `limit`: a memory limit, with swap behind it.
//! - `truth`: what a measurement returns.
//! - `run`: a program that runs and is sampled.
//! - `calibrate`: what faults cost on this host.

mod calibrate;
mod change;
mod counters;
mod error;
mod flat_keyed;
mod guard;
mod limit;
mod lock;
mod mean;
mod run;
mod settings;
mod swap;
mod truth;

pub use calibrate::{Cost, Costs, FaultCost, ForkCost, KernelMemory, calibrate};
pub use counters::{HostCounters, folio_sizes};
pub use error::MeasureError;
pub use guard::Guard;
pub use limit::{
    CgroupRoot, CgroupVersion, Charge, HostSwap, LimitTruth, MemoryLimit, SwapSupport, limit_files,
};
pub use run::measure;
pub use settings::{HostSettings, HugeSettings};
pub use swap::{Compressed, Swap, SwapKind, SwapPages, SwapTruth};
pub use truth::{AtPeak, Options, ProcessTruth, Truth};

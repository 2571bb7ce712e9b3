//! Locks, per-CPU cells and quiescent-state epochs.
//!
//! Spinning goes through [`Execution`](quire_arch::Execution) and sleeping through
//! [`Platform`](quire_arch::Platform), so nothing here knows how a machine waits. Everything lock-free is
//! written against [`atomic`], a facade that is `core` in ordinary builds, loom under `--cfg loom` and a
//! layer over `core` that asks shuttle's scheduler under `--cfg shuttle`. `scripts/models.sh` runs the models
//! of both.
//!
//! # Modules, lowest first
//!
//! - `atomic`: atomics and cells: `core`'s, or those of a model checker where a model runs.
//! - `cpu_mask`: a set of CPUs that many CPUs change at once.
//! - `padded`: values that share no cache line with their neighbours.
//! - `per_cpu`: one value per CPU, in memory that the machine itself provides.
//! - `epoch`: quiescent-state epochs: memory that lock-free readers may still access is reused only after all
//!   of them have left.
//! - `rw_sleep`: a sleeping reader-writer lock: the kind that an address space's mmap lock is.
//! - `spin`: spin locks.

#![no_std]

#[cfg(any(test, loom, shuttle))]
extern crate std;

pub mod atomic;
mod cpu_mask;
mod epoch;
#[cfg(loom)]
mod forced;
#[cfg(all(test, loom))]
#[allow(clippy::unwrap_used, reason = "models are tests")]
mod models;
mod padded;
mod per_cpu;
mod rw_sleep;
#[cfg(shuttle)]
mod scheduled;
mod spin;
#[cfg(loom)]
mod watched;

pub use cpu_mask::AtomicCpuMask;
pub use epoch::{Epoch, EpochGuard, EpochSlot, Stamp};
pub use padded::CachePadded;
pub use per_cpu::PerCpu;
pub use rw_sleep::{RwSleepLock, RwSleepReadGuard, RwSleepWriteGuard};
pub use spin::{RawSpin, SpinGuard, SpinLock, SpinStatistics};
#[cfg(loom)]
pub use watched::Watched;

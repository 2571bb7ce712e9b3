//! Locks, per-CPU cells and quiescent-state epochs.
//!
//! Spinning goes through [`Execution`](quire_arch::Execution) and sleeping through
//! [`Platform`](quire_arch::Platform), so nothing here knows how a machine waits. Everything lock-free is written
//! against [`atomic`], a facade that is `core` in ordinary builds and loom under `--cfg loom`: the models are
//! run by `RUSTFLAGS="--cfg loom" cargo test -p quire-sync --release`.

#![no_std]

#[cfg(any(test, loom))]
extern crate std;

pub mod atomic;
mod epoch;
#[cfg(all(test, loom))]
#[allow(clippy::unwrap_used, reason = "models are tests")]
mod models;
mod padded;
mod per_cpu;
mod rw_sleep;
mod spin;

pub use epoch::{Epoch, EpochGuard, EpochSlot, Stamp};
pub use padded::CachePadded;
pub use per_cpu::PerCpu;
pub use rw_sleep::{RwSleepLock, RwSleepReadGuard, RwSleepWriteGuard};
pub use spin::{RawSpin, SpinGuard, SpinLock, SpinStatistics};

//! Swap devices for machines in a process.

// Threads of the host do the I/O: models cannot follow them.
#[cfg(not(any(loom, shuttle)))]
mod file;
mod ram;
mod slow;
#[cfg(not(any(loom, shuttle)))]
mod zstd;

#[cfg(not(any(loom, shuttle)))]
pub use file::{Engine, FileDevice, FileDeviceError, FileDeviceOptions, make_swap};
pub use ram::HostRam;
pub use slow::{Completion, SlowConfig, SlowDevice};
#[cfg(not(any(loom, shuttle)))]
pub use zstd::{Zstd, ZstdWorkspace};

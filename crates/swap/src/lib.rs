//! Swap: devices, clusters of slots, and the swap cache as the one layer at which everybody meets.
//!
//! docs/swap.md says how the parts fit together, and which lock guards what.

#![no_std]

#[cfg(any(test, loom))]
extern crate std;

mod device;

pub use device::{DeviceError, DeviceFlags, DeviceReport, Direction, PageIo, Submitted, SwapDevice};

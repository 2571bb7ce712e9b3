//! Swap: devices, clusters of slots, and the swap cache as the one layer at which everybody meets.
//!
//! docs/swap.md says how the parts fit together, and which lock guards what.

#![no_std]

#[cfg(any(test, loom))]
extern crate std;

mod device;

pub use device::{
    CODEC_OUTPUT, Codec, CompressedRam, CompressedStore, Damaged, DeviceError, DeviceFlags, DeviceReport,
    Direction, Lz4, Lz4Workspace, PageIo, RamDisk, StoreStatistics, Submitted, SwapDevice,
};

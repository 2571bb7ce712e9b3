//! Swap devices of the host.

mod file;

pub use file::{Engine, FileDevice, FileDeviceError, FileDeviceOptions, make_swap};

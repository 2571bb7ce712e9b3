//! The swap devices of a replay.

use quire_arch::{PAGE_SHIFT, PAGE_SIZE};
use quire_host::HostPlatform;
use quire_host::swap::{FileDevice, FileDeviceError, FileDeviceOptions, HostRam, make_swap};
use quire_mm::{
    Memory,
    frame::AllocError,
    swap::{CompressedCache, CompressedRam, Lz4, SwapOnError, SwapOnOptions},
};
use std::collections::TryReserveError;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use thiserror::Error;

/// A swap device for a replay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SwapSpec {
    /// The kind of device.
    pub kind: SwapKind,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Kinds of swap devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SwapKind {
    /// RAM of the machine itself, with the pages compressed.
    Zram,
    /// RAM of the machine with the pages compressed, in front of a disk. It has at most a fifth of the RAM of
    /// the host on which the program was recorded (`max_pool_percent`).
    Zswap,
    /// Memory of the host that behaves like a disk without a seek time: with readahead.
    Disk,
    /// Memory of the host, as fast as possible.
    Ram,
    /// A file of the host, whose swap header has its size, or which is created; without a name a temporary
    /// one.
    File(Option<PathBuf>),
}

impl fmt::Display for SwapKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zram => f.write_str("zram"),
            Self::Zswap => f.write_str("zswap"),
            Self::Disk => f.write_str("disk"),
            Self::Ram => f.write_str("ram"),
            Self::File(None) => f.write_str("file"),
            Self::File(Some(path)) => write!(f, "file:{}", path.display()),
        }
    }
}

impl FromStr for SwapKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "zram" => Ok(Self::Zram),
            "zswap" => Ok(Self::Zswap),
            "disk" => Ok(Self::Disk),
            "ram" => Ok(Self::Ram),
            "file" => Ok(Self::File(None)),
            _ => match text.strip_prefix("file:") {
                Some(path) if !path.is_empty() => Ok(Self::File(Some(path.into()))),
                _ => Err(format!(
                    "`{text}` is no kind of swap; take zram, zswap, disk, ram, file or file:PATH"
                )),
            },
        }
    }
}

/// Why a machine got no swap.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SwapError {
    /// The machine has too little memory for the metadata of such a device.
    #[error(
        "the machine's memory cannot hold the metadata of a swap device this large; take a larger --memory"
    )]
    Device(AllocError),
    /// The file cannot be used.
    #[error("swap: {0}")]
    File(FileDeviceError),
    /// The host has too little memory for it.
    #[error("swap: {0}")]
    Host(TryReserveError),
    /// swapon failed.
    #[error("swap: {0}")]
    SwapOn(SwapOnError),
    /// It is larger than the maximum of a device.
    #[error("swap: a device has at most {} GiB", MAX_SLOTS >> (30 - PAGE_SHIFT))]
    TooLarge,
}

/// The maximum size of a device.
const MAX_SLOTS: u64 = 1 << 28;

/// The share of a host's RAM that zswap takes at most, as a divisor (`max_pool_percent` is 20).
const ZSWAP_SHARE: u64 = 5;

/// Gives a machine that was just built its swap device. The program was recorded on a host with `host_ram`
/// bytes.
pub(super) fn attach_swap(
    memory: &Memory<HostPlatform>,
    spec: &SwapSpec,
    host_ram: u64,
) -> Result<(), SwapError> {
    let slots = spec.bytes.div_ceil(PAGE_SIZE);
    if slots > MAX_SLOTS {
        return Err(SwapError::TooLarge);
    }
    let options = SwapOnOptions::default();
    match &spec.kind {
        SwapKind::Zram => {
            let device = CompressedRam::new(memory.frames(), slots, Lz4).map_err(SwapError::Device)?;
            memory.swapon(device, options)
        }
        SwapKind::Zswap => {
            let disk = HostRam::disk(slots as usize).map_err(SwapError::Host)?;
            let device = CompressedCache::new(memory.frames(), disk, host_ram / ZSWAP_SHARE);
            memory.swapon(device.map_err(SwapError::Device)?, options)
        }
        SwapKind::Disk => memory.swapon(HostRam::disk(slots as usize).map_err(SwapError::Host)?, options),
        SwapKind::Ram => memory.swapon(HostRam::new(slots as usize).map_err(SwapError::Host)?, options),
        SwapKind::File(path) => {
            let device = open_file(memory, path.as_deref(), slots).map_err(SwapError::File)?;
            memory.swapon(device, options)
        }
    }
    .map_err(|error| match error {
        SwapOnError::NoMemory(error) => SwapError::Device(error),
        error => SwapError::SwapOn(error),
    })?;
    Ok(())
}

/// Opens swap space on the file at `path`, which is created if it does not exist; without a path on one that
/// is removed with the device.
fn open_file(
    memory: &Memory<HostPlatform>,
    path: Option<&Path>,
    slots: u64,
) -> Result<FileDevice, FileDeviceError> {
    let (platform, options) = (memory.platform(), FileDeviceOptions::default());
    let Some(path) = path else { return FileDevice::temporary(platform, slots, options) };
    // An existing file has a swap header, or opening it fails.
    if !path.exists() {
        make_swap(path, slots)?;
    }
    FileDevice::open(platform, path, options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_as_they_are_written() {
        let file = SwapKind::File(Some("swap:a".into()));
        let others = [SwapKind::Zswap, SwapKind::Disk, SwapKind::File(None), file];
        for kind in [SwapKind::Zram, SwapKind::Ram].into_iter().chain(others) {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        for wrong in ["", "disc", "file:", "Zram"] {
            assert!(wrong.parse::<SwapKind>().is_err(), "{wrong}");
        }
    }
}

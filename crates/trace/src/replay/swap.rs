//! Where a replay's pages go when memory runs short.

use quire_host::HostPlatform;
use quire_mm::Memory;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A swap device for a replay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SwapSpec {
    /// What kind of device it is.
    pub kind: SwapKind,
    /// How much it holds, in bytes.
    pub bytes: u64,
}

/// Kinds of swap devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SwapKind {
    /// RAM of the machine itself, with the pages compressed.
    Zram,
    /// Memory of the host, as fast as can be.
    Ram,
    /// A file of the host; without a name a temporary one.
    File(Option<PathBuf>),
}

impl fmt::Display for SwapKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zram => f.write_str("zram"),
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
            "ram" => Ok(Self::Ram),
            "file" => Ok(Self::File(None)),
            _ => match text.strip_prefix("file:") {
                Some(path) if !path.is_empty() => Ok(Self::File(Some(path.into()))),
                _ => Err(format!("`{text}` is no kind of swap; take zram, ram, file or file:PATH")),
            },
        }
    }
}

/// Why a machine got no swap.
#[derive(Debug)]
#[non_exhaustive]
pub enum SwapError {
    /// There is no such device yet.
    NotBuilt,
}

impl fmt::Display for SwapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBuilt => f.write_str("swap is not built yet; leave out --swap"),
        }
    }
}

impl std::error::Error for SwapError {}

/// Gives a machine that was just built its swap device.
pub(super) fn attach_swap(memory: &Memory<HostPlatform>, spec: &SwapSpec) -> Result<(), SwapError> {
    let _ = (memory, spec);
    Err(SwapError::NotBuilt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_as_they_are_written() {
        let file = SwapKind::File(Some("/tmp/a:b".into()));
        for kind in [SwapKind::Zram, SwapKind::Ram, SwapKind::File(None), file] {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        for wrong in ["", "disk", "file:", "Zram"] {
            assert!(wrong.parse::<SwapKind>().is_err(), "{wrong}");
        }
    }
}

//! The swap behind a limit.

use quire_replay::SwapKind;
use serde::{Deserialize, Serialize};

/// The swap for pages that a limit evicts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum LimitSwap {
    /// Memory of the host, compressed by lz4. It is not charged to the group.
    #[serde(rename = "zram-lz4")]
    Zram,
    /// The same, compressed by zstd.
    #[serde(rename = "zram-zstd")]
    ZramZstd,
    /// By lz4 in front of a disk.
    #[serde(rename = "zswap-lz4")]
    Zswap,
    /// A disk without a seek time.
    #[serde(rename = "disk")]
    Disk,
}

impl LimitSwap {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Zram, Self::ZramZstd, Self::Zswap, Self::Disk];

    /// Its name, as in the name of a setting.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Zram => "zram-lz4",
            Self::ZramZstd => "zram-zstd",
            Self::Zswap => "zswap-lz4",
            Self::Disk => "disk",
        }
    }

    /// What compresses its pages; none if they are kept as they are.
    #[must_use]
    pub fn compressor(self) -> Option<&'static str> {
        match self {
            Self::Zram | Self::Zswap => Some("lz4"),
            Self::ZramZstd => Some("zstd"),
            Self::Disk => None,
        }
    }

    /// Whether predictions with it were validated against Linux.
    #[must_use]
    pub fn is_validated(self) -> bool {
        self != Self::ZramZstd
    }

    /// The one whose replay serves this, too: the size and time of compressed pages do not change which pages
    /// are paged out.
    pub(crate) fn replayed_as(self) -> Self {
        match self {
            Self::Zram | Self::ZramZstd => Self::Zram,
            Self::Zswap | Self::Disk => Self::Zswap,
        }
    }

    /// What a replay has in its place.
    pub(crate) fn replayed(self) -> SwapKind {
        match self {
            Self::Zram | Self::ZramZstd => SwapKind::Zram,
            Self::Zswap => SwapKind::Zswap,
            Self::Disk => SwapKind::Disk,
        }
    }

    /// What a run of the program has.
    pub(crate) fn measured(self) -> quire_measure::SwapKind {
        match self {
            Self::Zram | Self::ZramZstd => quire_measure::SwapKind::Zram,
            Self::Zswap => quire_measure::SwapKind::Zswap,
            Self::Disk => quire_measure::SwapKind::File,
        }
    }
}

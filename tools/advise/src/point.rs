//! One replay, and what is asked of it.

use crate::setting::{Setting, phases};
use crate::swap::LimitSwap;
use quire_replay::{Audits, KernelCosts, MACHINE_RAM, ReplayOptions, SwapKind, SwapSpec};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// No count, and no size in bytes, is larger: 256 TiB.
pub(crate) const MOST: u64 = 1 << 48;

/// One replay of a recording.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Point {
    /// The setting that it is replayed under.
    pub setting: Setting,
    /// In which of its phases khugepaged is, by its place among those of the setting; it never looks at the
    /// programs if this is `None`.
    pub phase: Option<usize>,
    /// What the kernel keeps for threads, processes and mappings, if that was measured.
    pub kernel: Option<KernelCosts>,
    /// What counts of it.
    pub asked: Asked,
}

/// What counts of a replay.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Asked {
    /// Memory over the time, page faults, and what differs from Linux.
    Life,
    /// What of the peak of anonymous memory is used again.
    PeakUse,
    /// What each mapping holds before the event of this number.
    Mappings(u64),
    /// Whether the programs fit, and what they pay, with less memory.
    Less(Less),
}

/// Less memory than the programs need.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Less {
    /// How much there is.
    pub amount: Amount,
    /// What that stands for.
    pub meant: Meant,
    /// What was measured to be charged beside anonymous memory, in bytes.
    pub beside: Option<u64>,
    /// The program's peak of anonymous memory without pressure, in bytes; none for a recording in which the
    /// program chose its peak by the limit that it read.
    pub peak: Option<u64>,
    /// What takes the pages that do not fit; where only fitting is asked for, anything does.
    pub swap: Option<LimitSwap>,
    /// The size of that, in bytes.
    pub swap_bytes: u64,
}

/// What a limit is meant as. A part of it may be for memory of which no later use is known: then the replay
/// has less.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Meant {
    /// So much of the peak of anonymous memory, in percent.
    Percent(u32),
    /// Bytes.
    Amount(Amount),
}

/// Bytes that are there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Amount {
    /// A limit of a memory cgroup.
    Limit(u64),
    /// RAM of the machine.
    Ram(u64),
}

impl Amount {
    /// How many bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::Limit(bytes) | Self::Ram(bytes) => bytes,
        }
    }

    /// The sizes, in bytes, with which there is a replay.
    #[must_use]
    pub fn possible(self) -> RangeInclusive<u64> {
        match self {
            Self::Limit(_) => 1..=MOST,
            Self::Ram(_) => MACHINE_RAM,
        }
    }
}

impl Point {
    /// How a recording is replayed for it.
    pub(crate) fn options(&self) -> ReplayOptions {
        let khugepaged = self.phase.and_then(|phase| phases(&self.setting).get(phase).copied().flatten());
        let options = ReplayOptions {
            huge: self.setting.huge,
            shmem: Some(self.setting.shmem),
            techniques: self.setting.techniques,
            audits: Audits::Never,
            khugepaged,
            kernel: self.kernel.unwrap_or_default(),
            ..ReplayOptions::default()
        };
        match &self.asked {
            Asked::Life => ReplayOptions { life: true, ..options },
            Asked::PeakUse => ReplayOptions { peak_use: true, ..options },
            Asked::Mappings(event) => ReplayOptions { stop_at: Some(*event), ..options },
            Asked::Less(less) => {
                let (limit, memory) = match less.amount {
                    Amount::Limit(bytes) => (Some(bytes), None),
                    Amount::Ram(bytes) => (None, Some(bytes)),
                };
                let kind = less.swap.map_or(SwapKind::Ram, LimitSwap::replayed);
                ReplayOptions {
                    limit,
                    memory,
                    beside: less.beside,
                    peak: less.peak,
                    swap: Some(SwapSpec { kind, bytes: less.swap_bytes }),
                    // Pages of zeros go to no device. Whether they fit does not depend on that.
                    contents: less.swap.is_some(),
                    ..options
                }
            }
        }
    }
}

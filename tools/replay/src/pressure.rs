//! The cost of memory pressure.

use super::life::large_orders;
use quire_host::HostPlatform;
use quire_mm::{
    Memory,
    frame::{FolioCounter, VmEvent},
};
use serde::{Deserialize, Serialize};

/// What a machine did because memory was short. Read from the named counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PressureFigures {
    /// Page faults without a device: `pgfault` less `pgmajfault`.
    pub minor_faults: u64,
    /// Page faults that waited for a device: `pgmajfault`.
    pub major_faults: u64,
    /// Pages that went to swap: `pswpout`, `zswpout` and `swpout_zero`, less `zswpwb`, which went twice.
    pub pages_out: u64,
    /// Pages that came back: `pswpin`, `zswpin` and `swpin_zero`.
    pub pages_in: u64,
    /// Of the pages that went out, those of zeros, which no device gets: `swpout_zero`.
    pub zeros_out: u64,
    /// Of the pages that came back, those of zeros: `swpin_zero`.
    pub zeros_in: u64,
    /// Anonymous pages that were refaulted so soon that a little more memory would have kept them:
    /// `workingset_refault_anon`.
    pub refaults: u64,
    /// Time that page faults were stalled for lack of memory, in nanoseconds: `memstall_ns`. It
    /// differs from replay to replay, so that no result that is stored has it.
    #[serde(skip)]
    pub stalled_ns: u64,
    /// Swap when most of it was in use.
    pub swap: SwapFigures,
}

/// Whether a machine had too little memory for something since it was built: it looked for pages to free, or
/// had no frames for a large folio.
pub(super) fn is_short(memory: &Memory<HostPlatform>) -> bool {
    let events = [
        VmEvent::PgscanKswapd,
        VmEvent::PgscanDirect,
        VmEvent::AllocstallDma32,
        VmEvent::AllocstallNormal,
        VmEvent::ThpCollapseAllocFailed,
    ];
    let counted = events.iter().any(|event| memory.frames().events().sum(*event) > 0);
    counted || large_orders().any(|order| memory.folio_event(order, FolioCounter::AnonFaultFallback) > 0)
}

/// How much was in swap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwapFigures {
    /// Slots in use, each of a page.
    pub used: u64,
    /// Pages that a device kept compressed; it has none of those that are all zeros.
    pub stored: u64,
    /// Their compressed bytes.
    pub compressed_bytes: u64,
    /// Bytes of the machine's RAM that they took.
    pub ram_bytes: u64,
    /// Bytes of the swap cache and other metadata of slots.
    pub cache_bytes: u64,
}

impl SwapFigures {
    /// The figures of all devices now.
    pub(super) fn of(memory: &Memory<HostPlatform>) -> Self {
        memory.swap().devices().reports().fold(Self::default(), |sum, device| Self {
            used: sum.used + device.used,
            stored: sum.stored
                + if device.device.compressed_bytes > 0 { device.device.stored_pages } else { 0 },
            compressed_bytes: sum.compressed_bytes + device.device.compressed_bytes,
            ram_bytes: sum.ram_bytes + device.device.used_bytes,
            cache_bytes: sum.cache_bytes + device.metadata_bytes,
        })
    }

    /// Records how much is in use now, if that is the most so far.
    pub(super) fn note(&mut self, memory: &Memory<HostPlatform>) {
        if memory.swap().devices().is_any_on() {
            let now = Self::of(memory);
            if now.used > self.used {
                *self = now;
            }
        }
    }

    /// The compression ratio, if any pages were compressed.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        (self.compressed_bytes > 0).then(|| (self.stored * 4096) as f64 / self.compressed_bytes as f64)
    }
}

impl PressureFigures {
    /// The figures scaled to all of the memory, if they are of a part, which has one page in
    /// `times`.
    pub(super) fn scaled(self, times: f64) -> Self {
        if times == 1.0 {
            return self;
        }
        let all = |count: u64| (count as f64 * times) as u64;
        let swap = SwapFigures {
            used: all(self.swap.used),
            stored: all(self.swap.stored),
            compressed_bytes: all(self.swap.compressed_bytes),
            ram_bytes: all(self.swap.ram_bytes),
            cache_bytes: all(self.swap.cache_bytes),
        };
        Self {
            minor_faults: all(self.minor_faults),
            major_faults: all(self.major_faults),
            pages_out: all(self.pages_out),
            pages_in: all(self.pages_in),
            zeros_out: all(self.zeros_out),
            zeros_in: all(self.zeros_in),
            refaults: all(self.refaults),
            stalled_ns: all(self.stalled_ns),
            swap,
        }
    }

    /// The figures of a machine since it was built, with the most that was in swap.
    pub(super) fn of(memory: &Memory<HostPlatform>, swap: SwapFigures) -> Self {
        let count = |event| memory.frames().events().sum(event);
        let major_faults = count(VmEvent::Pgmajfault);
        Self {
            minor_faults: count(VmEvent::Pgfault).saturating_sub(major_faults),
            major_faults,
            pages_out: (count(VmEvent::Pswpout) + count(VmEvent::Zswpout) + count(VmEvent::SwpoutZero))
                .saturating_sub(count(VmEvent::Zswpwb)),
            pages_in: count(VmEvent::Pswpin) + count(VmEvent::Zswpin) + count(VmEvent::SwpinZero),
            zeros_out: count(VmEvent::SwpoutZero),
            zeros_in: count(VmEvent::SwpinZero),
            refaults: count(VmEvent::WorkingsetRefaultAnon),
            stalled_ns: count(VmEvent::MemstallNs),
            swap,
        }
    }
}

//! What a shortage of memory cost.

use quire_host::HostPlatform;
use quire_mm::{Memory, VmEvent};

/// What a machine did because memory was short. Read from the counters of the same names; one that does not exist
/// counts nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PressureFigures {
    /// Page faults without a device: `pgfault` less `pgmajfault`.
    pub minor_faults: u64,
    /// Page faults that waited for a device: `pgmajfault`.
    pub major_faults: u64,
    /// Pages written to swap: `pswpout`.
    pub pages_out: u64,
    /// Pages read from swap: `pswpin`.
    pub pages_in: u64,
    /// Anonymous pages that were wanted back so soon that a little more memory would have kept them:
    /// `workingset_refault_anon`.
    pub refaults: u64,
    /// Bytes that pages in swap take now that they are compressed: `swap_compressed_bytes`.
    pub compressed_bytes: u64,
    /// Time that threads waited for memory, in nanoseconds: `memstall_ns`.
    pub stalled_ns: u64,
}

impl PressureFigures {
    /// The figures of a machine since it was built.
    pub(super) fn of(memory: &Memory<HostPlatform>) -> Self {
        let major_faults = counter(memory, "pgmajfault");
        Self {
            minor_faults: counter(memory, "pgfault").saturating_sub(major_faults),
            major_faults,
            pages_out: counter(memory, "pswpout"),
            pages_in: counter(memory, "pswpin"),
            refaults: counter(memory, "workingset_refault_anon"),
            compressed_bytes: counter(memory, "swap_compressed_bytes"),
            stalled_ns: counter(memory, "memstall_ns"),
        }
    }
}

/// The counter of this name, 0 if there is none.
fn counter(memory: &Memory<HostPlatform>, name: &str) -> u64 {
    let event = VmEvent::ALL.iter().find(|event| event.name() == name);
    event.map_or(0, |event| memory.frames().events().sum(*event))
}

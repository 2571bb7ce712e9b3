//! How a trace is replayed.

use crate::charge::KernelCosts;
use crate::plan::Claims;
use crate::swap::SwapSpec;
use quire_mm::{Techniques, file::ShmemHuge, thp::HugeConfig};
use std::time::Duration;

/// How a trace is replayed.
#[derive(Clone, Debug, Default)]
pub struct ReplayOptions {
    /// Bytes of RAM of the machine; by default enough that nothing runs short, but at most half of what the
    /// host has available.
    pub memory: Option<u64>,
    /// Bytes that the programs may have together, as a memory cgroup's `memory.max` allows them. What a
    /// swap device keeps in RAM is not part of it.
    pub limit: Option<u64>,
    /// What Linux charges to such a group beside anonymous memory, in bytes: what its kernel keeps for it,
    /// page tables among that, and pages of files, as measured in a cgroup. Shared memory is not among it.
    /// Without it page tables of the replay count, and [`Self::kernel`].
    pub beside: Option<u64>,
    /// What the kernel keeps for the programs: such a group is charged for it, too.
    pub kernel: KernelCosts,
    /// The program's peak of anonymous and shared memory without pressure, in bytes. A recording under
    /// pressure may have another peak, since pressure slows processes and threads unevenly: its limit and RAM
    /// are scaled by the ratio of the peaks. No effect on other recordings.
    pub peak: Option<u64>,
    /// The techniques that are on.
    pub techniques: Techniques,
    /// Hold every TLB hit against the tables.
    pub paranoid: bool,
    /// Use what is whole of a damaged trace.
    pub salvage: bool,
    /// The controls of large folios.
    pub huge: HugeConfig,
    /// Which folios of shared memory may be large; by default as the programs had it when they were recorded,
    /// which was never where the recorder turned huge pages off.
    pub shmem: Option<ShmemHuge>,
    /// When the machine is audited.
    pub audits: Audits,
    /// Where pages go when memory is short.
    pub swap: Option<SwapSpec>,
    /// Fill pages that are written, so that they compress as those of the recorded program did. Costs time.
    pub contents: bool,
    /// Read back all that each process holds at its end
    /// ([`ProcessReport::digest`](crate::ProcessReport::digest)). What was paged out comes in for that, so
    /// the figures say more than the program did.
    pub digest: bool,
    /// Follow memory over the recorded time ([`ReplayReport::life`](crate::ReplayReport::life)).
    pub life: bool,
    /// Follow which addresses hold anonymous memory, in so many columns of recorded time
    /// ([`ReplayReport::heat`](crate::ReplayReport::heat)).
    pub heat: Option<usize>,
    /// When khugepaged first looks at the programs, in recorded time. From then on it keeps its pace
    /// (`scan_sleep_millisecs`). It never does if this is `None`.
    pub khugepaged: Option<Duration>,
    /// Stop before the event of this number, and tell what each mapping holds then
    /// ([`ReplayReport::mappings`](crate::ReplayReport::mappings)).
    pub stop_at: Option<u64>,
    /// Follow what of the peak of anonymous memory is used again, and what processes share after forks
    /// ([`ReplayReport::peak_use`](crate::ReplayReport::peak_use)).
    pub peak_use: bool,
    /// What the recording may claim before it is out of proportion, and what the search for orders may cost.
    /// For [`Replay::open`](crate::Replay::open); [`Replay::with`](crate::Replay::with) does not look again
    /// at what is claimed.
    pub claims: Claims,
}

/// When a replay audits the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Audits {
    /// After each of the first processes, and at the end.
    #[default]
    EachProcess,
    /// Not at all: for a caller that measures, and audits the machine when that is done.
    Never,
}

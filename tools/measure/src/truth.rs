//! What a measurement returns.

use std::collections::BTreeMap;
use std::process::ExitStatus;
use std::time::Duration;

use crate::counters::HostCounters;
use crate::limit::{LimitTruth, MemoryLimit};

/// How to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Transparent huge pages are off for the program and what it starts (`PR_SET_THP_DISABLE`).
    pub thp_disabled: bool,
    /// The time limit, after which the program is killed.
    pub timeout: Option<Duration>,
    /// The sampling interval.
    pub sample_every: Duration,
    /// Look up the size of each folio at the peak ([`AtPeak::folios`]). Needs root, and time for each page.
    pub folios: bool,
    /// Count the 2 MiB pages that the program's own faults allocate ([`Truth::huge_faults`]). Needs root, and
    /// some 0.1 us for each page that the program allocates.
    pub huge_faults: bool,
    /// The program runs within it. It needs root.
    pub limit: Option<MemoryLimit>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            thp_disabled: false,
            timeout: None,
            sample_every: Duration::from_millis(2),
            folios: false,
            huge_faults: false,
            limit: None,
        }
    }
}

/// What a program used, with all processes that it started. Memory in bytes.
#[derive(Clone, Debug)]
pub struct Truth {
    /// How the program ended.
    pub status: ExitStatus,
    /// From its start to its end.
    pub wall: Duration,
    /// Of that, how long processes or threads were stopped for sampling, summed over them.
    pub stopped: Duration,
    /// Processor time in user mode of all processes. Children that ended before their parent and were never
    /// waited for are counted too.
    pub user: Duration,
    /// Processor time in the kernel of all processes.
    pub system: Duration,
    /// Page faults without input, of all processes.
    pub minor_faults: u64,
    /// Page faults that waited for input, of all processes.
    pub major_faults: u64,
    /// Peak of anonymous memory (`RssAnon`) of the process that had most.
    pub peak_anonymous: u64,
    /// Peak of the sum of `RssAnon` over all processes: a frame that two share after `fork` counts twice.
    pub peak_anonymous_all: u64,
    /// Peak of anonymous memory of all processes at one moment, each frame counted once, as a memory cgroup
    /// charges it. Exact as long as there is one process. With more, what they share is that of the last walk
    /// of their page tables.
    pub peak_anonymous_once: u64,
    /// Anonymous memory of all processes likewise, averaged over the time in which the program runs.
    pub mean_anonymous_once: f64,
    /// The same when the first process ended: what stays of a program that goes on.
    pub end_anonymous_once: u64,
    /// Peak of resident memory (`VmHWM`) of the process that had most.
    pub peak_resident: u64,
    /// Peak of the sum of resident memory over all processes.
    pub peak_resident_all: u64,
    /// Peak of page tables (`VmPTE`) of the process that had most.
    pub peak_page_tables: u64,
    /// Peak of the sum of page tables over all processes.
    pub peak_page_tables_all: u64,
    /// By how much the kernel's own peak of resident memory of a process (`VmHWM`) is above all samples:
    /// memory that existed between two samples only. The peak of anonymous memory may be that much higher.
    pub unseen: u64,
    /// What the anonymous memory consisted of when it was largest.
    pub at_peak: Option<AtPeak>,
    /// Its figures within its limit.
    pub limited: Option<LimitTruth>,
    /// Page faults that allocated 2 MiB, of this program alone; none if that was not requested, or is not
    /// permitted. Blocks that it had collapsed by `MADV_COLLAPSE` count, too.
    pub huge_faults: Option<u64>,
    /// The host's counters while the program ran.
    pub host: HostCounters,
    /// Each process, in the order of their starts.
    pub processes: Vec<ProcessTruth>,
    /// Samples that were taken.
    pub samples: u64,
    /// The longest time from one sample to the next.
    pub longest_gap: Duration,
}

/// Anonymous memory of all processes at a moment when it was largest, or nearly so. In bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AtPeak {
    /// All of it: shows how near the peak the moment was.
    pub anonymous: u64,
    /// Of that, each frame counted once (`Pss_Anon`).
    pub once: u64,
    /// Of that, mapped by entries of 2 MiB (`AnonHugePages`).
    pub huge: u64,
    /// How much of it is in folios of a size, by the size in bytes; empty if it was not looked up.
    pub folios: BTreeMap<u64, u64>,
}

impl AtPeak {
    /// The share that is mapped by entries of 2 MiB.
    pub fn huge_share(&self) -> f64 {
        self.huge as f64 / self.anonymous.max(1) as f64
    }

    /// The share in folios larger than a page, if it was looked up.
    pub fn large_share(&self) -> Option<f64> {
        let all: u64 = self.folios.values().sum();
        let large: u64 = self.folios.range(4097..).map(|(_, bytes)| bytes).sum();
        (all > 0).then(|| large as f64 / all as f64)
    }
}

/// What one process used. In bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessTruth {
    /// Its number.
    pub pid: i32,
    /// The name of the last program that it ran.
    pub program: String,
    /// Peak of anonymous memory.
    pub peak_anonymous: u64,
    /// Peak of resident memory.
    pub peak_resident: u64,
    /// Peak of page tables.
    pub peak_page_tables: u64,
}

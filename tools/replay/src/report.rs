//! What a replay found.

use super::again::PeakUse;
use super::ends::SpaceEnds;
use super::figures::{AllocatorFigures, ProcessReport, TableFigures};
use super::heat::HeatMap;
use super::life::LifeFigures;
use super::mappings::MappingLife;
use super::pressure::PressureFigures;
use quire_host::HostCounters;
use quire_trace::format::{TraceHeader, UseSource};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The recorded programs need more memory than the machine has, and the replay ended there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DoesNotFit {
    /// Number of the event in the trace, from 0.
    pub event: u64,
    /// The process that found no memory.
    pub pid: u32,
    /// Its program.
    pub program: Arc<str>,
    /// What it did.
    pub what: String,
    /// There was memory, but the trace asks for far more work than its size lets expect.
    pub out_of_proportion: bool,
    /// Bytes of RAM.
    pub ram: u64,
    /// Bytes that the programs were allowed, if they had a limit.
    pub limit: Option<u64>,
    /// Bytes of swap.
    pub swap: u64,
    /// What held the memory then.
    pub held: HeldMemory,
    /// Bytes of RAM with which nothing runs short.
    pub suffices: u64,
}

impl DoesNotFit {
    /// What a replay without a limit lacked, without the options of `quire replay`, and in the same words
    /// however much others left it of this host's memory.
    #[must_use]
    pub fn what_it_needs(&self) -> String {
        let Self { event, pid, program, what, suffices, .. } = self;
        if self.out_of_proportion {
            return format!(
                "the recording is out of proportion: at event {event} {program} ({pid}) is left ({what})"
            );
        }
        let mebibytes = suffices.div_ceil(1 << 20);
        format!("the program does not fit: it needs {mebibytes} MiB of RAM, more than this host has left")
    }
}

impl fmt::Display for DoesNotFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { event, pid, program, what, out_of_proportion, ram, limit, swap, held, suffices } = self;
        if *out_of_proportion {
            return write!(
                f,
                "the recording is out of proportion: at event {event} {program} ({pid}) is left ({what}); with \
                 --memory SIZE it is replayed whatever that takes"
            );
        }
        let (bytes, of, option) = match limit {
            Some(limit) => (limit, "under the limit", "--limit"),
            None => (ram, "of RAM", "--memory"),
        };
        write!(
            f,
            "the program does not fit: at event {event} {program} ({pid}) found no memory ({what}), with {} kB {of} \
             and {} kB of swap; held by {held}; {option} {}M suffices",
            bytes >> 10,
            swap >> 10,
            suffices.div_ceil(1 << 20)
        )
    }
}

/// What holds a machine's memory, in bytes. Pages that several address spaces map count once for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeldMemory {
    /// Anonymous pages that are mapped. They can go to swap, unless they are locked.
    pub anonymous: u64,
    /// Pages of files and of shared memory. They stay while they are mapped: reclaim does not see them yet.
    pub files: u64,
    /// Shared memory, each page once for all that map it: what of it counts within a limit.
    pub shared: u64,
    /// Mappings that are locked: what of them is resident stays.
    pub locked: u64,
    /// Page tables.
    pub page_tables: u64,
    /// Pages that were swapped out and lie compressed in the machine's own RAM.
    pub compressed_swap: u64,
    /// Free pages; they are kept for allocations that cannot wait.
    pub free: u64,
}

impl fmt::Display for HeldMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { anonymous, files, shared, locked, page_tables, compressed_swap, free } = self;
        write!(
            f,
            "{} kB of anonymous pages, {} kB of pages of files (which stay while they are mapped), {} kB of shared \
             memory, {} kB of page tables, {} kB of compressed swap; {} kB of the mappings are locked, {} kB are free",
            anonymous >> 10,
            files >> 10,
            shared >> 10,
            page_tables >> 10,
            compressed_swap >> 10,
            locked >> 10,
            free >> 10
        )
    }
}

/// What a replay found.
#[derive(Clone, Debug)]
pub struct ReplayReport {
    /// Where and how the trace was recorded.
    pub header: TraceHeader,
    /// Every process, in the order in which they began.
    pub processes: Vec<ProcessReport>,
    /// Address spaces at their ends, of which Linux's figures are known.
    pub ends: SpaceEnds,
    /// Events that were replayed.
    pub events: u64,
    /// Page faults, and calls without a stop, that are missing in the recording.
    pub lost: u64,
    /// Those of them whose events Linux removed, since they are of programs with other privileges.
    pub unheard: u64,
    /// Time for all of them, audits included.
    pub elapsed: Duration,
    /// Of it, time spent in audits.
    pub auditing: Duration,
    /// What the allocator did in all.
    pub allocator: AllocatorFigures,
    /// What unmapping and moving cost in all.
    pub tables: TableFigures,
    /// What the machine did.
    pub machine: HostCounters,
    /// Linux may kill the programs within the limit though there is room in the swap: soon after they reached
    /// it they used so much of their memory again that all of it became active.
    pub may_be_killed: bool,
    /// What a shortage of memory cost.
    pub pressure: PressureFigures,
    /// What zstd (level 3) brings the program's pages to, as a share of what LZ4 does. `None` where pages
    /// have no contents, or the recording has no samples of both.
    pub zstd_of_lz4: Option<f64>,
    /// What was replayed by the program's memory, where that was a sample or
    /// [`ReplayOptions::peak`](super::ReplayOptions::peak) was given: the limit was as much smaller, and
    /// [`pressure`](Self::pressure) is scaled to all of the memory.
    pub sampled: Option<f64>,
    /// Uses of pages that were replayed beside the faults.
    pub reuses: u64,
    /// Uses of pages that were not there to be used: the program gave them up while the recorder looked.
    pub reuses_gone: u64,
    /// The machine's memory was asked for, not what the trace needs.
    pub limited: bool,
    /// The host had less free memory than the machine was to have: with more, other figures may be found.
    pub host_is_short: bool,
    /// Files whose sizes the recording has: of these a process has the pages that Linux mapped, and of others
    /// those that it touched.
    pub known_files: u64,
    /// What the recording knows of pages that were used again: how far the figures of a shortage can be
    /// believed.
    pub uses: UseSource,
    /// Bytes of RAM that the machine had.
    pub ram: u64,
    /// Bytes that the programs were allowed, if they had a limit.
    pub limit: Option<u64>,
    /// Memory was exhausted: what comes after that event was not replayed.
    pub does_not_fit: Option<DoesNotFit>,
    /// What was left out of a damaged trace.
    pub damage: Option<String>,
    /// The recorder let the programs go before they had ended.
    pub ended_early: bool,
    /// Memory over the recorded time, if it was asked for.
    pub life: Option<LifeFigures>,
    /// Memory by address and time, if it was asked for.
    pub heat: Option<HeatMap>,
    /// What mappings held where the replay was to stop, if it was.
    pub mappings: Vec<MappingLife>,
    /// What of the peak of anonymous memory is used again, if that was asked for.
    pub peak_use: Option<PeakUse>,
}

impl ReplayReport {
    /// Everything came out as on Linux, the programs fit, and no audit found anything.
    pub fn is_good(&self) -> bool {
        self.does_not_fit.is_none() && self.processes.iter().all(ProcessReport::is_good)
    }

    /// How the count of major faults stands to what the program would have had. *At least*: what the program
    /// used between two looks of the recorder is not known.
    #[must_use]
    pub fn major_faults_are(&self) -> &'static str {
        match self.uses {
            UseSource::Exact => "exact",
            UseSource::Pressure => "about",
            UseSource::Unknown | UseSource::None | UseSource::Sampled { .. } => "at least",
        }
    }

    /// Events a second, without the audits.
    pub fn events_per_second(&self) -> f64 {
        self.events as f64 / (self.elapsed - self.auditing).as_secs_f64().max(1e-9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_replay_needs_is_the_same_however_far_it_came() {
        let finding = |event, ram| DoesNotFit {
            event,
            pid: 7,
            program: "sp".into(),
            what: "Write of 0x1000".to_owned(),
            out_of_proportion: false,
            ram,
            limit: None,
            swap: 0,
            held: HeldMemory { anonymous: ram, ..HeldMemory::default() },
            suffices: 18_100 << 20,
        };
        let [one, other] = [finding(5704, 9 << 30), finding(5511, 8 << 30)];
        assert_eq!(one.what_it_needs(), other.what_it_needs());
        assert!(one.what_it_needs().contains("needs 18100 MiB") && !one.what_it_needs().contains("--memory"));
        let left = DoesNotFit { out_of_proportion: true, ..one };
        assert!(left.what_it_needs().contains("event 5704") && !left.what_it_needs().contains("--memory"));
    }
}

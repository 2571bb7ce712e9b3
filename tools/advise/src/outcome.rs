//! What one replay found of a program.

use crate::unexplained::{unexplained, unrecorded_shared};
use quire_record::SAMPLE_NS;
use quire_replay::{LifeFigures, ProcessLife, ProcessReport, ReplayReport};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;

/// The most memory that one process had, in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessRow {
    /// The program that it ran last.
    pub program: String,
    /// Its id when it was recorded.
    pub pid: u32,
    /// Anonymous memory (`RssAnon`).
    pub peak_anonymous: u64,
    /// Page tables (`VmPTE`).
    pub peak_page_tables: u64,
    /// Limits of Linux's that it came near to.
    pub near: Vec<Near>,
}

/// How near a process came to one of its limits.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Near {
    /// The limit: `vm.max_map_count`, or an rlimit.
    #[serde(deserialize_with = "known_limit")]
    pub limit: LimitName,
    /// What it allows: mappings, or bytes.
    pub most: u64,
    /// The most that the process had.
    pub used: u64,
}

/// A limit is worth a word from this share of it on, in percent.
const NEAR_PERCENT: u64 = 80;

/// The name of a limit. As a reference by itself it would have to be a part of what it is read from.
type LimitName = &'static str;

/// The names of limits.
const LIMITS: [LimitName; 4] = ["vm.max_map_count", "RLIMIT_AS", "RLIMIT_DATA", "RLIMIT_MEMLOCK"];

/// A limit that is one of these.
fn known_limit<'d, D: Deserializer<'d>>(from: D) -> Result<LimitName, D::Error> {
    let name = String::deserialize(from)?;
    let known = LIMITS.into_iter().find(|known| *known == name);
    known.ok_or_else(|| D::Error::custom("there is no such limit"))
}

/// The limits that a process came near to.
fn near(process: &ProcessReport) -> Vec<Near> {
    let (limits, used) = (&process.limits, &process.quire);
    let [mappings, address_space, data, locked] = LIMITS;
    let all = [
        (mappings, limits.mappings, used.peak_mappings),
        (address_space, limits.address_space, used.peak_mapped),
        (data, limits.data, used.data),
        (locked, limits.locked, used.locked),
    ];
    let is_near = |&(limit, most, used): &(&'static str, u64, u64)| {
        let least = u128::from(most) * u128::from(NEAR_PERCENT);
        // A process with the capability is not bound by it, and may have locked more. Of mappings there may
        // be one more than the limit.
        let is_bound = limit != "RLIMIT_MEMLOCK" || used <= most;
        most > 0 && used > 0 && is_bound && u128::from(used) * 100 >= least
    };
    all.into_iter().filter(is_near).map(|(limit, most, used)| Near { limit, most, used }).collect()
}

/// Differences that are kept in words.
const KEPT_MISMATCHES: usize = 5;

/// The result of one replay.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Outcome {
    pub(crate) life: LifeFigures,
    pub(crate) processes: Vec<ProcessRow>,
    pub(crate) differences: u64,
    /// Page faults and calls that the recorder lost.
    pub(crate) lost: u64,
    /// Those of them whose events Linux removed, since they are of programs with other privileges.
    pub(crate) unheard: u64,
    /// Processor time of the recorded programs, in nanoseconds, without what the recorder took of it; 0 if
    /// the recording does not have it.
    pub(crate) processor_ns: u64,
    /// What the recorder took of it: an estimate.
    pub(crate) recorder_ns: u64,
    /// What Quire cannot do, with how often it was needed.
    pub(crate) gaps: BTreeMap<String, u64>,
    /// The first differences from Linux, in words.
    pub(crate) mismatches: Vec<String>,
    /// Anonymous memory that Linux had at the ends of processes and the replay has not, or the other way
    /// round, and page tables that Linux had and the replay has not, in bytes: of those that live at the same
    /// time. Without what Linux's figures may be off by.
    pub(crate) unexplained: [u64; 2],
    /// Shared memory that Linux had mapped in a process at its end and that no event brought in, in bytes.
    pub(crate) unrecorded_shared: u64,
    /// Pages that the kernel brought in and of which no event tells, those of lost events not among them.
    pub(crate) unrecorded_pages: u64,
}

/// What of a stop for the recorder is the program's time, in nanoseconds; and how many samples and stops
/// there are: for each fault, for each call, and for each thread and image.
const STOP_NS: u64 = 3000;
const SAMPLES_OF_FAULT: u64 = 2;
const SAMPLES_OF_CALL: u64 = 2;
const STOPS_OF_THREAD: u64 = 3;
/// At least such a share of the processor time is the programs' own.
const LEAST_OWN: u64 = 10;

/// What of the processor time of these processes the recorder took: an estimate.
fn recorder_ns(processes: &[ProcessReport]) -> u64 {
    let of = |process: &ProcessReport| {
        let samples = process.faults * SAMPLES_OF_FAULT + process.calls * SAMPLES_OF_CALL;
        let stops = u64::from(process.threads + process.images) * STOPS_OF_THREAD;
        samples * SAMPLE_NS + stops * STOP_NS
    };
    processes.iter().map(of).sum()
}

/// The count of each name.
pub(crate) fn summed(counts: impl Iterator<Item = (String, u64)>) -> BTreeMap<String, u64> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for (name, count) in counts {
        *sums.entry(name).or_default() += count;
    }
    sums
}

impl Outcome {
    pub(crate) fn of(mut report: ReplayReport) -> Self {
        let differences = report.processes.iter().map(|process| process.mismatches).sum();
        let (lost, unheard) = (report.lost, report.unheard);
        let linux = report.processes.iter().filter_map(|process| process.linux.as_ref());
        let measured: u64 = linux.map(|figures| figures.processor_ns).sum();
        let recorder_ns = recorder_ns(&report.processes).min(measured - measured / LEAST_OWN);
        let gaps = report.processes.iter().flat_map(|process| &process.gaps);
        let gaps = summed(gaps.map(|(gap, count)| (gap.0.clone(), *count)));
        let mismatches = report.processes.iter().flat_map(|process| &process.first_mismatches);
        let mismatches = mismatches.take(KEPT_MISMATCHES).map(ToString::to_string).collect();
        let life = report.life.take().unwrap_or_default();
        let unexplained = unexplained(&report, life.collapses > 0);
        let most = life.processes.iter().copied().chain(std::iter::repeat(ProcessLife::default()));
        let row = |(process, most): (&ProcessReport, ProcessLife)| ProcessRow {
            program: process.program.to_string(),
            pid: process.pid,
            peak_anonymous: most.peak_anonymous,
            peak_page_tables: most.peak_page_tables,
            near: near(process),
        };
        let processes = report.processes.iter().zip(most).map(row).collect();
        let processor_ns = measured - recorder_ns;
        let unrecorded_shared = unrecorded_shared(&report);
        let unrecorded_pages = report.processes.iter().map(ProcessReport::unrecorded_pages);
        let unrecorded_pages = unrecorded_pages.sum::<u64>().saturating_sub(lost);
        Self {
            life,
            processes,
            differences,
            lost,
            unheard,
            processor_ns,
            recorder_ns,
            gaps,
            mismatches,
            unexplained,
            unrecorded_shared,
            unrecorded_pages,
        }
    }
}

/// The recorded time of a replay.
pub(crate) fn recorded_ns(life: &LifeFigures) -> u64 {
    life.samples.last().map_or(0, |sample| sample.time_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As of churn: half of a million faults a second, each reported to the recorder.
    #[test]
    fn the_recorder_takes_a_part_of_the_processor_time() {
        let process =
            ProcessReport { faults: 160_000, calls: 1000, threads: 1, images: 1, ..ProcessReport::default() };
        assert_eq!(recorder_ns(&[process]), 320_000_000 + 2_000_000 + 18_000);
    }

    #[test]
    fn limits_that_are_near_are_told() {
        let mut process = ProcessReport::default();
        process.limits.mappings = 1000;
        process.quire.peak_mappings = 790;
        assert_eq!(near(&process), []);
        process.quire.peak_mappings = 800;
        assert_eq!(near(&process), [Near { limit: "vm.max_map_count", most: 1000, used: 800 }]);
        process.quire.peak_mappings = 1001;
        assert_eq!(near(&process).len(), 1, "the last mmap failed");
        // As a process with CAP_IPC_LOCK, which the limit does not bind.
        process.limits.locked = 8 << 20;
        process.quire.locked = 42 << 20;
        assert_eq!(near(&process).len(), 1);
    }
}

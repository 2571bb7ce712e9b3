//! Figures of several replays.

use crate::change::{Figures, Measure, Measured};
use crate::forks::ForkRow;
use crate::unexplained::{unexplained, unrecorded_shared};
use quire_arch::{Order, PAGE_SIZE};
use quire_measure::{Cost, Costs};
use quire_record::SAMPLE_NS;
use quire_replay::{LifeFigures, ProcessLife, ProcessReport, ReplayReport};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A figure of several replays. These differ as the recordings do (most of all where addresses are random),
/// and by the phase of khugepaged.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Range {
    /// The middle one; of an even number the mean of the two.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Range {
    /// Of `values`; all zero if there are none.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (values.first(), values.last()) else { return Self::default() };
        let middle = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
        Self { median, min, max }
    }

    /// Half of the distance between the ends.
    #[must_use]
    pub fn spread(self) -> f64 {
        (self.max - self.min) / 2.0
    }
}

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
fn summed(counts: impl Iterator<Item = (String, u64)>) -> BTreeMap<String, u64> {
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

/// Page faults by the size of what they mapped, in bytes; those of files and of other pages count as 4 KiB.
#[must_use]
pub fn faults_by_size(life: &LifeFigures) -> BTreeMap<u64, u64> {
    let large = life.folios.iter().filter(|folio| folio.faults > 0);
    let mut faults: BTreeMap<u64, u64> = large.map(|folio| (folio.order.bytes(), folio.faults)).collect();
    let rest = life.faults.saturating_sub(faults.values().sum());
    faults.insert(PAGE_SIZE, rest);
    faults
}

/// What the page faults of a replay and the collapses that the programs asked for cost on a host of these
/// costs, in nanoseconds: the median, the least and the most. khugepaged has a thread of its own.
fn estimate(life: &LifeFigures, costs: &Costs) -> [f64; 3] {
    let pick = |cost: &Cost| [cost.median, cost.min, cost.max];
    let mut sum = [0.0; 3];
    let mut add = |count: u64, each: [f64; 3]| {
        sum.iter_mut().zip(each).for_each(|(sum, each)| *sum += count as f64 * each);
    };
    for (size, count) in faults_by_size(life) {
        // A size that could not be measured costs what the next smaller one does, and its own zeroing.
        if let Some((&known, fault)) = costs.faults.range(..=size).next_back() {
            let more = fault.zeroing * (size as f64 / known as f64 - 1.0);
            add(count, pick(&fault.total).map(|cost| cost + more));
        }
    }
    if let Some(collapse) = &costs.collapse {
        add(life.collapses.saturating_sub(life.khugepaged_collapses), pick(collapse));
    }
    sum
}

/// The range of estimates, of each the median, the least and the most.
pub(crate) fn estimated(estimates: &[[f64; 3]]) -> Range {
    let end = |end: usize| Range::of(estimates.iter().map(|estimate| estimate[end]));
    Range { median: end(0).median, min: end(1).min, max: end(2).max }
}

/// The time of a page fault without zeroing, and of zeroing a byte, in nanoseconds, if this host was not
/// calibrated: a low guess, with the fastest hosts and slow virtual machines as its range.
const FAULT_NS: Range = Range { median: 500.0, min: 250.0, max: 2000.0 };
const ZEROED_BYTE_NS: f64 = 0.03;

/// The figures of one setting. Memory is in bytes.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Row {
    /// The most anonymous memory of the process that had most of it.
    pub peak_largest: Range,
    /// The most anonymous memory of all processes at one moment, each page counted once.
    pub peak_anonymous: Range,
    /// Of that, the most that was mapped at one moment.
    pub peak_mapped: Range,
    /// Anonymous memory of all processes, averaged over the recorded time.
    pub mean_anonymous: Range,
    /// The same when the first process ended.
    pub end_anonymous: Range,
    /// The most resident memory, with pages of files that were touched.
    pub peak_resident: Range,
    /// Of that, what may be pages of files that Linux drops where memory is short: none of shared memory, and
    /// none that is locked.
    pub droppable_files: Range,
    /// Resident memory averaged over the time.
    pub mean_resident: Range,
    /// The most of page tables.
    pub peak_page_tables: Range,
    /// Page faults, of all sizes.
    pub faults: Range,
    /// Of these, by the size of what they mapped, in bytes.
    pub faults_by_size: BTreeMap<u64, Range>,
    /// Of these, faults that mapped 2 MiB.
    pub huge_faults: Range,
    /// Faults that mapped a folio between a page and 2 MiB.
    pub large_faults: Range,
    /// Blocks that khugepaged and `MADV_COLLAPSE` collapsed.
    pub collapses: Range,
    /// Share of the mapped anonymous memory, when most was mapped, that is mapped by 2 MiB, 0 to 1.
    pub huge_share: Range,
    /// Share that lies in folios larger than a page.
    pub large_share: Range,
    /// Of the anonymous memory at the peak, the part that was never touched.
    pub waste: Range,
    /// Large folios for which there was no memory. The machine is large enough for all of them, so any
    /// failure is reported.
    pub fallbacks: u64,
    /// What page faults and `MADV_COLLAPSE` cost the programs on this host, in nanoseconds: an estimate, if
    /// the host was calibrated.
    pub estimate_ns: Option<Range>,
    /// What khugepaged's collapses cost likewise, in its own thread.
    pub khugepaged_ns: Option<Range>,
    /// What forks cost.
    pub fork: ForkRow,
    /// The most that a limit must hold at one moment: anonymous and shared memory, page tables, and what else
    /// the kernel keeps.
    pub peak_charge: Range,
    /// Of that, shared memory.
    pub shared: Range,
    /// Of that, what the kernel keeps beside page tables.
    pub kernel: Range,
    /// Calls and touches whose results differ from Linux's, in all replays.
    pub differences: u64,
    /// It has more differences than the present setting's, which may be why it is better or worse: no advice
    /// rests on it.
    pub marked: bool,
    /// What Quire cannot do, with how often it was needed in all replays.
    pub gaps: BTreeMap<String, u64>,
    /// The first differences that are no gaps, in words.
    pub mismatches: Vec<String>,
    /// The processes of the first recording.
    pub processes: Vec<ProcessRow>,
}

impl Row {
    /// The figures of replays under one setting; `touched` are those of the same recordings without huge
    /// pages, in the same order, where each resident page was touched.
    #[must_use]
    pub(crate) fn of(outcomes: &[&Outcome], touched: &[&LifeFigures], costs: Option<&Costs>) -> Self {
        let lives: Vec<&LifeFigures> = outcomes.iter().map(|outcome| &outcome.life).collect();
        let range = |of: &dyn Fn(&LifeFigures) -> f64| Range::of(lives.iter().copied().map(of));
        let faults_of = |life: &LifeFigures, pmd: bool| {
            let folios = life.folios.iter().filter(|folio| (folio.order == Order::PMD) == pmd);
            folios.map(|folio| folio.faults).sum::<u64>() as f64
        };
        let waste = lives.iter().zip(touched).map(|(life, touched)| {
            life.at_peak.anonymous.saturating_sub(anonymous_at(touched, life.at_peak.event)) as f64
        });
        let by_size: Vec<BTreeMap<u64, u64>> = lives.iter().copied().map(faults_by_size).collect();
        let sizes: BTreeSet<u64> = by_size.iter().flat_map(BTreeMap::keys).copied().collect();
        let of_size =
            |size| by_size.iter().map(move |faults| faults.get(&size).map_or(0.0, |&count| count as f64));
        let estimate_ns = costs.map(|costs| {
            let estimates: Vec<[f64; 3]> = lives.iter().map(|life| estimate(life, costs)).collect();
            estimated(&estimates)
        });
        let collapse = costs.and_then(|costs| costs.collapse.as_ref());
        let khugepaged_ns = collapse.map(|cost| {
            let collapses = range(&|life| life.khugepaged_collapses as f64);
            Range {
                median: collapses.median * cost.median,
                min: collapses.min * cost.min,
                max: collapses.max * cost.max,
            }
        });
        let gaps = outcomes.iter().flat_map(|outcome| &outcome.gaps);
        let gaps = summed(gaps.map(|(gap, count)| (gap.clone(), *count)));
        Self {
            peak_largest: range(&|life| life.peak_largest as f64),
            peak_anonymous: range(&|life| life.at_peak.anonymous as f64),
            peak_mapped: range(&|life| life.at_mapped_peak.mapped as f64),
            mean_anonymous: range(&|life| life.mean_anonymous),
            end_anonymous: range(&|life| life.at_end.anonymous as f64),
            peak_resident: range(&|life| life.peak_resident as f64),
            droppable_files: range(&|life| droppable_files(life) as f64),
            mean_resident: range(&|life| life.mean_resident),
            peak_page_tables: range(&|life| life.peak_page_tables as f64),
            faults: range(&|life| life.faults as f64),
            faults_by_size: sizes.into_iter().map(|size| (size, Range::of(of_size(size)))).collect(),
            huge_faults: range(&|life| faults_of(life, true)),
            large_faults: range(&|life| faults_of(life, false)),
            collapses: range(&|life| life.collapses as f64),
            huge_share: range(&LifeFigures::huge_share),
            large_share: range(&LifeFigures::large_share),
            waste: Range::of(waste),
            fallbacks: lives.iter().map(|life| life.fallbacks()).sum(),
            estimate_ns,
            khugepaged_ns,
            fork: ForkRow::of(&lives, costs),
            peak_charge: range(&|life| life.at_charge_peak.charge() as f64),
            shared: range(&|life| life.at_charge_peak.shared as f64),
            kernel: range(&|life| life.at_charge_peak.kernel as f64),
            differences: outcomes.iter().map(|outcome| outcome.differences).sum(),
            marked: false,
            gaps,
            mismatches: outcomes.first().map_or_else(Vec::new, |outcome| outcome.mismatches.clone()),
            processes: outcomes.first().map_or_else(Vec::new, |outcome| outcome.processes.clone()),
        }
    }
}

impl Row {
    /// The row's figure of this measure of memory.
    #[must_use]
    pub fn memory(&self, measure: Measure) -> Range {
        match measure {
            Measure::Largest => self.peak_largest,
            Measure::Mapped => self.peak_mapped,
            Measure::Charged => self.peak_anonymous,
            Measure::Mean => self.mean_anonymous,
            Measure::End => self.end_anonymous,
        }
    }
}

/// What page faults take in a replay, in nanoseconds, as [`estimate`] gives it; a guess where the host was
/// not calibrated.
fn fault_ns(life: &LifeFigures, costs: Option<&Costs>) -> [f64; 3] {
    let guess = |each: f64| {
        let by_size = faults_by_size(life).into_iter();
        by_size.map(|(size, count)| count as f64 * (each + size as f64 * ZEROED_BYTE_NS)).sum()
    };
    match costs {
        Some(costs) => estimate(life, costs),
        None => [FAULT_NS.median, FAULT_NS.min, FAULT_NS.max].map(guess),
    }
}

impl Figures {
    /// Of one replay. The recorded time stands in for a processor time that is not known.
    pub(crate) fn of(outcome: &Outcome, costs: Option<&Costs>) -> Self {
        let life = &outcome.life;
        let memory = |measure| match measure {
            Measure::Largest => life.peak_largest as f64,
            Measure::Mapped => life.at_mapped_peak.mapped as f64,
            Measure::Charged => life.at_peak.anonymous as f64,
            Measure::Mean => life.mean_anonymous,
            Measure::End => life.at_end.anonymous as f64,
        };
        let processor_ns = Some(outcome.processor_ns).filter(|&time| time > 0);
        let time_ns = processor_ns.unwrap_or_else(|| recorded_ns(life)) as f64;
        Self {
            memory: Measured::of(memory),
            faults: life.faults as f64,
            fault_ns: fault_ns(life, costs),
            time_ns,
            measured_ns: time_ns + outcome.recorder_ns as f64,
        }
    }
}

/// Pages of files at the peak that stay in no limit. In a replay those of shared memory are among them.
fn droppable_files(life: &LifeFigures) -> u64 {
    let charged = &life.at_charge_peak;
    let stays = life.at_peak.anonymous + charged.shared + charged.locked_files;
    life.peak_resident.saturating_sub(stays)
}

/// The recorded time of a replay.
pub(crate) fn recorded_ns(life: &LifeFigures) -> u64 {
    life.samples.last().map_or(0, |sample| sample.time_ns)
}

/// Resident memory before event number `event`, as far as sampled.
fn anonymous_at(life: &LifeFigures, event: u64) -> u64 {
    if life.at_peak.event == event {
        return life.at_peak.anonymous;
    }
    let after = life.samples.partition_point(|sample| sample.event < event);
    let near =
        |place: usize| life.samples.get(place).map(|sample| (sample.event.abs_diff(event), sample.anonymous));
    let nearest = [near(after), after.checked_sub(1).and_then(near)].into_iter().flatten().min();
    nearest.map_or(0, |(_, anonymous)| anonymous)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_measure::FaultCost;
    use quire_replay::{FolioFigures, LifeSample};

    #[test]
    fn medians_and_ranges() {
        assert_eq!(Range::of([3.0, 1.0, 2.0]), Range { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Range::of([4.0, 1.0]), Range { median: 2.5, min: 1.0, max: 4.0 });
        assert_eq!(Range::of([]), Range::default());
        assert_eq!(Range::of([5.0, 9.0]).spread(), 2.0);
    }

    /// They stay, so that they are part of each limit, and no headroom is for them.
    #[test]
    fn locked_files_and_shared_memory_are_not_dropped() {
        let at_peak = LifeSample { anonymous: 100, ..LifeSample::default() };
        let at_charge_peak = LifeSample { shared: 20, locked_files: 300, ..at_peak };
        let life = LifeFigures { at_peak, at_charge_peak, peak_resident: 450, ..LifeFigures::default() };
        assert_eq!(droppable_files(&life), 30);
        assert_eq!(droppable_files(&LifeFigures { peak_resident: 410, ..life }), 0);
    }

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

    #[test]
    fn waste_is_what_was_not_touched_at_that_moment() {
        let sample = |event, anonymous| LifeSample { event, anonymous, ..LifeSample::default() };
        let life = |at_peak: LifeSample, samples| LifeFigures { at_peak, samples, ..LifeFigures::default() };
        let touched =
            life(sample(90, 800), vec![sample(0, 0), sample(10, 100), sample(20, 300), sample(90, 800)]);
        for (event, waste) in [(10, 900.0), (16, 700.0), (90, 200.0), (1000, 200.0)] {
            let life = life(sample(event, 1000), Vec::new());
            let outcome = Outcome { life, ..Outcome::default() };
            let row = Row::of(&[&outcome], &[&touched], None);
            assert_eq!(row.waste.median, waste, "{event}");
        }
    }

    #[test]
    fn an_estimate_is_counts_times_costs() {
        let cost = |median: f64| Cost { median, min: median - 1.0, max: median + 2.0 };
        let fault =
            |total: f64, zeroing: f64| FaultCost { total: cost(total), zeroing, fixed: total - zeroing };
        let costs = Costs {
            kernel: String::new(),
            cpu: String::new(),
            faults: [(4096, fault(100.0, 60.0)), (2 << 20, fault(9000.0, 8000.0))].into(),
            map_present: cost(10.0),
            zero_small: cost(10.0),
            zero_huge: cost(10.0),
            collapse: Some(cost(5000.0)),
            fork: None,
            kernel_memory: None,
        };
        let folio = |order, faults| FolioFigures { order, faults, fallbacks: 0, splits: 0 };
        let folios = vec![folio(Order::ALL[2], 3), folio(Order::PMD, 2)];
        let life = LifeFigures { faults: 15, folios, collapses: 1, ..LifeFigures::default() };
        assert_eq!(faults_by_size(&life), [(4096, 10), (16384, 3), (2 << 20, 2)].into());
        // Folios of 16 KiB were not measured: three more pages to zero.
        let median = 10.0 * 100.0 + 3.0 * (100.0 + 3.0 * 60.0) + 2.0 * 9000.0 + 5000.0;
        assert_eq!(estimate(&life, &costs), [median, median - 16.0, median + 32.0]);
    }
}

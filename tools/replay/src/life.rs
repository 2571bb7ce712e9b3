//! Memory over the recorded time: resident memory, folio sizes, and peaks.
//!
//! Memory grows by faults and shrinks by calls, exits and khugepaged, which may do either, and where a touch
//! finds that a file ended before. So a sample before each of those and one after it catch every peak, and
//! other faults need no samples.

use super::charge::{ExtraCharge, file_bytes, shared_bytes};
use super::forks::ForkFigures;
use super::stored::{self, differences, values};
use quire_arch::{Order, OrderSet, PAGE_SIZE};
use quire_host::HostPlatform;
use quire_mm::{
    Memory,
    frame::{FolioCounter, VmEvent},
    memcg::MemcgId,
    space::{Resident, SpaceId},
};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::HashMap;

/// What was resident at one moment, in bytes, over all processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LifeSample {
    /// Recorded time since the trace began, in nanoseconds.
    pub time_ns: u64,
    /// Number of the event before which it was taken, from 0.
    pub event: u64,
    /// Anonymous memory, each page counted once, as a memory cgroup charges it.
    pub anonymous: u64,
    /// That, and pages of files that were touched.
    pub resident: u64,
    /// Page tables (`VmPTE`).
    pub page_tables: u64,
    /// Of the anonymous memory, what is mapped (`RssAnon` of all processes), each page counted once. What was
    /// unmapped of a large folio is charged until the folio is split or freed.
    pub mapped: u64,
    /// The anonymous memory of the process that has most of it.
    pub largest: u64,
    /// Anonymous memory that entries of PMD tables map (`AnonHugePages`).
    pub huge: u64,
    /// Memory of anonymous folios larger than a page, mapped at any level.
    pub large: u64,
    /// Shared memory, each page counted once: what touches brought in, and what files in memory had besides.
    pub shared: u64,
    /// Of it, what no process maps any more: files in memory that may be gone.
    pub unmapped: u64,
    /// What the kernel keeps for threads, processes and mappings, beside page tables.
    pub kernel: u64,
    /// Pages of files that are locked, and stay where memory is short.
    pub locked_files: u64,
}

impl LifeSample {
    /// All that a limit must hold: what is charged to a cgroup of Linux, but for pages of files that are not
    /// locked, which are dropped where memory is short.
    #[must_use]
    pub fn charge(&self) -> u64 {
        let others = [self.shared, self.page_tables, self.kernel, self.locked_files];
        others.into_iter().fold(self.anonymous, u64::saturating_add)
    }

    /// What can be paged out.
    #[must_use]
    pub fn pageable(&self) -> u64 {
        self.anonymous.saturating_add(self.shared)
    }

    /// The sample of this moment, of programs that are charged to `memcg`; `each` is called for each address
    /// space.
    fn of(
        memory: &Memory<HostPlatform>,
        memcg: MemcgId,
        (time_ns, event): (u64, u64),
        extra: &ExtraCharge,
        mut each: impl FnMut(SpaceId, Resident),
    ) -> Self {
        let (huge, ExtraCharge { unplaced, unmapped, locked_files, .. }) = (memory.huge_mapped(), *extra);
        let shared = shared_bytes(memory, memcg).saturating_add(unplaced);
        let mut sample = Self { time_ns, event, huge, shared, unmapped, locked_files, ..Self::default() };
        let (mut spaces, mut mappings) = (0, 0);
        let of_order = |order: Order| memory.folio_event(order, FolioCounter::NrAnon) * order.bytes();
        sample.large = large_orders().map(of_order).sum();
        let files = file_bytes(memory, memcg);
        sample.resident = memory.memcgs().charges().charged(memcg) * PAGE_SIZE;
        sample.anonymous = sample.resident.saturating_sub(files);
        memory.for_each_resident(|id, resident| {
            sample.page_tables += resident.page_tables;
            spaces += 1;
            mappings += resident.mappings;
            sample.mapped += resident.anonymous;
            sample.largest = sample.largest.max(resident.anonymous);
            each(id, resident);
        });
        // What processes share after a fork counts in each of them, and is charged once.
        sample.mapped = sample.mapped.min(sample.anonymous);
        sample.kernel = extra.kernel(spaces, mappings);
        sample
    }
}

/// The peaks of single processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessLife {
    /// Anonymous memory (`RssAnon`).
    pub peak_anonymous: u64,
    /// Page tables (`VmPTE`).
    pub peak_page_tables: u64,
}

/// Counts of folios of one order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FolioFigures {
    /// The order.
    #[serde(with = "stored::order")]
    pub order: Order,
    /// Faults that mapped a folio of it (`anon_fault_alloc`).
    pub faults: u64,
    /// Faults that tried one and got a smaller one (`anon_fault_fallback`).
    pub fallbacks: u64,
    /// Folios that were split (`split`).
    pub splits: u64,
    /// Folios of shared memory that came, by faults or calls (`shmem_alloc`).
    #[serde(default, skip_serializing_if = "is_none")]
    pub shared: u64,
}

/// Whether a count is left out where figures are stored.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_none(count: &u64) -> bool {
    *count == 0
}

/// The memory life of the recorded programs as the replay had it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LifeFigures {
    /// The sample with the most anonymous memory.
    pub at_peak: LifeSample,
    /// The sample with the most mapped anonymous memory.
    pub at_mapped_peak: LifeSample,
    /// The sample with the largest [`LifeSample::charge`].
    pub at_charge_peak: LifeSample,
    /// The sample before the first process ended, or the last one: what stays.
    pub at_end: LifeSample,
    /// The most anonymous and shared memory at one moment, which is what can be paged out.
    pub peak_pageable: u64,
    /// The most anonymous memory that one process had.
    pub peak_largest: u64,
    /// The most of each process, in the order of [`ReplayReport::processes`](super::ReplayReport::processes).
    pub processes: Vec<ProcessLife>,
    /// The most of all resident memory.
    pub peak_resident: u64,
    /// The most of page tables.
    pub peak_page_tables: u64,
    /// Anonymous memory, averaged over the recorded time.
    pub mean_anonymous: f64,
    /// All resident memory likewise.
    pub mean_resident: f64,
    /// Page tables likewise.
    pub mean_page_tables: f64,
    /// Page faults that were resolved (`pgfault`).
    pub faults: u64,
    /// Of each order of large folios that was used or tried, smallest first.
    pub folios: Vec<FolioFigures>,
    /// Blocks that khugepaged and `MADV_COLLAPSE` collapsed. `thp_collapse_alloc` is more: it counts folios,
    /// also for blocks that then cannot be collapsed.
    pub collapses: u64,
    /// Those of khugepaged alone.
    pub khugepaged_collapses: u64,
    /// Collapses for which there was no folio (`thp_collapse_alloc_failed`).
    pub collapse_fallbacks: u64,
    /// What forks copied, and the writes to shared pages after them.
    pub forks: ForkFigures,
    /// At most [`MOST_SAMPLES`], evenly over the recorded time, each the highest around. What
    /// is stored of one is its time, its event, anonymous memory and page tables.
    #[serde(with = "samples")]
    pub samples: Vec<LifeSample>,
}

/// How samples are stored: as columns of differences.
mod samples {
    use super::*;

    #[derive(Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Columns {
        time_ns: Vec<i64>,
        event: Vec<i64>,
        anonymous: Vec<i64>,
        page_tables: Vec<i64>,
    }

    pub(super) fn serialize<S: Serializer>(samples: &[LifeSample], to: S) -> Result<S::Ok, S::Error> {
        let column = |of: fn(&LifeSample) -> u64| differences(samples.iter().map(of));
        let columns = Columns {
            time_ns: column(|sample| sample.time_ns),
            event: column(|sample| sample.event),
            anonymous: column(|sample| sample.anonymous),
            page_tables: column(|sample| sample.page_tables),
        };
        columns.serialize(to)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Vec<LifeSample>, D::Error> {
        let Columns { time_ns, event, anonymous, page_tables } = Columns::deserialize(from)?;
        let lengths = [&event, &anonymous, &page_tables].map(Vec::len);
        if time_ns.len() > MOST_SAMPLES || lengths != [time_ns.len(); 3] {
            return Err(D::Error::custom("columns of samples are too long, or not of one length"));
        }
        let columns = values(&time_ns).zip(values(&event)).zip(values(&anonymous).zip(values(&page_tables)));
        let sample = |((time_ns, event), (anonymous, page_tables))| LifeSample {
            time_ns,
            event,
            anonymous,
            page_tables,
            ..LifeSample::default()
        };
        Ok(columns.map(sample).collect())
    }
}

/// A look visits all address spaces. So many visits are free, and each look adds some: with more address
/// spaces there are fewer looks.
const FIRST_VISITS: u64 = 1 << 22;
const VISITS_OF_LOOK: u64 = 256;

/// Samples that are kept.
pub const MOST_SAMPLES: usize = 2048;

/// The orders of large anonymous folios.
pub(super) fn large_orders() -> impl Iterator<Item = Order> {
    Order::ALL.into_iter().filter(|order| order.get() >= 2 && *order <= Order::PMD)
}

/// Sums over time: of a value that changes in steps or evenly between samples.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    anonymous: f64,
    resident: f64,
    page_tables: f64,
}

/// Takes the samples.
#[derive(Debug, Default)]
pub(super) struct Life {
    figures: LifeFigures,
    sums: Sums,
    last: LifeSample,
    /// The last one before a thread of the first process ended.
    end: Option<LifeSample>,
    /// Which process each address space is of, by its place in the report.
    owners: HashMap<SpaceId, usize>,
    /// Recorded time between two samples that are kept; doubled whenever there are too many.
    spacing_ns: u64,
    /// Visits of address spaces that were made beyond those that looks add, and how many the last look made.
    visits: u64,
    spaces: u64,
}

impl Life {
    /// The address space `id` is now that of the process at `place` of the report.
    pub(super) fn own(&mut self, id: SpaceId, place: usize) {
        self.owners.insert(id, place);
    }

    /// khugepaged collapsed so many blocks.
    pub(super) fn collapsed(&mut self, blocks: u64) {
        self.figures.khugepaged_collapses += blocks;
    }

    /// Samples the machine before event number `event`, at `time_ns` of the recorded time, or after it.
    pub(super) fn look(
        &mut self,
        memory: &Memory<HostPlatform>,
        memcg: MemcgId,
        (time_ns, event): (u64, u64),
        extra: &ExtraCharge,
    ) {
        self.visits = self.visits.saturating_sub(VISITS_OF_LOOK);
        if self.visits + self.spaces > FIRST_VISITS {
            return;
        }
        let (owners, processes) = (&self.owners, &mut self.figures.processes);
        let mut spaces = 0;
        let moment = (time_ns.max(self.last.time_ns), event);
        let now = LifeSample::of(memory, memcg, moment, extra, |id, resident| {
            spaces += 1;
            let Some(&place) = owners.get(&id) else { return };
            if place >= processes.len() {
                processes.resize(place + 1, ProcessLife::default());
            }
            let process = &mut processes[place];
            process.peak_anonymous = process.peak_anonymous.max(resident.anonymous);
            process.peak_page_tables = process.peak_page_tables.max(resident.page_tables);
        });
        self.spaces = spaces;
        self.visits += spaces;
        let passed = (now.time_ns - self.last.time_ns) as f64;
        let between = |before: u64, after: u64| (before as f64 + after as f64) / 2.0 * passed;
        self.sums.anonymous += between(self.last.anonymous, now.anonymous);
        self.sums.resident += between(self.last.resident, now.resident);
        self.sums.page_tables += between(self.last.page_tables, now.page_tables);
        self.last = now;
        let figures = &mut self.figures;
        if now.anonymous > figures.at_peak.anonymous {
            figures.at_peak = now;
        }
        if now.mapped > figures.at_mapped_peak.mapped {
            figures.at_mapped_peak = now;
        }
        if now.charge() > figures.at_charge_peak.charge() {
            figures.at_charge_peak = now;
        }
        figures.peak_pageable = figures.peak_pageable.max(now.pageable());
        figures.peak_largest = figures.peak_largest.max(now.largest);
        figures.peak_resident = figures.peak_resident.max(now.resident);
        figures.peak_page_tables = figures.peak_page_tables.max(now.page_tables);
        self.keep(now);
    }

    /// A thread of the first process ends after the last sample. The last of them ends the process.
    pub(super) fn first_process_ends(&mut self) {
        self.end = Some(self.last);
    }

    /// Keeps the sample, or the higher one of it and the last kept one where they are close.
    fn keep(&mut self, now: LifeSample) {
        let samples = &mut self.figures.samples;
        match samples.last_mut() {
            Some(last) if now.time_ns / self.spacing_ns.max(1) == last.time_ns / self.spacing_ns.max(1) => {
                if now.anonymous >= last.anonymous {
                    *last = now;
                }
            }
            _ => samples.push(now),
        }
        if samples.len() > MOST_SAMPLES {
            self.spacing_ns = (self.spacing_ns * 2).max(1 << 16);
            let spacing = self.spacing_ns;
            samples.dedup_by(|next, kept| {
                let close = next.time_ns / spacing == kept.time_ns / spacing;
                if close && next.anonymous >= kept.anonymous {
                    *kept = *next;
                }
                close
            });
        }
    }

    /// The figures at the end of the replay.
    pub(super) fn finish(mut self, memory: &Memory<HostPlatform>) -> LifeFigures {
        let time = self.last.time_ns.max(1) as f64;
        let mut figures = std::mem::take(&mut self.figures);
        figures.at_end = self.end.unwrap_or(self.last);
        figures.mean_anonymous = self.sums.anonymous / time;
        figures.mean_resident = self.sums.resident / time;
        figures.mean_page_tables = self.sums.page_tables / time;
        figures.faults = memory.event(VmEvent::Pgfault);
        figures.collapses = memory.collapsed();
        figures.collapse_fallbacks = memory.event(VmEvent::ThpCollapseAllocFailed);
        let of = |order| {
            let count = |counter| memory.folio_event(order, counter);
            FolioFigures {
                order,
                faults: count(FolioCounter::AnonFaultAlloc),
                fallbacks: count(FolioCounter::AnonFaultFallback),
                splits: count(FolioCounter::Split),
                shared: count(FolioCounter::ShmemAlloc),
            }
        };
        figures.folios = OrderSet::SHMEM
            .iter()
            .map(of)
            .filter(|folio| folio.faults + folio.fallbacks + folio.splits + folio.shared > 0)
            .collect();
        figures.folios.sort_by_key(|folio| folio.order);
        figures
    }
}

impl LifeFigures {
    /// Faults that tried a large folio for which there was no memory, and collapses likewise.
    #[must_use]
    pub fn fallbacks(&self) -> u64 {
        self.folios.iter().map(|folio| folio.fallbacks).sum::<u64>() + self.collapse_fallbacks
    }

    /// The share of the mapped anonymous memory, when there was most of it, that entries of PMD tables
    /// mapped, 0 to 1.
    #[must_use]
    pub fn huge_share(&self) -> f64 {
        self.share(self.at_mapped_peak.huge)
    }

    /// The share that was in large folios, mapped at any level.
    #[must_use]
    pub fn large_share(&self) -> f64 {
        self.share(self.at_mapped_peak.large)
    }

    fn share(&self, bytes: u64) -> f64 {
        (bytes as f64 / self.at_mapped_peak.mapped.max(PAGE_SIZE) as f64).min(1.0)
    }
}

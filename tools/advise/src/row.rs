//! The figures of one setting, of several replays.

use crate::change::Measure;
use crate::estimate::{estimate, estimated, faults_by_size};
use crate::forks::ForkRow;
use crate::outcome::{Outcome, ProcessRow, summed};
use crate::range::Range;
use quire_arch::Order;
use quire_measure::Costs;
use quire_replay::LifeFigures;
use std::collections::{BTreeMap, BTreeSet};

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

    /// The row's figure of this measure of memory.
    #[must_use]
    pub fn memory(&self, measure: Measure) -> Range {
        match measure {
            Measure::Largest => self.peak_largest,
            Measure::Mapped => self.peak_mapped,
            Measure::Charged => self.peak_anonymous,
            Measure::Mean => self.mean_anonymous,
            Measure::End => self.end_anonymous,
            Measure::Shared => self.shared,
        }
    }
}

/// Pages of files at the peak that stay in no limit. In a replay those of shared memory are among them.
fn droppable_files(life: &LifeFigures) -> u64 {
    let stays = life.peak_pageable + life.at_charge_peak.locked_files;
    life.peak_resident.saturating_sub(stays)
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
    use quire_replay::LifeSample;

    /// They stay, so that they are part of each limit, and no headroom is for them.
    #[test]
    fn locked_files_and_shared_memory_are_not_dropped() {
        let at_charge_peak =
            LifeSample { anonymous: 100, shared: 20, locked_files: 300, ..LifeSample::default() };
        let (peak_pageable, peak_resident) = (120, 450);
        let life = LifeFigures { at_charge_peak, peak_pageable, peak_resident, ..LifeFigures::default() };
        assert_eq!(droppable_files(&life), 30);
        assert_eq!(droppable_files(&LifeFigures { peak_resident: 410, ..life }), 0);
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
}

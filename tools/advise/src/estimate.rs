//! What the page faults of a replay cost, estimated.

use crate::range::Range;
use quire_arch::PAGE_SIZE;
use quire_measure::{Cost, Costs};
use quire_replay::LifeFigures;
use std::collections::BTreeMap;

/// Page faults by the size of what they mapped, in bytes; those of files and of other pages count as 4 KiB.
#[must_use]
pub fn faults_by_size(life: &LifeFigures) -> BTreeMap<u64, u64> {
    // Shared memory takes as long to clear.
    let all = life.folios.iter().map(|folio| (folio.order.bytes(), folio.faults + folio.shared));
    let mut faults: BTreeMap<u64, u64> = all.filter(|(_, count)| *count > 0).collect();
    let rest = life.faults.saturating_sub(faults.values().sum());
    faults.insert(PAGE_SIZE, rest);
    faults
}

/// What the page faults of a replay and the collapses that the programs asked for cost on a host of these
/// costs, in nanoseconds: the median, the least and the most. khugepaged has a thread of its own.
pub(crate) fn estimate(life: &LifeFigures, costs: &Costs) -> [f64; 3] {
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

/// What page faults take in a replay, in nanoseconds, as [`estimate`] gives it; a guess where the host was
/// not calibrated.
pub(crate) fn fault_ns(life: &LifeFigures, costs: Option<&Costs>) -> [f64; 3] {
    let guess = |each: f64| {
        let by_size = faults_by_size(life).into_iter();
        by_size.map(|(size, count)| count as f64 * (each + size as f64 * ZEROED_BYTE_NS)).sum()
    };
    match costs {
        Some(costs) => estimate(life, costs),
        None => [FAULT_NS.median, FAULT_NS.min, FAULT_NS.max].map(guess),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_arch::Order;
    use quire_measure::FaultCost;
    use quire_replay::FolioFigures;

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
        let folio = |order, faults| FolioFigures { order, faults, fallbacks: 0, splits: 0, shared: 0 };
        let folios = vec![folio(Order::ALL[2], 3), folio(Order::PMD, 2)];
        let life = LifeFigures { faults: 15, folios, collapses: 1, ..LifeFigures::default() };
        assert_eq!(faults_by_size(&life), [(4096, 10), (16384, 3), (2 << 20, 2)].into());
        // Folios of 16 KiB were not measured: three more pages to zero.
        let median = 10.0 * 100.0 + 3.0 * (100.0 + 3.0 * 60.0) + 2.0 * 9000.0 + 5000.0;
        assert_eq!(estimate(&life, &costs), [median, median - 16.0, median + 32.0]);
    }
}

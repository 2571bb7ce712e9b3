//! What forks cost under a setting.

use crate::estimate::estimated;
use crate::range::Range;
use quire_measure::{Cost, Costs};
use quire_replay::{ForkFigures, LifeFigures};

/// What the forks of a replay cost on a host of these costs, in nanoseconds: the median, the least and the
/// most; the copies of entries, and the writes to shared pages after them. None where that was not measured.
fn fork_estimate(figures: &ForkFigures, costs: &Costs) -> Option<[f64; 3]> {
    let cost = costs.fork?;
    let pick = |cost: Cost| [cost.median, cost.min, cost.max];
    let parts = [
        (figures.forks, cost.base),
        (figures.entries, cost.page),
        (figures.huge_entries, cost.huge.unwrap_or(cost.page)),
        (figures.copies, cost.copy),
        (figures.splits, cost.split.unwrap_or_default()),
        (figures.reuses, costs.map_present),
    ];
    let sum = |end: usize| parts.iter().map(|(count, cost)| *count as f64 * pick(*cost)[end]).sum();
    Some([0, 1, 2].map(sum))
}

/// What forks cost under a setting: counts of all of them together.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct ForkRow {
    /// Forks.
    pub forks: Range,
    /// Entries for single pages that they copied.
    pub entries: Range,
    /// Entries for 2 MiB that they copied.
    pub huge_entries: Range,
    /// Page tables that they made.
    pub tables: Range,
    /// Pages that writes copied afterwards, since processes shared them.
    pub copies: Range,
    /// Writes afterwards that found their page no longer shared.
    pub reuses: Range,
    /// Entries for 2 MiB that writes split afterwards.
    pub splits: Range,
    /// The time of all that, in nanoseconds, if the host was calibrated: an estimate.
    pub estimate_ns: Option<Range>,
}

impl ForkRow {
    pub(crate) fn of(lives: &[&LifeFigures], costs: Option<&Costs>) -> Self {
        let range = |of: fn(&ForkFigures) -> u64| Range::of(lives.iter().map(|life| of(&life.forks) as f64));
        let estimates = costs.and_then(|costs| {
            lives.iter().map(|life| fork_estimate(&life.forks, costs)).collect::<Option<Vec<_>>>()
        });
        Self {
            forks: range(|figures| figures.forks),
            entries: range(|figures| figures.entries),
            huge_entries: range(|figures| figures.huge_entries),
            tables: range(|figures| figures.tables),
            copies: range(|figures| figures.copies),
            reuses: range(|figures| figures.reuses),
            splits: range(|figures| figures.splits),
            estimate_ns: estimates.map(|estimates| estimated(&estimates)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_measure::ForkCost;

    /// A fork of 100 pages and two blocks, after which seven pages are copied and three are not; one of those
    /// that are copied splits a block.
    #[test]
    fn an_estimate_is_counts_times_costs() {
        let forks = ForkFigures {
            forks: 1,
            entries: 100,
            huge_entries: 2,
            tables: 1,
            copies: 7,
            reuses: 3,
            splits: 1,
        };
        let cost = |median: f64| Cost { median, min: median - 1.0, max: median + 2.0 };
        let costs = Costs {
            kernel: String::new(),
            cpu: String::new(),
            faults: [].into(),
            map_present: cost(10.0),
            zero_small: cost(10.0),
            zero_huge: cost(10.0),
            collapse: None,
            fork: None,
            kernel_memory: None,
        };
        assert_eq!(fork_estimate(&forks, &costs), None);
        let fork = ForkCost {
            base: cost(900.0),
            page: cost(2.0),
            huge: Some(cost(30.0)),
            copy: cost(50.0),
            split: Some(cost(200.0)),
        };
        let found = fork_estimate(&forks, &Costs { fork: Some(fork), ..costs.clone() });
        assert_eq!(found, Some([1740.0, 1626.0, 1968.0]));
        // A calibration of an earlier version has no splits.
        let without = ForkCost { split: None, ..fork };
        let found = fork_estimate(&forks, &Costs { fork: Some(without), ..costs });
        assert_eq!(found, Some([1540.0, 1427.0, 1766.0]));
    }
}

//! The time of page faults on this host, from a replay's counts and the calibration.

use quire_measure::Costs;
use std::collections::BTreeMap;

/// Quantiles of the time of a page fault, in nanoseconds: estimates. Each fault takes what `quire calibrate`
/// measured for its size.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Latency {
    /// Half of the faults take no longer.
    pub p50: f64,
    /// Nine in ten.
    pub p90: f64,
    /// All but one in a hundred.
    pub p99: f64,
    /// All but one in a thousand.
    pub p999: f64,
}

impl Latency {
    /// Of so many faults of each size, in bytes. None if there were none.
    #[must_use]
    pub fn of(by_size: &BTreeMap<u64, f64>, costs: &Costs) -> Option<Self> {
        let mut faults: Vec<(f64, f64)> = by_size
            .iter()
            .filter(|&(_, &count)| count > 0.0)
            .filter_map(|(&size, &count)| Some((fault_ns(size, costs)?, count)))
            .collect();
        faults.sort_by(|one, other| one.0.total_cmp(&other.0));
        let all: f64 = faults.iter().map(|&(_, count)| count).sum();
        let quantile = |share: f64| {
            let mut before = 0.0;
            let reached = |&&(_, count): &&(f64, f64)| {
                before += count;
                before >= share * all
            };
            faults.iter().find(reached).or(faults.last()).map(|&(cost, _)| cost)
        };
        Some(Self { p50: quantile(0.5)?, p90: quantile(0.9)?, p99: quantile(0.99)?, p999: quantile(0.999)? })
    }
}

/// What a fault that maps `size` bytes takes, the median. A size that could not be measured costs what the
/// next smaller one does, and its own zeroing.
pub(crate) fn fault_ns(size: u64, costs: &Costs) -> Option<f64> {
    let (&known, fault) = costs.faults.range(..=size).next_back()?;
    Some(fault.total.median + fault.zeroing * (size as f64 / known as f64 - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_measure::{Cost, FaultCost};

    #[test]
    fn quantiles_count_faults_of_each_size() {
        let cost = |median: f64| Cost { median, min: median, max: median };
        let fault = |total: f64| FaultCost { total: cost(total), zeroing: 0.0, fixed: total };
        let costs = Costs {
            kernel: String::new(),
            cpu: String::new(),
            faults: [(4096, fault(500.0)), (2 << 20, fault(90_000.0))].into(),
            map_present: cost(1.0),
            zero_small: cost(1.0),
            zero_huge: cost(1.0),
            collapse: None,
            fork: None,
            kernel_memory: None,
        };
        let found = Latency::of(&[(4096, 950.0), (2 << 20, 50.0)].into(), &costs);
        let found = found.expect("there are faults");
        assert_eq!((found.p50, found.p90, found.p99), (500.0, 500.0, 90_000.0));
        assert_eq!(Latency::of(&BTreeMap::new(), &costs), None);
    }
}

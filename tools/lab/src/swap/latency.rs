//! How long accesses take, one by one.

use crate::case::Case;
use crate::report::Metric;
use hdrhistogram::Histogram;

/// Times in nanoseconds, to three digits.
#[derive(Clone, Debug)]
pub(super) struct Latencies(Histogram<u64>);

/// Adds the time that so many of a thousand accesses stay within.
pub(super) fn add_accesses<R>(case: &mut Case, name: &str, all: &[R], of: impl Fn(&R) -> &Latencies) {
    for (metric, part) in ACCESSES {
        case.of_each(name, all, &[(metric, &|one| of(one).within(part))]);
    }
}

const ACCESSES: [(Metric, f64); 3] = [
    (Metric::lower("access_p50", "us"), 500.0),
    (Metric::lower("access_p99", "us"), 990.0),
    (Metric::lower("access_p99_9", "us"), 999.0),
];

/// Longest time that is recorded: a minute.
const LONGEST: u64 = 60_000_000_000;

impl Default for Latencies {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST, 3);
        Self(histogram.unwrap_or_else(|error| unreachable!("the bounds are in order: {error}")))
    }
}

impl Latencies {
    pub(super) fn add(&mut self, time: u64) {
        self.0.saturating_record(time.max(1));
    }

    pub(super) fn merge(&mut self, other: &Self) {
        // Both have the same bounds.
        let _ = self.0.add(&other.0);
    }

    /// The time in microseconds that so many of a thousand stay within.
    pub(super) fn within(&self, per_mille: f64) -> f64 {
        self.0.value_at_quantile(per_mille / 1000.0) as f64 / 1000.0
    }
}

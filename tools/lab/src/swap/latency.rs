//! How long accesses take, one by one.

use crate::prelude::*;
use hdrhistogram::Histogram;

/// Times in nanoseconds, to three digits.
#[derive(Clone, Debug)]
pub(super) struct Latencies(Histogram<u64>);

/// The rows of [`Latencies::accesses`], of which `first` is the first.
pub(super) const fn access_rows(first: usize) -> [Row; 3] {
    [
        Row::lower("access_p50", "us", first, Series::last),
        Row::lower("access_p99", "us", first + 1, Series::last),
        Row::lower("access_p99_9", "us", first + 2, Series::last),
    ]
}

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

    /// The times in microseconds that half, 990 and 999 of a thousand stay within.
    pub(super) fn accesses(&self) -> [f64; 3] {
        [0.5, 0.99, 0.999].map(|part| self.0.value_at_quantile(part) as f64 / 1000.0)
    }
}

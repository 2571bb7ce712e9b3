//! The mean of a figure over time.

use std::time::Instant;

/// A figure that was read at moments, and is taken to change evenly between them.
#[derive(Debug, Default)]
pub(crate) struct Mean {
    /// Of the last reading.
    last: Option<(Instant, f64)>,
    /// The figure times seconds, and seconds.
    sum: f64,
    seconds: f64,
}

impl Mean {
    /// The figure is `value` now.
    pub(crate) fn add(&mut self, now: Instant, value: u64) {
        let value = value as f64;
        if let Some((before, was)) = self.last {
            let passed = now.saturating_duration_since(before).as_secs_f64();
            self.sum += passed * (was + value) / 2.0;
            self.seconds += passed;
        }
        self.last = Some((now, value));
    }

    /// The mean since the first reading.
    pub(crate) fn get(&self) -> f64 {
        if self.seconds > 0.0 { self.sum / self.seconds } else { self.last.map_or(0.0, |(_, value)| value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_figure_counts_for_as_long_as_it_holds() {
        let start = Instant::now();
        let mut mean = Mean::default();
        assert_eq!(mean.get(), 0.0);
        mean.add(start, 7);
        assert_eq!(mean.get(), 7.0);
        for (second, value) in [(0, 10), (9, 10), (9, 0), (10, 0)] {
            mean.add(start + Duration::from_secs(second), value);
        }
        assert!((mean.get() - 9.0).abs() < 1e-9, "{mean:?}");
    }
}

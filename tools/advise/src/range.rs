//! A figure of several replays, as median and range.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ranges() {
        assert_eq!(Range::of([3.0, 1.0, 2.0]), Range { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Range::of([4.0, 1.0]), Range { median: 2.5, min: 1.0, max: 4.0 });
        assert_eq!(Range::of([]), Range::default());
        assert_eq!(Range::of([5.0, 9.0]).spread(), 2.0);
    }
}

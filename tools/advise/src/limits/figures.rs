//! Figures of replays within one limit.

use super::setting::LimitSwap;
use super::stall;
use crate::figures::Range;
use quire_arch::PAGE_SIZE;
use quire_trace::replay::{PressureFigures, ReplayReport};

/// The result of one replay within a limit.
#[derive(Clone, Debug)]
pub(super) struct LimitOutcome {
    /// Why the program does not fit.
    does_not_fit: Option<String>,
    pressure: PressureFigures,
    /// The size of pages by zstd, as a share of that by LZ4.
    zstd_of_lz4: Option<f64>,
}

impl LimitOutcome {
    pub(super) fn of(report: &ReplayReport) -> Self {
        let does_not_fit = report.does_not_fit.as_ref().map(ToString::to_string);
        Self { does_not_fit, pressure: report.pressure, zstd_of_lz4: report.zstd_of_lz4 }
    }

    /// The size of the pool when most was paged out, in bytes; none where the swap does not compress, or the
    /// ratio is not known.
    fn compressed(&self, swap: LimitSwap) -> Option<f64> {
        let lz4 = self.pressure.swap.compressed_bytes as f64;
        match swap {
            LimitSwap::Zram | LimitSwap::Zswap => Some(lz4),
            LimitSwap::ZramZstd => Some(lz4 * self.zstd_of_lz4?),
            LimitSwap::Disk => None,
        }
    }

    pub(super) fn fits(&self) -> bool {
        self.does_not_fit.is_none()
    }
}

/// What a program does within a limit. Memory in bytes.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct LimitFigures {
    /// Page faults that wait for a paged-out page.
    pub major_faults: Range,
    /// What comes back, without pages of zeros, which no device gets.
    pub swap_read: Range,
    /// What goes out, likewise.
    pub swap_written: Range,
    /// The most that is paged out, before compression.
    pub swapped: Range,
    /// The same compressed, if the swap compresses and the recordings have the ratio.
    pub compressed: Option<Range>,
    /// How long threads are stalled for it, in nanoseconds, summed over them: an estimate.
    pub stall_ns: Range,
}

/// What is known of a limit.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LimitRow {
    /// Why the program does not fit; none if it does in all recordings.
    pub does_not_fit: Option<String>,
    /// None where it does not fit, or where the recordings do not have them.
    pub figures: Option<LimitFigures>,
}

impl LimitRow {
    /// Of the replays of all recordings; `known`: these say which pages were used when.
    pub(super) fn of(outcomes: &[&LimitOutcome], swap: LimitSwap, known: bool) -> Self {
        let does_not_fit = outcomes.iter().find_map(|outcome| outcome.does_not_fit.clone());
        let figures = (known && does_not_fit.is_none()).then(|| {
            let pressure = || outcomes.iter().map(|outcome| &outcome.pressure);
            let range = |of: fn(&PressureFigures) -> u64| Range::of(pressure().map(|found| of(found) as f64));
            let [median, least, most] =
                [0, 1, 2].map(|end| Range::of(pressure().map(|found| stall::estimate(swap, found)[end])));
            let compressed: Option<Vec<f64>> = outcomes.iter().map(|found| found.compressed(swap)).collect();
            LimitFigures {
                major_faults: range(|found| found.major_faults),
                swap_read: range(|found| (found.pages_in - found.zeros_in) * PAGE_SIZE),
                swap_written: range(|found| (found.pages_out - found.zeros_out) * PAGE_SIZE),
                swapped: range(|found| found.swap.used * PAGE_SIZE),
                compressed: compressed.map(Range::of),
                stall_ns: Range { median: median.median, min: least.min, max: most.max },
            }
        });
        Self { does_not_fit, figures }
    }

    /// Whether the program fits.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.does_not_fit.is_none()
    }

    /// The estimate of [`LimitFigures::stall_ns`] as a share of `seconds`.
    #[must_use]
    pub fn stalled_share(&self, seconds: f64) -> Option<f64> {
        Some(self.figures?.stall_ns.median / (seconds * 1e9).max(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_trace::replay::SwapFigures;

    fn outcome(major_faults: u64) -> LimitOutcome {
        let pressure = PressureFigures {
            major_faults,
            pages_in: major_faults + 5,
            zeros_in: 5,
            pages_out: major_faults + 30,
            swap: SwapFigures { compressed_bytes: 1000, ..SwapFigures::default() },
            zeros_out: 10,
            ..PressureFigures::default()
        };
        LimitOutcome { does_not_fit: None, pressure, zstd_of_lz4: Some(0.5) }
    }

    #[test]
    fn figures_are_medians_and_pages_of_zeros_no_traffic() {
        let [few, some, many] = [100, 200, 400].map(outcome);
        let row = LimitRow::of(&[&many, &few, &some], LimitSwap::Zram, true);
        let figures = row.figures.unwrap();
        assert_eq!(figures.major_faults, Range { median: 200.0, min: 100.0, max: 400.0 });
        assert_eq!((figures.swap_read.median, figures.swap_written.median), (819_200.0, 901_120.0));
        assert!(
            figures.compressed == Some(Range::of([1000.0])) && figures.stall_ns.min < figures.stall_ns.median
        );
        assert!(row.stalled_share(1.0) > Some(0.0));
        let compressed =
            |outcomes: &[&LimitOutcome], swap| LimitRow::of(outcomes, swap, true).figures.unwrap().compressed;
        assert_eq!(compressed(&[&few], LimitSwap::Disk), None);
        assert_eq!(compressed(&[&few], LimitSwap::ZramZstd), Some(Range::of([500.0])));
        let unknown = LimitOutcome { zstd_of_lz4: None, ..few.clone() };
        assert_eq!(compressed(&[&few, &unknown], LimitSwap::ZramZstd), None, "not all recordings tell");
    }

    #[test]
    fn one_recording_that_does_not_fit_is_enough() {
        let bad = LimitOutcome { does_not_fit: Some("no".to_owned()), ..outcome(7) };
        let row = LimitRow::of(&[&outcome(1), &bad], LimitSwap::Zram, true);
        assert!(!row.fits() && row.figures.is_none() && row.stalled_share(1.0).is_none());
        let row = LimitRow::of(&[&outcome(1)], LimitSwap::Zram, false);
        assert!(row.fits() && row.figures.is_none());
    }
}

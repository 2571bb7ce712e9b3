//! Figures of replays within one limit.

use super::stall;
use crate::less::LimitOutcome;
use crate::range::Range;
use crate::swap::LimitSwap;
use quire_arch::PAGE_SIZE;
use quire_replay::PressureFigures;

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
    /// Of that, for pages that go out and stay out: it is paid once, however long the program goes on.
    pub once_ns: Range,
    /// Linux may kill the program, though there is room in the swap: soon after it reached the limit it used
    /// all of what fits again.
    pub may_be_killed: bool,
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
            let stall = |of: fn([[f64; 3]; 2], usize) -> f64| {
                let [median, least, most] = [0, 1, 2]
                    .map(|end| Range::of(pressure().map(|found| of(stall::estimate(swap, found), end))));
                Range { median: median.median, min: least.min, max: most.max }
            };
            let compressed: Option<Vec<f64>> = outcomes.iter().map(|found| found.compressed(swap)).collect();
            LimitFigures {
                major_faults: range(|found| found.major_faults),
                swap_read: range(|found| (found.pages_in - found.zeros_in) * PAGE_SIZE),
                swap_written: range(|found| (found.pages_out - found.zeros_out) * PAGE_SIZE),
                swapped: range(|found| found.swap.used * PAGE_SIZE),
                compressed: compressed.map(Range::of),
                stall_ns: stall(|[once, again], end| once[end] + again[end]),
                once_ns: stall(|[once, _], end| once[end]),
                may_be_killed: outcomes.iter().any(|outcome| outcome.may_be_killed),
            }
        });
        Self { does_not_fit, figures }
    }

    /// Whether the program fits.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.does_not_fit.is_none()
    }

    /// What of [`LimitFigures::stall_ns`] comes again and again, as a share of the program's time: how long
    /// it was recorded does not matter. `seconds` is that time, as a range.
    #[must_use]
    pub fn stalled_share(&self, seconds: Range) -> Option<Range> {
        let LimitFigures { stall_ns, once_ns, .. } = self.figures?;
        let share = |stall: f64, once: f64, seconds: f64| (stall - once).max(0.0) / (seconds * 1e9).max(1.0);
        Some(Range {
            median: share(stall_ns.median, once_ns.median, seconds.median),
            min: share(stall_ns.min, once_ns.min, seconds.max),
            max: share(stall_ns.max, once_ns.max, seconds.min),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::less::Missing;
    use quire_replay::SwapFigures;

    const SECOND: Range = Range { median: 1.0, min: 1.0, max: 1.0 };

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
        let missing = Missing::default();
        LimitOutcome { does_not_fit: None, pressure, may_be_killed: false, zstd_of_lz4: Some(0.5), missing }
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
        assert!(row.stalled_share(SECOND).unwrap().median > 0.0 && !figures.may_be_killed);
        let killed = LimitOutcome { may_be_killed: true, ..few.clone() };
        assert!(LimitRow::of(&[&many, &killed], LimitSwap::Zram, true).figures.unwrap().may_be_killed);
        let compressed =
            |outcomes: &[&LimitOutcome], swap| LimitRow::of(outcomes, swap, true).figures.unwrap().compressed;
        assert_eq!(compressed(&[&few], LimitSwap::Disk), None);
        assert_eq!(compressed(&[&few], LimitSwap::ZramZstd), Some(Range::of([500.0])));
        let unknown = LimitOutcome { zstd_of_lz4: None, ..few.clone() };
        assert_eq!(compressed(&[&few, &unknown], LimitSwap::ZramZstd), None, "not all recordings tell");
    }

    /// A program that goes on for longer has more major faults, and pages that stay out no more often.
    #[test]
    fn how_long_was_recorded_does_not_change_the_share() {
        let share = |seconds: u64| {
            let pressure = PressureFigures {
                major_faults: 1000 * seconds,
                pages_in: 1000 * seconds,
                pages_out: 1000 * seconds + 50_000,
                ..PressureFigures::default()
            };
            let outcome = LimitOutcome { pressure, ..outcome(0) };
            let row = LimitRow::of(&[&outcome], LimitSwap::Zram, true);
            let time = seconds as f64;
            row.stalled_share(Range { median: time, min: time / 2.0, max: time }).unwrap()
        };
        let (short, long) = (share(1), share(100));
        assert!((short.median - long.median).abs() < 1e-9 && short.median > 0.01, "{short:?} {long:?}");
        assert!(short.min < short.median && short.max > 2.0 * short.median);
    }

    #[test]
    fn one_recording_that_does_not_fit_is_enough() {
        let bad = LimitOutcome { does_not_fit: Some("no".to_owned()), ..outcome(7) };
        let row = LimitRow::of(&[&outcome(1), &bad], LimitSwap::Zram, true);
        assert!(!row.fits() && row.figures.is_none() && row.stalled_share(SECOND).is_none());
        let row = LimitRow::of(&[&outcome(1)], LimitSwap::Zram, false);
        assert!(row.fits() && row.figures.is_none());
    }
}

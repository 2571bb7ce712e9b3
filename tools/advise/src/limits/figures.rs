//! Figures of replays within one limit.

use super::setting::LimitSwap;
use super::stall;
use crate::figures::Range;
use quire_arch::PAGE_SIZE;
use quire_trace::format::Pressure;
use quire_trace::replay::{PressureFigures, ProcessReport, ReplayReport};

/// The result of one replay within a limit.
#[derive(Clone, Debug)]
pub(super) struct LimitOutcome {
    /// Why the program does not fit.
    does_not_fit: Option<String>,
    pressure: PressureFigures,
    may_be_killed: bool,
    /// The size of pages by zstd, as a share of that by LZ4.
    zstd_of_lz4: Option<f64>,
    pub(super) missing: Missing,
}

/// What a recording lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Missing {
    /// Page faults and calls that were lost, and of them those whose events Linux removed.
    pub(super) lost: u64,
    pub(super) unheard: u64,
    /// Events that it has.
    pub(super) events: u64,
    /// What stayed resident of what the recorder was to page out ([`stayed`]), in bytes.
    pub(super) stayed: u64,
}

/// So many bytes may come in before the recorder pages out again.
const BEFORE_A_ROUND: u64 = 4 << 20;

/// The anonymous memory that a process had resident at its end, in bytes, where that is by far more than what
/// the pressure leaves: the recorder did not page it out, and its uses are not in the recording. 0 where it
/// is not. What is locked stays in the replay as well, and each limit has room for what is `shared` since a
/// fork. Of a sample, most is to stay.
pub(super) fn stayed(pressure: Option<Pressure>, processes: &[ProcessReport], shared: u64) -> u64 {
    let Some(pressure) = pressure else { return 0 };
    let one_in = u64::from(pressure.one_in.max(1));
    let of = |process: &ProcessReport| {
        let linux = process.linux.as_ref()?;
        let resident = linux.rss_anon.saturating_sub(process.quire.locked).saturating_sub(shared);
        let all = resident.saturating_add(linux.vm_swap);
        // By chance a sample may have half as many blocks.
        let outside = if one_in == 1 { 0 } else { all - all / one_in / 2 };
        let kept = pressure.bytes / one_in;
        let most = outside.saturating_add(kept.saturating_add(kept / 2)).saturating_add(BEFORE_A_ROUND);
        (resident > most).then_some(resident)
    };
    processes.iter().filter_map(of).max().unwrap_or(0)
}

impl LimitOutcome {
    /// Of a recording that was `made_under` this pressure, of a program of which so much is `shared` since a
    /// fork.
    pub(super) fn of(report: &ReplayReport, made_under: Option<Pressure>, shared: u64) -> Self {
        let does_not_fit = report.does_not_fit.as_ref().map(ToString::to_string);
        let ReplayReport { pressure, may_be_killed, zstd_of_lz4, .. } = *report;
        let ReplayReport { lost, unheard, events, .. } = *report;
        let missing =
            Missing { lost, unheard, events, stayed: stayed(made_under, &report.processes, shared) };
        Self { does_not_fit, pressure, may_be_killed, zstd_of_lz4, missing }
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
    use quire_mm::space::SpaceFigures;
    use quire_trace::event::LinuxFigures;
    use quire_trace::replay::SwapFigures;

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
    fn what_pressure_leaves_is_no_more_than_it_says() {
        const MIB: u64 = 1 << 20;
        let process = |resident: u64, out: u64, locked: u64| {
            let (rss_anon, vm_swap) = (resident * MIB, out * MIB);
            let linux = LinuxFigures { rss_anon, vm_swap, ..LinuxFigures::default() };
            let quire = SpaceFigures { locked: locked * MIB, ..SpaceFigures::default() };
            ProcessReport { linux: Some(linux), quire, ..ProcessReport::default() }
        };
        let of = |pressure, process: ProcessReport| stayed(Some(pressure), &[process], 0) / MIB;
        let whole = Pressure::of(16 * MIB);
        assert_eq!(of(whole, process(64, 0, 0)), 64);
        assert_eq!(of(whole, process(26, 38, 0)), 0, "what came in since the last round");
        assert_eq!(of(whole, process(48, 400, 0)), 48, "of more that went");
        assert_eq!((of(whole, process(64, 0, 48)), of(whole, process(96, 0, 48))), (0, 48), "it is locked");
        let sample = Pressure::of_sample(256 * MIB, 4, 1);
        assert_eq!((of(sample, process(800, 200, 0)), of(sample, process(1000, 0, 0))), (0, 1000));
        assert_eq!((stayed(None, &[process(64, 0, 0)], 0), stayed(Some(whole), &[], 0)), (0, 0));
        let shared = |bytes| stayed(Some(whole), &[process(64, 0, 0)], bytes * MIB) / MIB;
        assert_eq!((shared(40), shared(30)), (0, 34), "each limit has room for it");
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

//! Which setting is worth trying.

use crate::figures::{Range, Row};
use crate::setting::Setting;
use std::collections::BTreeSet;

/// A change of the peak that is worth a change of settings: 5 %, less what a prediction of it may be wrong
/// by.
const WORTH_MEMORY: f64 = 0.045;
/// A change of the peak that is worth reporting.
const NOTABLE: f64 = 0.02;
/// A change below so many bytes matters to no host.
const NOTABLE_BYTES: f64 = (1 << 20) as f64;
/// A share of the processor time that is worth a change of settings.
const WORTH_TIME: f64 = 0.02;
/// Of settings that save time, the verdict names the one that takes least memory, if it saves this share of
/// the most.
const NEARLY_MOST: f64 = 0.9;

/// What one setting changes, against the present one.
#[derive(Clone, PartialEq, Debug)]
pub struct Gain {
    /// Its place among the rows.
    pub place: usize,
    /// Change of the peak of anonymous memory of the largest process, as a share of the present one: negative
    /// is less memory.
    pub memory: f64,
    /// Change of the number of page faults likewise.
    pub faults: f64,
    /// The share of the processor time that other page faults save, or of the recorded time where the
    /// processor time is not known: an estimate.
    pub time: f64,
    /// The same with the least and the most that a fault was measured to take.
    pub time_range: [f64; 2],
}

/// Which setting is worth trying.
#[derive(Clone, PartialEq, Debug)]
pub struct Verdict {
    /// The setting that takes least memory, if it takes less than the present one by more than the spread.
    pub least_memory: Option<Gain>,
    /// The setting whose fewer page faults save most time for no notable more memory.
    pub fewest_faults: Option<Gain>,
    /// The setting that takes most more memory than the present one, if any takes notably more: a warning.
    pub most_memory: Option<Gain>,
}

/// The change from `old` to `new`, as a share of `old`.
fn change(old: f64, new: f64) -> f64 {
    if old > 0.0 { (new - old) / old } else { 0.0 }
}

/// Whether a peak of `new` lies so far below one of `old` that it matters, and by more than `share`.
fn takes_less(old: Range, new: Range, share: f64) -> bool {
    is_below(old, new, share) && old.median - new.median >= NOTABLE_BYTES
}

/// Whether `new` lies below `old` by more than `share`, and by more than both spread.
fn is_below(old: Range, new: Range, share: f64) -> bool {
    change(old.median, new.median) < -share && new.median + new.spread() < old.median - old.spread()
}

impl Verdict {
    /// Of rows, the present setting's first, of a program that took `seconds` of processor time, of which it
    /// spent `spent` nanoseconds in page faults, a number a row.
    pub(crate) fn of(rows: &[(Setting, Row)], seconds: f64, spent: &[Range]) -> Self {
        let (Some((_, present)), Some(&now)) = (rows.first(), spent.first()) else {
            return Self { least_memory: None, fewest_faults: None, most_memory: None };
        };
        let saved = |place: usize, of: fn(Range) -> f64| {
            let there = spent.get(place).copied().unwrap_or(now);
            (of(now) - of(there)) / 1e9 / seconds.max(f64::MIN_POSITIVE)
        };
        let gain = |place: usize, row: &Row| Gain {
            place,
            memory: change(present.peak_largest.median, row.peak_largest.median),
            faults: change(present.faults.median, row.faults.median),
            time: saved(place, |spent| spent.median),
            time_range: {
                let ends = [saved(place, |spent| spent.min), saved(place, |spent| spent.max)];
                if ends[0] <= ends[1] { ends } else { [ends[1], ends[0]] }
            },
        };
        let others = || rows.iter().enumerate().skip(1).map(|(place, (_, row))| (place, row));
        let least_memory = others()
            .filter(|(_, row)| takes_less(present.peak_largest, row.peak_largest, WORTH_MEMORY))
            .map(|(place, row)| gain(place, row))
            .min_by(|one, other| {
                (one.memory, one.faults)
                    .partial_cmp(&(other.memory, other.faults))
                    .unwrap_or(std::cmp::Ordering::Equal)
            });
        let faster: Vec<Gain> = others()
            .filter(|(_, row)| is_below(present.faults, row.faults, 0.0))
            .map(|(place, row)| gain(place, row))
            .filter(|gain| gain.memory < NOTABLE && gain.time >= WORTH_TIME)
            .collect();
        let most = faster.iter().map(|gain| gain.time).fold(0.0, f64::max);
        let fewest_faults = faster
            .into_iter()
            .filter(|gain| gain.time >= NEARLY_MOST * most)
            .min_by(|one, other| one.memory.total_cmp(&other.memory));
        let most_memory = others()
            .filter(|(_, row)| takes_less(row.peak_largest, present.peak_largest, NOTABLE))
            .map(|(place, row)| gain(place, row))
            .max_by(|one, other| one.memory.total_cmp(&other.memory));
        Self { least_memory, fewest_faults, most_memory }
    }

    /// The places of all settings that it names, the present one's where another takes less memory.
    pub(crate) fn places(&self) -> BTreeSet<usize> {
        let named = [&self.least_memory, &self.fewest_faults, &self.most_memory];
        let named = named.into_iter().flatten().map(|gain| gain.place);
        named.chain(self.least_memory.as_ref().map(|_| 0)).collect()
    }

    /// Whether no setting is worth trying.
    #[must_use]
    pub fn nothing_changes(&self) -> bool {
        self.least_memory.is_none() && self.fewest_faults.is_none()
    }

    /// The setting to try: the one that saves memory, or else faults.
    #[must_use]
    pub fn recommended(&self) -> Option<&Gain> {
        self.least_memory.as_ref().or(self.fewest_faults.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setting::grid;
    use quire_mm::thp::HugeConfig;

    /// Rows with these medians of memory and faults; the rest are as the first.
    fn rows(figures: &[(f64, f64)], spread: f64) -> Vec<(Setting, Row)> {
        let range = |median: f64| Range { median, min: median - spread, max: median + spread };
        let settings = grid(HugeConfig::default());
        let figures = figures.iter().chain(std::iter::repeat(&figures[0]));
        let row = |&(memory, faults): &(f64, f64)| Row {
            peak_largest: range(memory),
            faults: range(faults),
            faults_by_size: [(4096, range(faults))].into(),
            ..Row::default()
        };
        settings.into_iter().zip(figures.map(row)).collect()
    }

    /// The verdict on a program that ran for a second on a host that was not calibrated.
    fn verdict(rows: &[(Setting, Row)]) -> Verdict {
        let spent: Vec<Range> = rows.iter().map(|(_, row)| row.fault_ns()).collect();
        Verdict::of(rows, 1.0, &spent)
    }

    #[test]
    fn nothing_is_advised_where_nothing_changes() {
        let found = verdict(&rows(&[(1e9, 1e5), (0.96e9, 0.9e5), (1.01e9, 0.75e5)], 0.0));
        assert!(found.nothing_changes() && found.recommended().is_none() && found.most_memory.is_none());
        assert!(Verdict::of(&[], 0.0, &[]).nothing_changes());
    }

    #[test]
    fn less_than_a_mebibyte_is_not_told() {
        let found = verdict(&rows(&[(1e5, 10.0), (0.5e5, 10.0), (9e5, 10.0)], 0.0));
        assert!(found.nothing_changes() && found.most_memory.is_none());
    }

    #[test]
    fn memory_comes_before_faults_and_both_before_chance() {
        let figures = [(1e9, 1e5), (0.7e9, 2e5), (1.4e9, 1e3), (1.0e9, 1e4)];
        let found = verdict(&rows(&figures, 1e3));
        assert_eq!(found.least_memory.as_ref().map(|gain| gain.place), Some(1));
        // The one with fewer still takes more memory.
        assert_eq!(found.fewest_faults.as_ref().map(|gain| gain.place), Some(3));
        assert_eq!(
            found.most_memory.as_ref().map(|gain| (gain.place, (gain.memory * 100.0).round())),
            Some((2, 40.0))
        );
        assert_eq!(found.recommended().map(|gain| gain.place), Some(1));
        // What the recordings differ in hides it.
        let found = verdict(&rows(&figures, 0.3e9));
        assert!(found.nothing_changes() && found.most_memory.is_none());
    }

    #[test]
    fn of_settings_that_save_nearly_as_much_time_the_smallest_is_named() {
        let most = [(1e9, 1e6), (1.015e9, 1e3), (1.002e9, 3e4), (1.001e9, 5e5)];
        let found = verdict(&rows(&most, 0.0));
        assert_eq!(found.fewest_faults.map(|gain| gain.place), Some(2));
    }
}

//! Which setting is worth trying.

use crate::figures::{Range, Row};
use crate::setting::Setting;
use std::collections::BTreeSet;

/// A change of the peak that is worth a change of settings.
const WORTH_MEMORY: f64 = 0.05;
/// A change of the peak that is worth being told.
const NOTABLE: f64 = 0.02;
/// A change below so many bytes matters to no host.
const NOTABLE_BYTES: f64 = (1 << 20) as f64;
/// A share of the run time that is worth a change of settings.
const WORTH_TIME: f64 = 0.02;
/// What a page fault costs beside zeroing its page, in seconds, where this host was not calibrated: on the low side.
/// Zeroing takes as long whatever the faults' size.
pub(crate) const FAULT_SECONDS: f64 = 0.5e-6;

/// What one setting changes, against the present one.
#[derive(Clone, PartialEq, Debug)]
pub struct Gain {
    /// Its place among the rows.
    pub place: usize,
    /// Change of the peak of anonymous memory of the largest process, as a share of the present one: negative is
    /// less memory.
    pub memory: f64,
    /// Change of the number of page faults likewise.
    pub faults: f64,
    /// The share of the run time that fewer page faults save: an estimate.
    pub time: f64,
}

/// Which setting is worth trying.
#[derive(Clone, PartialEq, Debug)]
pub struct Verdict {
    /// The setting that takes least memory, if it takes less than the present one by more than the spread.
    pub least_memory: Option<Gain>,
    /// The setting with the fewest page faults that takes no notable more memory.
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
    /// Of rows, the present setting's first, of a program that ran for `seconds` on a host where a page fault costs
    /// `fault_seconds` beside zeroing.
    pub(crate) fn of(rows: &[(Setting, Row)], seconds: f64, fault_seconds: f64) -> Self {
        let Some((_, present)) = rows.first() else {
            return Self { least_memory: None, fewest_faults: None, most_memory: None };
        };
        let gain = |place: usize, row: &Row| Gain {
            place,
            memory: change(present.peak_largest.median, row.peak_largest.median),
            faults: change(present.faults.median, row.faults.median),
            time: (present.faults.median - row.faults.median) * fault_seconds
                / seconds.max(f64::MIN_POSITIVE),
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
        let fewest_faults = others()
            .filter(|(_, row)| is_below(present.faults, row.faults, 0.0))
            .map(|(place, row)| gain(place, row))
            .filter(|gain| gain.memory < NOTABLE && gain.time >= WORTH_TIME)
            .min_by(|one, other| one.faults.total_cmp(&other.faults));
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
            ..Row::default()
        };
        settings.into_iter().zip(figures.map(row)).collect()
    }

    #[test]
    fn nothing_is_advised_where_nothing_changes() {
        let verdict =
            Verdict::of(&rows(&[(1e9, 1e5), (0.96e9, 0.9e5), (1.01e9, 0.6e5)], 0.0), 1.1, FAULT_SECONDS);
        assert!(
            verdict.nothing_changes() && verdict.recommended().is_none() && verdict.most_memory.is_none()
        );
        assert!(Verdict::of(&[], 0.0, FAULT_SECONDS).nothing_changes());
    }

    #[test]
    fn less_than_a_mebibyte_is_not_told() {
        let verdict = Verdict::of(&rows(&[(1e5, 10.0), (0.5e5, 10.0), (9e5, 10.0)], 0.0), 1.0, FAULT_SECONDS);
        assert!(verdict.nothing_changes() && verdict.most_memory.is_none());
    }

    #[test]
    fn memory_comes_before_faults_and_both_before_chance() {
        let figures = [(1e9, 1e5), (0.7e9, 2e5), (1.4e9, 1e3), (1.0e9, 1e4)];
        let verdict = Verdict::of(&rows(&figures, 1e3), 1.0, FAULT_SECONDS);
        assert_eq!(verdict.least_memory.as_ref().map(|gain| gain.place), Some(1));
        // The one with fewer still takes more memory.
        assert_eq!(verdict.fewest_faults.as_ref().map(|gain| gain.place), Some(3));
        assert_eq!(
            verdict.most_memory.as_ref().map(|gain| (gain.place, (gain.memory * 100.0).round())),
            Some((2, 40.0))
        );
        assert_eq!(verdict.recommended().map(|gain| gain.place), Some(1));
        // What the recordings differ in hides it.
        let verdict = Verdict::of(&rows(&figures, 0.3e9), 1.0, FAULT_SECONDS);
        assert!(verdict.nothing_changes() && verdict.most_memory.is_none());
    }
}

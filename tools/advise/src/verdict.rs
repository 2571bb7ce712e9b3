//! Which setting is worth trying.

use crate::change::{Change, Difference, Measure};
use crate::setting::{NEVER, Setting};
use std::collections::BTreeSet;

/// A change of memory that is worth a change of settings: 5 %, less what a prediction of it may be wrong by.
const WORTH_MEMORY: f64 = 0.045;
/// A change of memory that is worth reporting.
const NOTABLE: f64 = 0.02;
/// A change below so many bytes matters to no host.
const NOTABLE_BYTES: f64 = (1 << 20) as f64;
/// A share of the processor time that is worth a change of settings.
const WORTH_TIME: f64 = 0.02;
/// Of settings that save time, the verdict names the one that takes least memory, if it saves this share of
/// the most.
const NEARLY_MOST: f64 = 0.9;
/// Shares of memory, or of the time, that differ by no more than this are the same to a verdict.
const TIE: f64 = 0.01;

/// What one setting changes, against the present one.
#[derive(Clone, PartialEq, Debug)]
pub struct Gain {
    /// Its place among the rows.
    pub place: usize,
    /// The differences.
    pub change: Change,
}

/// Which setting is worth trying.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Verdict {
    /// The setting that takes least memory, if by some measure it takes less than the present one in each
    /// recording, and by none notably more.
    pub least_memory: Option<Gain>,
    /// The setting whose fewer page faults save most time for no notable more memory by any measure.
    pub fewest_faults: Option<Gain>,
    /// The setting that takes most more memory than the present one by some measure, if any takes notably
    /// more: a warning.
    pub most_memory: Option<Gain>,
}

impl Gain {
    /// All of memory in one number: the mean of the changes by each measure of anonymous memory. That of
    /// shared memory counts as one of them.
    fn memory(&self) -> f64 {
        let shares = self.change.memory.iter().map(|(_, difference)| difference.share.median);
        shares.sum::<f64>() / Measure::OF_ANONYMOUS as f64
    }

    /// The measure by which the setting saves memory that matters, if any: the one that falls most.
    #[must_use]
    pub fn saving(&self) -> Option<(Measure, Difference)> {
        let matters = |difference: &Difference| {
            difference.falls(WORTH_MEMORY) && difference.amount.median <= -NOTABLE_BYTES
        };
        self.most(|difference| -difference.share.median, matters)
    }

    /// The measure by which it takes notably more in each recording, if any: the one that rises most.
    #[must_use]
    pub fn rise(&self) -> Option<(Measure, Difference)> {
        let matters = |difference: &Difference| {
            difference.share.median > NOTABLE
                && difference.share.min > 0.0
                && difference.amount.median >= NOTABLE_BYTES
        };
        self.most(|difference| difference.share.median, matters)
    }

    /// Of the measures whose difference matters the one with most of `of`: the first of several that have as
    /// good as that.
    fn most(
        &self,
        of: impl Fn(&Difference) -> f64,
        matters: impl Fn(&Difference) -> bool,
    ) -> Option<(Measure, Difference)> {
        let mattering = || self.change.memory.iter().filter(|(_, difference)| matters(difference));
        let most = mattering().map(|(_, difference)| of(difference)).max_by(f64::total_cmp)?;
        let mut near = mattering().filter(|(_, difference)| of(difference) >= most - TIE * (1.0 + most));
        near.next().map(|(measure, difference)| (measure, *difference))
    }

    /// Whether it takes no notably more memory by any measure. Where all that is measured is too little to matter
    /// to a host, as what stays when only a shell is left, no share of it does.
    fn is_no_larger(&self) -> bool {
        self.change
            .memory
            .iter()
            .all(|(_, difference)| difference.share.median < NOTABLE || difference.there() < NOTABLE_BYTES)
    }

    /// Whether what it takes more is too little to matter to a host.
    fn is_hardly_larger(&self) -> bool {
        self.change.memory.iter().all(|(_, difference)| {
            difference.share.median < NOTABLE || difference.amount.median < NOTABLE_BYTES
        })
    }
}

/// Of gains that take the least memory, or as good as that, those that save most time, or as good as that; of
/// these the smallest that does not take huge pages from programs that ask for them.
fn smallest(gains: Vec<Gain>, settings: &[Setting]) -> Option<Gain> {
    let least = gains.iter().map(Gain::memory).min_by(f64::total_cmp)?;
    let small: Vec<Gain> = gains.into_iter().filter(|gain| gain.memory() <= least + TIE).collect();
    let most = small.iter().map(|gain| gain.change.time.median).max_by(f64::total_cmp)?;
    let quick = small.into_iter().filter(|gain| gain.change.time.median >= most - TIE);
    let takes_away = |gain: &Gain| settings.get(gain.place).is_some_and(|setting| setting.name == NEVER);
    quick.min_by(|one, other| {
        takes_away(one).cmp(&takes_away(other)).then(one.memory().total_cmp(&other.memory()))
    })
}

impl Verdict {
    /// Of settings, the present one first, and what each changes. No advice rests on those that are `marked`,
    /// but a warning does: it errs to the safe side.
    pub(crate) fn of(settings: &[Setting], changes: &[Change], marked: &[bool]) -> Self {
        let others = || {
            let is_of_linux = |place: usize| settings.get(place).is_none_or(Setting::is_of_linux);
            let others = changes.iter().enumerate().skip(1).filter(move |(place, _)| is_of_linux(*place));
            others.map(|(place, change)| Gain { place, change: *change })
        };
        let gains = || others().filter(|gain| !marked.get(gain.place).is_some_and(|marked| *marked));
        let saving = gains().filter(|gain| gain.saving().is_some() && gain.is_hardly_larger());
        let least_memory = smallest(saving.collect(), settings);
        let is_faster = |gain: &Gain| {
            let change = &gain.change;
            change.faults.falls(0.0) && change.time.median >= WORTH_TIME && change.time.min > 0.0
        };
        let faster: Vec<Gain> = gains().filter(|gain| is_faster(gain) && gain.is_no_larger()).collect();
        let most = faster.iter().map(|gain| gain.change.time.median).fold(0.0, f64::max);
        let nearly = faster.into_iter().filter(|gain| gain.change.time.median >= NEARLY_MOST * most);
        let fewest_faults = smallest(nearly.collect(), settings);
        let rising: Vec<(f64, Gain)> =
            others().filter_map(|gain| Some((gain.rise()?.1.share.median, gain))).collect();
        let most = rising.iter().map(|(rise, _)| *rise).fold(0.0, f64::max);
        let most_memory = rising.into_iter().find(|(rise, _)| *rise >= most - TIE * (1.0 + most));
        let most_memory = most_memory.map(|(_, gain)| gain);
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
    use crate::change::{Figures, Measured};
    use crate::setting::grid_of;
    use quire_mm::thp::HugeConfig;

    /// The verdict on these figures, those of each recording for each setting.
    fn verdict(settings: &[Vec<Figures>]) -> Verdict {
        let changes: Vec<Change> = settings.iter().map(|one| Change::of(&settings[0], one)).collect();
        Verdict::of(&grid_of(HugeConfig::default(), |_| true), &changes, &[])
    }

    /// Of one recording.
    fn verdict_of_one(figures_of: &[(f64, f64)]) -> Verdict {
        verdict(
            &figures_of
                .iter()
                .map(|&(memory, faults)| vec![Figures::invented(memory, faults)])
                .collect::<Vec<_>>(),
        )
    }

    fn place(gain: Option<&Gain>) -> Option<usize> {
        gain.map(|gain| gain.place)
    }

    #[test]
    fn nothing_is_advised_where_nothing_changes() {
        let found = verdict_of_one(&[(1e9, 1e5), (0.96e9, 0.9e5), (1.01e9, 0.75e5)]);
        assert!(found.nothing_changes() && found.recommended().is_none() && found.most_memory.is_none());
        assert!(Verdict::of(&[], &[], &[]).nothing_changes());
    }

    #[test]
    fn no_verdict_rests_on_a_marked_row() {
        let figures: Vec<Vec<Figures>> =
            [1e9, 0.5e9, 0.6e9].map(|memory| vec![Figures::invented(memory, 1e5)]).into();
        let changes: Vec<Change> = figures.iter().map(|one| Change::of(&figures[0], one)).collect();
        let settings = grid_of(HugeConfig::default(), |_| true);
        let named = |marked: &[bool]| place(Verdict::of(&settings, &changes, marked).least_memory.as_ref());
        assert_eq!(named(&[false; 3]), Some(1));
        assert_eq!(named(&[false, true, false]), Some(2));
        assert_eq!(named(&[true; 3]), None);
    }

    #[test]
    fn a_warning_rests_on_marked_rows_too() {
        let figures: Vec<Vec<Figures>> = [1e9, 4e9].map(|memory| vec![Figures::invented(memory, 1e5)]).into();
        let changes: Vec<Change> = figures.iter().map(|one| Change::of(&figures[0], one)).collect();
        let found = Verdict::of(&grid_of(HugeConfig::default(), |_| true), &changes, &[false, true]);
        assert_eq!(place(found.most_memory.as_ref()), Some(1));
    }

    #[test]
    fn less_than_a_mebibyte_is_not_told() {
        let found = verdict_of_one(&[(1e5, 10.0), (0.5e5, 10.0), (9e5, 10.0)]);
        assert!(found.nothing_changes() && found.most_memory.is_none());
    }

    #[test]
    fn memory_comes_before_faults() {
        let found = verdict_of_one(&[(1e9, 1e5), (0.7e9, 2e5), (1.4e9, 1e3), (1.0e9, 1e4)]);
        assert_eq!(place(found.least_memory.as_ref()), Some(1));
        // The one with fewer still takes more memory.
        assert_eq!(place(found.fewest_faults.as_ref()), Some(3));
        let most = found.most_memory.as_ref().expect("one takes more");
        let (_, rise) = most.rise().expect("more");
        assert_eq!((most.place, (rise.share.median * 100.0).round()), (2, 40.0));
        assert_eq!(place(found.recommended()), Some(1));
    }

    /// Recordings of a program whose memory depends on its input: each doubles.
    #[test]
    fn what_recordings_differ_in_hides_no_difference_that_each_has() {
        let present: Vec<Figures> = [0.5e9, 1e9, 1.5e9].map(|memory| Figures::invented(memory, 1e5)).into();
        let doubled = [1e9, 2e9, 3e9].map(|memory| Figures::invented(memory, 1e3)).into();
        let found = verdict(&[present.clone(), doubled]);
        assert_eq!(place(found.most_memory.as_ref()), Some(1));
        assert!(found.nothing_changes());
        // One that saves in two of three is chance.
        let chance = [0.4e9, 0.8e9, 1.6e9].map(|memory| Figures::invented(memory, 1e5)).into();
        assert!(verdict(&[present, chance]).least_memory.is_none());
    }

    #[test]
    fn more_memory_by_any_measure_is_not_the_same_memory() {
        for measure in Measure::ALL {
            let now = Figures::invented(1e9, 1e6);
            let memory = Measured::of(|one| if one == measure { 1.03e9 } else { 1e9 });
            let fast = Figures { memory, ..Figures::invented(1e9, 1e3) };
            let found = verdict(&[vec![now.clone()], vec![fast.clone()]]);
            assert!(found.fewest_faults.is_none(), "{measure:?}");
            let warned = found.most_memory.and_then(|gain| Some(gain.rise()?.0));
            assert_eq!(warned, Some(measure));
            // Nor is it worth trying for what it saves elsewhere.
            let less = Measured::of(|one| if one == measure { 1.03e9 } else { 0.8e9 });
            let found = verdict(&[vec![now], vec![Figures { memory: less, ..fast }]]);
            assert!(found.least_memory.is_none(), "{measure:?}");
        }
    }

    /// A shell outlives the server that it started: half of what stays with it is no matter, half of a server is.
    #[test]
    fn more_of_next_to_nothing_is_the_same_memory() {
        for (end, named) in [(1.2e5, true), (0.6e6, true), (0.8e6, false), (1e8, false)] {
            let of = |end: f64, faults| Figures {
                memory: Measured::of(|one| if one == Measure::End { end } else { 1e9 }),
                ..Figures::invented(1e9, faults)
            };
            let found = verdict(&[vec![of(end, 1e6)], vec![of(1.5 * end, 1e3)]]);
            assert_eq!(found.fewest_faults.is_some(), named, "{end}");
        }
    }

    #[test]
    fn of_settings_that_save_nearly_as_much_time_the_smallest_is_named() {
        let found = verdict_of_one(&[(1e9, 1e6), (1.019e9, 1e3), (1.002e9, 3e4), (1.001e9, 5e5)]);
        assert_eq!(place(found.fewest_faults.as_ref()), Some(2));
    }

    /// The places are those of `grid`, with `thp=madvise` present: 1 is `thp=never`, 2 `thp=always`.
    #[test]
    fn a_hair_less_memory_decides_nothing() {
        // Half the memory, and a thousandth less for six times the faults.
        let found = verdict_of_one(&[(1e9, 1e5), (0.4995e9, 6e5), (0.5e9, 1e5)]);
        assert_eq!(place(found.least_memory.as_ref()), Some(2));
        // Equal: what programs ask for is not taken from them.
        let found = verdict_of_one(&[(1e9, 1e5), (0.5e9, 1e5), (0.5e9, 1e5)]);
        assert_eq!(place(found.least_memory.as_ref()), Some(2));
    }
}

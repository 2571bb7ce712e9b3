//! Figures of several replays.

use quire_arch::Order;
use quire_trace::replay::LifeFigures;

/// A figure of several replays: they differ by what the recordings differ in (most of all where addresses are
/// random), and by the phase of khugepaged.
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

/// The figures of one setting. Memory is in bytes.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Row {
    /// The most anonymous memory of the process that had most of it.
    pub peak_largest: Range,
    /// The most anonymous memory of all processes together.
    pub peak_anonymous: Range,
    /// Anonymous memory of all processes, averaged over the recorded time.
    pub mean_anonymous: Range,
    /// The most resident memory, with pages of files that were touched.
    pub peak_resident: Range,
    /// Resident memory averaged over the time.
    pub mean_resident: Range,
    /// The most of page tables.
    pub peak_page_tables: Range,
    /// Page faults, of all sizes.
    pub faults: Range,
    /// Of these, faults that mapped 2 MiB.
    pub huge_faults: Range,
    /// Faults that mapped a folio between a page and 2 MiB.
    pub large_faults: Range,
    /// Blocks that khugepaged and `MADV_COLLAPSE` collapsed.
    pub collapses: Range,
    /// Share of the anonymous memory at the peak that is mapped by 2 MiB, 0 to 1.
    pub huge_share: Range,
    /// Share that lies in folios larger than a page.
    pub large_share: Range,
    /// Of the anonymous memory at the peak, what was never touched.
    pub waste: Range,
    /// Large folios for which there was no memory. The machine is large enough to have some for each, so that any
    /// is told.
    pub fallbacks: u64,
}

impl Row {
    /// The figures of replays under one setting; `touched` are those of the same recordings without huge pages, in
    /// the same order, where each resident page was touched.
    #[must_use]
    pub(crate) fn of(lives: &[LifeFigures], touched: &[&LifeFigures]) -> Self {
        let range = |of: &dyn Fn(&LifeFigures) -> f64| Range::of(lives.iter().map(of));
        let faults_of = |life: &LifeFigures, pmd: bool| {
            let folios = life.folios.iter().filter(|folio| (folio.order == Order::PMD) == pmd);
            folios.map(|folio| folio.faults).sum::<u64>() as f64
        };
        let waste = lives.iter().zip(touched).map(|(life, touched)| {
            life.at_peak.anonymous.saturating_sub(anonymous_at(touched, life.at_peak.event)) as f64
        });
        Self {
            peak_largest: range(&|life| life.peak_largest as f64),
            peak_anonymous: range(&|life| life.at_peak.anonymous as f64),
            mean_anonymous: range(&|life| life.mean_anonymous),
            peak_resident: range(&|life| life.peak_resident as f64),
            mean_resident: range(&|life| life.mean_resident),
            peak_page_tables: range(&|life| life.peak_page_tables as f64),
            faults: range(&|life| life.faults as f64),
            huge_faults: range(&|life| faults_of(life, true)),
            large_faults: range(&|life| faults_of(life, false)),
            collapses: range(&|life| life.collapses as f64),
            huge_share: range(&LifeFigures::huge_share),
            large_share: range(&LifeFigures::large_share),
            waste: Range::of(waste),
            fallbacks: lives.iter().map(LifeFigures::fallbacks).sum(),
        }
    }
}

/// What was resident before event number `event`, as far as samples tell.
fn anonymous_at(life: &LifeFigures, event: u64) -> u64 {
    if life.at_peak.event == event {
        return life.at_peak.anonymous;
    }
    let after = life.samples.partition_point(|sample| sample.event < event);
    let near =
        |place: usize| life.samples.get(place).map(|sample| (sample.event.abs_diff(event), sample.anonymous));
    let nearest = [near(after), after.checked_sub(1).and_then(near)].into_iter().flatten().min();
    nearest.map_or(0, |(_, anonymous)| anonymous)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_trace::replay::LifeSample;

    #[test]
    fn medians_and_ranges() {
        assert_eq!(Range::of([3.0, 1.0, 2.0]), Range { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Range::of([4.0, 1.0]), Range { median: 2.5, min: 1.0, max: 4.0 });
        assert_eq!(Range::of([]), Range::default());
        assert_eq!(Range::of([5.0, 9.0]).spread(), 2.0);
    }

    #[test]
    fn waste_is_what_was_not_touched_at_that_moment() {
        let sample = |event, anonymous| LifeSample { event, anonymous, ..LifeSample::default() };
        let life = |at_peak: LifeSample, samples| LifeFigures { at_peak, samples, ..LifeFigures::default() };
        let touched =
            life(sample(90, 800), vec![sample(0, 0), sample(10, 100), sample(20, 300), sample(90, 800)]);
        for (event, waste) in [(10, 900.0), (16, 700.0), (90, 200.0), (1000, 200.0)] {
            let row = Row::of(&[life(sample(event, 1000), Vec::new())], &[&touched]);
            assert_eq!(row.waste.median, waste, "{event}");
        }
    }
}

//! What a setting changes against the present one, paired within each recording.
//!
//! Recordings of one command may differ among themselves by more than settings do: by their input, by where
//! addresses are random. So each recording is compared with itself under another setting, and what is ranged
//! over recordings are the differences.

use crate::estimate::fault_ns;
use crate::outcome::{Outcome, recorded_ns};
use crate::range::Range;
use quire_measure::Costs;
use std::ops::Index;

/// A measure of memory: of anonymous memory, but for the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Measure {
    /// The peak of what a memory cgroup is charged, of all processes at one moment.
    Charged,
    /// Of that, the peak of what is mapped: not what was unmapped of large folios that are not split yet.
    Mapped,
    /// The peak of the process that has most.
    Largest,
    /// What it is charged, averaged over the time.
    Mean,
    /// What it is charged when the first process ends.
    End,
    /// Shared memory, when most is charged.
    Shared,
}

impl Measure {
    /// Each of them.
    pub const ALL: [Self; 6] =
        [Self::Charged, Self::Mapped, Self::Largest, Self::Mean, Self::End, Self::Shared];
    /// How many are of anonymous memory.
    pub(crate) const OF_ANONYMOUS: usize = Self::ALL.len() - 1;

    /// Whose memory it is, and when: follows "takes 3 MiB more".
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Largest => "for the largest process at its peak",
            Self::Charged => "for all processes at their peak",
            Self::Mapped => "for all processes at the peak of what is mapped",
            Self::Mean => "for all processes on average",
            Self::End => "for all processes at the end",
            Self::Shared => "for shared memory",
        }
    }
}

/// Something of each [`Measure`].
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Measured<T>([T; Measure::ALL.len()]);

impl<T> Measured<T> {
    /// What `of` says of each.
    pub(crate) fn of(of: impl FnMut(Measure) -> T) -> Self {
        Self(Measure::ALL.map(of))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (Measure, &T)> {
        Measure::ALL.into_iter().zip(&self.0)
    }
}

impl<T> Index<Measure> for Measured<T> {
    type Output = T;

    fn index(&self, measure: Measure) -> &T {
        &self.0[measure as usize]
    }
}

/// What one recording has under one setting, averaged over the phases of khugepaged.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Figures {
    /// Bytes.
    pub(crate) memory: Measured<f64>,
    pub(crate) faults: f64,
    /// What page faults take, in nanoseconds: the median, the least, the most.
    pub(crate) fault_ns: [f64; 3],
    /// The processor time of the programs in which they take it, in nanoseconds.
    pub(crate) time_ns: f64,
    /// The same with what is taken for the recorder's: their own time is no more than that.
    pub(crate) measured_ns: f64,
}

impl Figures {
    /// Of one replay. The recorded time stands in for a processor time that is not known.
    pub(crate) fn of(outcome: &Outcome, costs: Option<&Costs>) -> Self {
        let life = &outcome.life;
        let memory = |measure| match measure {
            Measure::Largest => life.peak_largest as f64,
            Measure::Mapped => life.at_mapped_peak.mapped as f64,
            Measure::Charged => life.at_peak.anonymous as f64,
            Measure::Mean => life.mean_anonymous,
            Measure::End => life.at_end.anonymous as f64,
            Measure::Shared => life.at_charge_peak.shared as f64,
        };
        let processor_ns = Some(outcome.processor_ns).filter(|&time| time > 0);
        let time_ns = processor_ns.unwrap_or_else(|| recorded_ns(life)) as f64;
        Self {
            memory: Measured::of(memory),
            faults: life.faults as f64,
            fault_ns: fault_ns(life, costs),
            time_ns,
            measured_ns: time_ns + outcome.recorder_ns as f64,
        }
    }

    /// The mean of several.
    pub(crate) fn mean(all: &[Self]) -> Self {
        let count = all.len().max(1) as f64;
        let mean = |of: &dyn Fn(&Self) -> f64| all.iter().map(of).sum::<f64>() / count;
        Self {
            memory: Measured::of(|measure| mean(&|one| one.memory[measure])),
            faults: mean(&|one| one.faults),
            fault_ns: [0, 1, 2].map(|place| mean(&|one| one.fault_ns[place])),
            time_ns: mean(&|one| one.time_ns),
            measured_ns: mean(&|one| one.measured_ns),
        }
    }
}

/// A difference, of each recording against itself under the present setting.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Difference {
    /// As a share of what there is now: negative is less.
    pub share: Range,
    /// In its own unit.
    pub amount: Range,
}

impl Difference {
    fn of(pairs: impl Iterator<Item = (f64, f64)> + Clone) -> Self {
        let share = |(now, there): (f64, f64)| if now > 0.0 { there / now - 1.0 } else { 0.0 };
        Self {
            share: Range::of(pairs.clone().map(share)),
            amount: Range::of(pairs.map(|(now, there)| there - now)),
        }
    }

    /// What there is then, in the middle, where it is more than now.
    pub(crate) fn there(&self) -> f64 {
        self.amount.median + self.amount.median / self.share.median
    }

    /// Whether it is less by more than `share`, in each recording that it is in the middle of.
    pub(crate) fn falls(&self, share: f64) -> bool {
        self.share.median < -share && self.share.max < 0.0
    }
}

/// What one setting changes against the present one.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Change {
    /// Memory, in bytes.
    pub memory: Measured<Difference>,
    /// Page faults.
    pub faults: Difference,
    /// The share of the processor time that other page faults save, or of the recorded time where the
    /// processor time is not known: an estimate.
    pub time: Range,
    /// The least and the most that it may be: by what a fault was measured to take, and by how much of the
    /// measured time may have been the recorder's.
    pub time_range: [f64; 2],
}

impl Change {
    /// From `present` to `other`, which are of the same recordings in the same order.
    pub(crate) fn of(present: &[Figures], other: &[Figures]) -> Self {
        let pairs = || present.iter().zip(other);
        // Faults take no more than the time that they are part of.
        let saved = |place: usize, time_of: fn(&Figures) -> f64| {
            pairs().map(move |(now, there)| {
                let faults = now.fault_ns[place];
                (faults - there.fault_ns[place]) / time_of(now).max(faults).max(f64::MIN_POSITIVE)
            })
        };
        let own = |one: &Figures| one.time_ns;
        let least = Range::of(saved(1, |one| one.measured_ns.max(one.time_ns))).median;
        let most = Range::of(saved(2, own)).median;
        Self {
            memory: Measured::of(|measure| {
                Difference::of(pairs().map(|(now, there)| (now.memory[measure], there.memory[measure])))
            }),
            faults: Difference::of(pairs().map(|(now, there)| (now.faults, there.faults))),
            time: Range::of(saved(0, own)),
            time_range: if least <= most { [least, most] } else { [most, least] },
        }
    }

    /// The measure of memory that rises most, as a share, and by how much.
    #[must_use]
    pub fn worst(&self) -> (Measure, Difference) {
        let all = self.memory.iter().map(|(measure, difference)| (measure, *difference));
        let worst = all.max_by(|one, other| one.1.share.median.total_cmp(&other.1.share.median));
        worst.unwrap_or((Measure::Charged, Difference::default()))
    }
}

#[cfg(test)]
impl Figures {
    /// Of a recording of a second, on a host that was not calibrated.
    pub(crate) fn invented(memory: f64, faults: f64) -> Self {
        Self {
            memory: Measured::of(|_| memory),
            faults,
            fault_ns: [500.0, 250.0, 2000.0].map(|each| faults * each),
            time_ns: 1e9,
            measured_ns: 1e9,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_that_differ_are_compared_each_with_itself() {
        let present =
            [Figures::invented(1e6, 100.0), Figures::invented(4e6, 400.0), Figures::invented(9e6, 900.0)];
        let doubled = present
            .clone()
            .map(|one| Figures { memory: Measured::of(|_| 2.0 * one.memory[Measure::End]), ..one });
        let change = Change::of(&present, &doubled);
        let (_, worst) = change.worst();
        assert_eq!(worst.share, Range { median: 1.0, min: 1.0, max: 1.0 });
        assert_eq!(worst.amount, Range { median: 4e6, min: 1e6, max: 9e6 });
        assert!(Change::of(&doubled, &present).memory[Measure::Charged].falls(0.4));
        assert_eq!(change.faults.share, Range::default());
    }

    /// What a fault takes, and what the recorder took of the time, are estimates.
    #[test]
    fn no_more_is_saved_than_there_is() {
        let now = Figures { measured_ns: 2e9, ..Figures::invented(1e6, 2e6) };
        let change = Change::of(std::slice::from_ref(&now), &[Figures::invented(1e6, 0.0)]);
        assert_eq!(change.time.median, 1.0);
        assert_eq!(change.time_range, [0.25, 1.0], "half a second of two, or all");
        let change = Change::of(&[Figures::invented(1e6, 0.0)], &[now]);
        assert!(change.time.median < 0.0, "what costs more is not bounded");
    }

    #[test]
    fn a_fall_in_most_recordings_and_a_rise_in_one_is_none() {
        let now = [(100.0, 50.0), (100.0, 60.0), (100.0, 101.0)];
        assert!(!Difference::of(now.into_iter()).falls(0.1));
        assert!(Difference::of(now[..2].iter().copied()).falls(0.1));
    }
}

//! Rounds in turn over the subjects: A B A B. Other load on the machine hits all alike, and the ratio of
//! neighbours is stable where absolute times are not.

/// What was measured in each round of one subject.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Series(Vec<f64>);

impl FromIterator<f64> for Series {
    fn from_iter<I: IntoIterator<Item = f64>>(figures: I) -> Self {
        Self(figures.into_iter().collect())
    }
}

impl Series {
    /// Adds a round.
    pub fn add(&mut self, figure: f64) {
        self.0.push(figure);
    }

    /// The last round's, or 0 without a round.
    pub fn last(&self) -> f64 {
        self.0.last().copied().unwrap_or(0.0)
    }

    /// The one that `place` are less than, or 0 without a round.
    fn ranked(&self, place: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(place).copied().unwrap_or(0.0)
    }

    /// The most, or 0 without a round.
    pub fn max(&self) -> f64 {
        self.ranked(self.0.len().saturating_sub(1))
    }

    /// The least, or 0 without a round: what the code costs.
    pub fn min(&self) -> f64 {
        self.ranked(0)
    }

    /// The median, or 0 without a round. Its distance from the minimum is what else ran on the machine.
    pub fn median(&self) -> f64 {
        self.ranked(self.0.len() / 2)
    }

    /// The mean, or 0 without a round. Of times for equal work it gives the harmonic mean of the rates.
    pub fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len().max(1) as f64
    }

    /// The median of this series' rounds, each divided by the same round of `other`.
    pub fn ratio_to(&self, other: &Self) -> f64 {
        let rounds = self.0.iter().zip(&other.0);
        rounds.filter(|&(_, &base)| base > 0.0).map(|(own, base)| own / base).collect::<Self>().median()
    }
}

/// Calls `work` with each of `subjects` in turn, and that `rounds` times, with the number of the round.
///
/// # Errors
///
/// The first of `work`, which ends it.
pub fn in_turn<S, E>(
    subjects: &mut [S],
    rounds: usize,
    mut work: impl FnMut(&mut S, usize) -> Result<(), E>,
) -> Result<(), E> {
    for round in 0..rounds {
        // In the other order every second time, so that no subject always follows the same neighbour.
        let count = subjects.len();
        for place in 0..count {
            work(&mut subjects[if round % 2 == 0 { place } else { count - 1 - place }], round)?;
        }
    }
    Ok(())
}

/// The figures of a round. Unused ones are 0.
pub(crate) type RoundFigures = [f64; 8];

/// Figures of which the first are `known`.
pub(crate) fn round_figures(known: &[f64]) -> RoundFigures {
    core::array::from_fn(|nth| known.get(nth).copied().unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_has_its_rounds_and_what_they_come_to() {
        let own = Series(vec![3.0, 1.0, 8.0]);
        assert_eq!((own.min(), own.median(), own.mean(), own.max(), own.last()), (1.0, 3.0, 4.0, 8.0, 8.0));
        assert_eq!(own.ratio_to(&Series(vec![1.0, 1.0, 4.0])), 2.0);
        let none = Series::default();
        assert_eq!([none.min(), none.median(), none.mean(), none.max(), none.last()], [0.0; 5]);
    }

    #[test]
    fn every_subject_has_every_round_and_changing_neighbours() {
        let mut order = Vec::new();
        in_turn(&mut ['a', 'b', 'c'], 2, |&mut subject, round| {
            order.push((subject, round));
            Ok::<(), ()>(())
        })
        .unwrap();
        assert_eq!(order, [('a', 0), ('b', 0), ('c', 0), ('c', 1), ('b', 1), ('a', 1)]);
        assert_eq!(in_turn(&mut ['a'], 2, |_, _| Err("stop")), Err("stop"));
    }
}

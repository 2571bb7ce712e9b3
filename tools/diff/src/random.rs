//! Random choices.

use fastrand::Rng;

/// A source of choices, the same for the same numbers.
pub(crate) struct Random(Rng);

impl Random {
    /// The source for what has number `number` of `seed`.
    pub(crate) fn new(seed: u64, number: u64) -> Self {
        Self(Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number))
    }

    /// Any number.
    pub(crate) fn any(&mut self) -> u64 {
        self.0.u64(..)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0.u64(..bound)
    }

    /// True `percent` times in a hundred.
    pub(crate) fn chance(&mut self, percent: u8) -> bool {
        self.0.u8(..100) < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.0.usize(..from.len())]
    }

    /// One of several, each as often as it says.
    pub(crate) fn weighted<T: Copy>(&mut self, from: &[(T, usize)]) -> T {
        let total: usize = from.iter().map(|(_, weight)| weight).sum();
        let mut at = self.0.usize(..total);
        let found = from.iter().find(|(_, weight)| {
            let next = at.checked_sub(*weight);
            at = next.unwrap_or(at);
            next.is_none()
        });
        found.unwrap_or(&from[0]).0
    }
}

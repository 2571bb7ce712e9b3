//! How much an experiment does.

/// How much an experiment does, and what of the host it may set. Its shape is the same at every scale.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scale {
    column: usize,
    /// Whether the host's controls of large folios may be set for Linux.
    pub(crate) host_controls: bool,
    /// Whether the host's Linux may swap.
    pub(crate) host_swap: bool,
}

impl Scale {
    /// What figures are taken with: some minutes.
    pub const FULL: Self = Self { column: 0, host_controls: true, host_swap: true };
    /// A first look, in seconds.
    pub const QUICK: Self = Self { column: 1, ..Self::FULL };
    /// The least that still does everything once: for tests, where debug builds check each step. The host's
    /// settings stay as they are.
    pub const TINY: Self = Self { column: 2, host_controls: false, host_swap: false };

    /// The same, with the host's Linux left alone by the experiment on swap.
    #[must_use]
    pub const fn without_host_swap(self) -> Self {
        Self { host_swap: false, ..self }
    }

    /// An amount, of which there is one for each scale.
    pub(crate) const fn of<T: Copy>(self, amounts: [T; 3]) -> T {
        amounts[self.column]
    }
}

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

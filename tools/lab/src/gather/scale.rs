//! How much the experiment does.

/// How much the experiment does. The shape is the same at every scale.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scale {
    /// Bytes of populated memory that one `munmap` removes.
    pub(super) munmap_bytes: u64,
    /// Bytes of populated memory in the other cases.
    pub(super) other_bytes: u64,
    /// Rounds of each case.
    pub(super) rounds: usize,
    /// Times that the recording of a build is replayed in a round.
    pub(super) builds: usize,
    /// Rounds of these.
    pub(super) build_rounds: usize,
    /// Whether the host's controls of large folios may be set for Linux.
    pub(super) host_controls: bool,
}

impl Scale {
    /// What figures are taken with: a few minutes.
    pub const FULL: Self = Self {
        munmap_bytes: 1 << 30,
        other_bytes: 256 << 20,
        rounds: 11,
        builds: 20,
        build_rounds: 30,
        host_controls: true,
    };

    /// A first look, in seconds.
    pub const QUICK: Self = Self {
        munmap_bytes: 128 << 20,
        other_bytes: 64 << 20,
        rounds: 5,
        builds: 8,
        build_rounds: 5,
        ..Self::FULL
    };

    /// The least that still does everything once: for tests, where debug builds check each step.
    /// The host's controls stay as they are.
    pub const TINY: Self = Self {
        munmap_bytes: 8 << 20,
        other_bytes: 8 << 20,
        rounds: 1,
        builds: 1,
        build_rounds: 1,
        host_controls: false,
    };
}

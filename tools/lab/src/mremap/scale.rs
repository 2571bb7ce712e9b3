//! How much the experiment does.

/// How much the experiment does. The shape is the same at every scale.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scale {
    /// In moves of more than 64 MiB one page of so many is present.
    pub(super) stride: u64,
    /// The most bytes that move at a time.
    pub(super) largest: u64,
    /// Bytes that move in large folios.
    pub(super) folio_bytes: u64,
    /// Rounds of moves.
    pub(super) rounds: usize,
    /// What arrays grow to by doubling.
    pub(super) array: u64,
    /// Rounds of arrays and of the collector.
    pub(super) other_rounds: usize,
    /// Bytes of each region that the collector moves.
    pub(super) region: u64,
    /// Bytes that each other thread faults in meanwhile.
    pub(super) fault_bytes: u64,
    /// Whether the host's controls of large folios may be set for Linux.
    pub(super) host_controls: bool,
}

impl Scale {
    /// What figures are taken with: some minutes.
    pub const FULL: Self = Self {
        stride: 1,
        largest: 16 << 30,
        folio_bytes: 1 << 30,
        rounds: 21,
        array: 1 << 30,
        other_rounds: 11,
        region: 64 << 20,
        fault_bytes: 128 << 20,
        host_controls: true,
    };

    /// A first look, in seconds.
    pub const QUICK: Self = Self {
        stride: 16,
        folio_bytes: 64 << 20,
        rounds: 7,
        array: 64 << 20,
        other_rounds: 3,
        region: 16 << 20,
        fault_bytes: 16 << 20,
        ..Self::FULL
    };

    /// The least that still does everything once: for tests, where debug builds check each step.
    /// The host's controls stay as they are.
    pub const TINY: Self = Self {
        stride: 512,
        largest: 1 << 30,
        folio_bytes: 4 << 20,
        rounds: 1,
        array: 4 << 20,
        other_rounds: 1,
        region: 2 << 20,
        fault_bytes: 4 << 20,
        host_controls: false,
    };
}

//! How much the experiment does.

/// How much the experiment does. The shape is the same at every scale.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scale {
    /// Bytes of addresses that the loops go over.
    pub(super) span: u64,
    /// Rounds in which they do.
    pub(super) sweep_rounds: usize,
    /// Of so many pages one is touched, in the loops that are not as posted.
    pub(super) stride: u64,
    /// Bytes that the heap has resident at most.
    pub(super) heap_resident: u64,
    /// Extents that the heap gives out in each of its rounds.
    pub(super) heap_extents: u64,
    /// Calls in a round at borders.
    pub(super) calls: u64,
    /// Bytes that each thread faults in, in a round.
    pub(super) fault_bytes: u64,
    /// Rounds of these two.
    pub(super) rounds: usize,
}

impl Scale {
    /// What figures are taken with: some minutes.
    pub const FULL: Self = Self {
        span: 50 << 30,
        sweep_rounds: 50,
        stride: 8,
        heap_resident: 512 << 20,
        heap_extents: 20_000,
        calls: 10_000,
        fault_bytes: 64 << 20,
        rounds: 30,
    };

    /// A first look, in seconds.
    pub const QUICK: Self = Self {
        span: 4 << 30,
        sweep_rounds: 8,
        stride: 32,
        heap_resident: 64 << 20,
        heap_extents: 1000,
        calls: 1000,
        fault_bytes: 16 << 20,
        rounds: 5,
    };

    /// The least that still does everything once: for tests, where debug builds check each step.
    pub const TINY: Self = Self {
        span: 64 << 20,
        sweep_rounds: 2,
        stride: 64,
        heap_resident: 4 << 20,
        heap_extents: 100,
        calls: 20,
        fault_bytes: 1 << 20,
        rounds: 1,
    };
}

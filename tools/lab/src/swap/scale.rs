//! How much the experiment does.

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// How much the experiment does. The shape is the same at every scale.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scale {
    /// Bytes of zeros that are swapped out and in.
    pub(super) zeros: u64,
    /// Bytes of other contents.
    pub(super) contents: u64,
    /// Bytes that are in memory at a time meanwhile: a round.
    pub(super) window: u64,
    /// Bytes that the stores hold.
    pub(super) store: u64,
    /// Accesses in a round of a store, and rounds.
    pub(super) accesses: u64,
    pub(super) rounds: usize,
    /// The same of one on a file, whose accesses take longer.
    pub(super) file_accesses: u64,
    /// Pages that threads race for. A host that takes its CPUs away does so for some races in a row, about
    /// once a second: of so many races that is less than one in 1000.
    pub(super) races: u64,
    /// Bytes on a device that is removed by swapoff.
    pub(super) device: u64,
    /// Whether the host's Linux may swap.
    pub(super) host_swap: bool,
}

impl Scale {
    /// What figures are taken with: some minutes.
    pub const FULL: Self = Self {
        zeros: 30 * GIB,
        contents: 512 * MIB,
        window: 256 * MIB,
        store: 256 * MIB,
        accesses: 200_000,
        rounds: 15,
        file_accesses: 5000,
        races: 40_000,
        device: 512 * MIB,
        host_swap: true,
    };

    /// A first look, in seconds.
    pub const QUICK: Self = Self {
        zeros: 192 * MIB,
        contents: 8 * MIB,
        window: 48 * MIB,
        store: 32 * MIB,
        accesses: 10_000,
        rounds: 5,
        file_accesses: 300,
        races: 8000,
        device: 32 * MIB,
        host_swap: true,
    };

    /// The least that still does everything once: for tests, where debug builds check each step.
    pub const TINY: Self = Self {
        zeros: 8 * MIB,
        contents: 4 * MIB,
        window: 4 * MIB,
        store: 8 * MIB,
        accesses: 1000,
        rounds: 1,
        file_accesses: 50,
        races: 40,
        device: 4 * MIB,
        host_swap: false,
    };

    /// The same, with the host's Linux left alone.
    #[must_use]
    pub const fn without_host_swap(self) -> Self {
        Self { host_swap: false, ..self }
    }
}

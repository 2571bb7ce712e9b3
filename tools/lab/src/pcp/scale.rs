//! How much an experiment does.

/// How much the experiment does. The shape is the same at every scale.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scale {
    /// RAM where blocks are only allocated and freed, in bytes.
    pub(super) block_ram: u64,
    /// Rounds of each case there.
    pub(super) block_rounds: usize,
    /// RAM where objects are written, in bytes.
    pub(super) object_ram: u64,
    /// Messages in a round of the packets.
    pub(super) packets: usize,
    /// Rounds of the packets at each size.
    pub(super) packet_rounds: usize,
    /// Memcgs of senders and receivers.
    pub(super) groups: usize,
    /// Messages from each sender to each receiver of its group.
    pub(super) pipe_messages: usize,
    /// Rounds of the pipes.
    pub(super) pipe_rounds: usize,
    /// Rounds of the burst.
    pub(super) burst_rounds: usize,
    /// RAM of the long run, in bytes.
    pub(super) traffic_ram: u64,
    /// Simulated seconds of the long run.
    pub(super) traffic_seconds: u64,
    /// Decides whatever is random.
    pub(super) seed: u64,
}

impl Scale {
    /// What figures are taken with: a few minutes.
    pub const FULL: Self = Self {
        block_ram: 8 << 30,
        block_rounds: 60,
        object_ram: 512 << 20,
        packets: 40_000,
        packet_rounds: 24,
        groups: 8,
        pipe_messages: 20,
        pipe_rounds: 20,
        burst_rounds: 8,
        traffic_ram: 1 << 30,
        traffic_seconds: 3600,
        seed: 0x5eed,
    };

    /// A first look, in seconds.
    pub const QUICK: Self = Self {
        block_ram: 1 << 30,
        block_rounds: 7,
        object_ram: 128 << 20,
        packets: 4000,
        packet_rounds: 3,
        groups: 2,
        pipe_messages: 5,
        pipe_rounds: 3,
        burst_rounds: 3,
        traffic_ram: 128 << 20,
        traffic_seconds: 300,
        ..Self::FULL
    };

    /// The least that still does everything once: for tests, where debug builds check each step.
    pub const TINY: Self = Self {
        block_ram: 64 << 20,
        block_rounds: 2,
        object_ram: 48 << 20,
        packets: 300,
        packet_rounds: 1,
        groups: 1,
        pipe_messages: 1,
        pipe_rounds: 1,
        burst_rounds: 1,
        traffic_ram: 64 << 20,
        traffic_seconds: 30,
        ..Self::FULL
    };
}

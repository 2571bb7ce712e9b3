//! How much a CPU may keep.

use quire_arch::Order;

/// The bounds of one CPU's budget for one zone, in base pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PcpLimits {
    /// The budget never falls below this; without tuning it is this.
    pub(crate) high_min: u64,
    /// The budget never grows past this.
    pub(crate) high_max: u64,
    /// What moves at once at least, if it is that much.
    pub(crate) batch: u64,
}

/// Most bytes that one batch moves before it is tuned.
const BATCH_BYTES: u64 = 1 << 20;
/// Batches that fit into the lists at least.
const HIGH_IN_BATCHES: u64 = 4;
/// The lists of all CPUs together never hold more than this part of a zone (as Linux's
/// `percpu_pagelist_high_fraction` at its least).
const HIGHEST_PART: u64 = 8;

impl PcpLimits {
    /// The limits for a zone of `managed` frames with low watermark `low`, on a machine of `cpus` CPUs.
    ///
    /// Linux's rule: a batch is about a quarter of a thousandth of the zone, a quarter of 1 MiB at most, and one
    /// less than a power of two; the lists of all CPUs together hold what lies below the low watermark, and may grow to
    /// an eighth of the zone.
    pub(crate) fn new(managed: u64, low: u64, cpus: u64) -> Self {
        let cpus = cpus.max(1);
        let share = (managed / 1024).min(BATCH_BYTES / Order::ZERO.bytes()) / 4;
        let share = share.max(1);
        let power = 1 << (share + share / 2).ilog2();
        let batch = (power - 1u64).max(1);
        let high_min = (low / cpus).max(batch * HIGH_IN_BATCHES);
        Self { high_min, high_max: (managed / HIGHEST_PART / cpus).max(high_min), batch }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_follow_the_size_of_the_zone() {
        // 4 GiB and 4 CPUs: the batch of a large zone; tiny zones still move something.
        let large = PcpLimits { high_min: 750, high_max: 32_768, batch: 63 };
        assert_eq!(PcpLimits::new(1 << 20, 3000, 4), large);
        assert_eq!(PcpLimits::new(4096, 40, 2), PcpLimits { high_min: 20, high_max: 256, batch: 1 });
        assert_eq!(PcpLimits::new(0, 0, 1), PcpLimits { high_min: 4, high_max: 4, batch: 1 });
    }
}

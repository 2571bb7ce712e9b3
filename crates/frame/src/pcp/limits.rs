//! Limits of the per-CPU lists.

use super::technique::PcpTechnique;
use crate::map::Migratetype;
use quire_arch::Order;

/// Blocks that move between lists and zone under one hold of the zone's lock.
pub(crate) const CHUNK_BLOCKS: usize = 64;

/// The bounds of one CPU's budget for one zone, in base pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PcpLimits {
    /// The budget never falls below this; without tuning it is this.
    pub(crate) high_min: u64,
    /// The budget never grows past this.
    pub(crate) high_max: u64,
    /// The least number moved at once, if that many are there.
    pub(crate) batch: u64,
}

/// Most bytes that one batch moves before it is tuned.
const BATCH_BYTES: u64 = 1 << 20;
/// Batches that fit into the lists at least.
const HIGH_IN_BATCHES: u64 = 4;
/// The budgets of all CPUs together are never more than this part of a zone (as Linux's
/// `percpu_pagelist_high_fraction` at its least).
const HIGHEST_PART: u64 = 8;
/// Nor more than this part of what is free in it. What lies on lists cannot be joined with its neighbours: in
/// the long run of `quire lab pcp` at 80 % use this halves what is held, for a few more takes of the zone's
/// lock.
const FREE_PART: u64 = 6;
/// Batches that fit into the posted lists: one of order 0 for each migratetype and 8 for the others, so that
/// one refill does not lead to a drain on the next free (M. Gorman, 2016).
const POSTED_BATCHES: u64 = Migratetype::PCP_COUNT as u64 + 8;

impl PcpLimits {
    /// The limits of `technique` for a zone of `managed` frames with low watermark `low`, on a machine of
    /// `cpus` CPUs.
    ///
    /// Linux's rule: a batch is about a quarter of a thousandth of the zone, a quarter of 1 MiB at most, and
    /// one less than a power of two; the lists of all CPUs together hold what lies below the low watermark,
    /// and may grow to an eighth of the zone.
    pub(crate) fn new(technique: PcpTechnique, managed: u64, low: u64, cpus: u64) -> Self {
        let cpus = cpus.max(1);
        let share = (managed / 1024).min(BATCH_BYTES / Order::ZERO.bytes()) / 4;
        let share = share.max(1);
        let power = 1 << (share + share / 2).ilog2();
        let batch = (power - 1u64).max(1);
        let high_min = match technique {
            PcpTechnique::Posted => batch * POSTED_BATCHES,
            _ => (low / cpus).max(batch * HIGH_IN_BATCHES),
        };
        Self { high_min, high_max: (managed / HIGHEST_PART / cpus).max(high_min), batch }
    }

    /// What each of `cpus` CPUs may keep at most of a zone that has `free` frames free.
    pub(crate) fn bound(free: u64, cpus: u64) -> u64 {
        free / FREE_PART / cpus.max(1)
    }

    /// These limits where the zone allows no more than `bound`.
    pub(crate) fn bounded(self, bound: u64) -> Self {
        Self { high_max: self.high_max.min(bound).max(self.high_min), ..self }
    }

    /// Whether there is nothing between the bounds.
    pub(crate) fn is_fixed(self) -> bool {
        self.high_max == self.high_min
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_follow_the_size_of_the_zone() {
        let limits = |managed, low, cpus| PcpLimits::new(PcpTechnique::All, managed, low, cpus);
        // 4 GiB and 4 CPUs: the batch of a large zone; tiny zones still move something.
        let large = PcpLimits { high_min: 750, high_max: 32_768, batch: 63 };
        assert_eq!(limits(1 << 20, 3000, 4), large);
        assert_eq!(limits(4096, 40, 2), PcpLimits { high_min: 20, high_max: 256, batch: 1 });
        assert_eq!(limits(0, 0, 1), PcpLimits { high_min: 4, high_max: 4, batch: 1 });
    }

    #[test]
    fn free_memory_bounds_what_may_be_kept() {
        let limits = PcpLimits::new(PcpTechnique::All, 1 << 20, 3000, 4);
        assert_eq!(limits.bounded(PcpLimits::bound(1 << 20, 4)), limits);
        assert_eq!(limits.bounded(PcpLimits::bound(24_000, 4)), PcpLimits { high_max: 1000, ..limits });
        assert!(limits.bounded(0).is_fixed() && !limits.is_fixed());
    }

    #[test]
    fn the_posted_lists_hold_eleven_batches() {
        assert_eq!(PcpLimits::new(PcpTechnique::Posted, 1 << 20, 3000, 4).high_min, 11 * 63);
    }
}

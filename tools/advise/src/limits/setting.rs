//! Limits that are tried, and the swap behind them.

use crate::point::Amount;
use crate::swap::LimitSwap;
use quire_arch::PAGE_SIZE;
use serde::{Deserialize, Serialize};

/// What a program needs under the present setting, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Need {
    /// The peak of anonymous memory and of shared memory, all processes together.
    pub anonymous: u64,
    /// What stays in memory beside it whatever the limit: page tables, what else the kernel keeps, and locked
    /// files, when most is charged.
    pub stays: u64,
}

impl Need {
    /// All of it.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.anonymous + self.stays
    }
}

/// A limit of a memory cgroup, and the swap behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitSetting {
    /// How much of the anonymous memory fits, at its peak under the present setting.
    pub percent: u32,
    /// What may be charged to the group, in bytes: that, and what stays beside it.
    pub bytes: u64,
    /// What the program needs.
    pub need: Need,
    /// The swap for pages that do not fit.
    pub swap: LimitSwap,
}

/// The limits that are tried with each kind of swap, in percent of the peak.
pub(super) const PERCENTS: [u32; 3] = [90, 75, 50];

/// The smallest limit of the validation, in percent of the peak. Below it Linux kills some programs though
/// there is room in the swap.
const VALIDATED_PERCENT: u32 = 50;

impl LimitSetting {
    /// The bytes of each limit that is tried for every program that needs so much.
    pub fn tried(need: Need) -> impl Iterator<Item = u64> {
        PERCENTS.into_iter().map(move |percent| Self::new(need, percent, LimitSwap::Disk).bytes)
    }

    /// The most anonymous memory that can be resident within it, in bytes.
    pub(super) fn resident_anonymous(&self) -> u64 {
        self.bytes - self.need.stays.min(self.bytes)
    }

    /// Whether predictions of such limits were validated against Linux: with its swap, and down to half of
    /// the peak.
    #[must_use]
    pub fn is_validated(&self) -> bool {
        self.swap.is_validated() && self.percent >= VALIDATED_PERCENT
    }

    /// For `percent` of the anonymous memory, in whole pages.
    pub(super) fn new(need: Need, percent: u32, swap: LimitSwap) -> Self {
        let bytes = (need.anonymous * u64::from(percent) / 100).next_multiple_of(PAGE_SIZE);
        Self { percent, bytes: bytes + need.stays.next_multiple_of(PAGE_SIZE), need, swap }
    }

    /// Its name, as words that can be passed on: `limit=75%,swap=zram-lz4`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("limit={}%,swap={}", self.percent, self.swap.name())
    }
}

/// Which limits are tried.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tries {
    /// In percent of the peak of anonymous memory, the largest first.
    pub percents: Vec<u32>,
    /// In bytes, or as RAM of a machine.
    pub amounts: Vec<Amount>,
    /// The kinds of swap behind them.
    pub swaps: Vec<LimitSwap>,
}

impl Default for Tries {
    fn default() -> Self {
        Self { percents: PERCENTS.into(), amounts: Vec::new(), swaps: LimitSwap::ALL.into() }
    }
}

/// The limits that are tried for a program that needs so much: each with each of these kinds of swap.
pub(super) fn grid(need: Need, percents: &[u32], swaps: &[LimitSwap]) -> Vec<LimitSetting> {
    let with = |percent: &u32| {
        let percent = *percent;
        swaps.iter().map(move |&swap| LimitSetting::new(need, percent, swap))
    };
    percents.iter().flat_map(with).collect()
}

/// So many percents from the whole peak down to `lowest`, evenly spread, each once.
pub(super) fn spread(lowest: u32, points: u32) -> Vec<u32> {
    let distance = 100 - lowest.min(100);
    let steps = points.saturating_sub(1).max(1);
    let mut percents: Vec<u32> =
        (0..points).map(|point| 100 - (distance * point + steps / 2) / steps).collect();
    percents.dedup();
    percents
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(anonymous: u64, stays: u64) -> Need {
        Need { anonymous, stays }
    }

    #[test]
    fn each_limit_has_each_swap() {
        let names: Vec<String> =
            grid(need(100 << 20, 0), &PERCENTS, &LimitSwap::ALL).iter().map(LimitSetting::name).collect();
        assert_eq!(names.len(), 12);
        for name in [
            "limit=90%,swap=disk",
            "limit=50%,swap=zram-zstd",
            "limit=75%,swap=zram-lz4",
            "limit=50%,swap=zswap-lz4",
        ] {
            assert!(names.iter().any(|found| found == name), "{name}");
        }
        let bytes: Vec<u64> = grid(need(1000 << 12, 0), &PERCENTS, &LimitSwap::ALL)
            .iter()
            .map(|limit| limit.bytes >> 12)
            .collect();
        assert_eq!(bytes, [900, 750, 500].map(|pages| [pages; 4]).concat());
        assert_eq!(LimitSetting::new(need(4097, 0), 90, LimitSwap::Disk).bytes, 4096, "whole pages");
    }

    /// Half of the anonymous memory may be out, and nothing else.
    #[test]
    fn what_stays_is_part_of_each_limit() {
        let limit = LimitSetting::new(need(100 << 12, 300 << 12), 50, LimitSwap::Zram);
        assert_eq!((limit.bytes, limit.resident_anonymous()), (350 << 12, 50 << 12));
    }

    #[test]
    fn a_curve_goes_from_the_peak_to_the_lowest() {
        assert_eq!(spread(10, 10), [100, 90, 80, 70, 60, 50, 40, 30, 20, 10]);
        assert_eq!(spread(25, 10), [100, 92, 83, 75, 67, 58, 50, 42, 33, 25]);
        assert_eq!(spread(97, 10), [100, 99, 98, 97]);
    }
}

//! How much memory is enough, and the cost of less.

use super::Limits;
use super::figures::LimitRow;
use super::setting::LimitSetting;
use crate::range::Range;
use crate::swap::LimitSwap;

/// The share of the run time that a program may be stalled for lack of memory.
const ENOUGH: f64 = 0.02;
/// Smaller limits whose cost is reported.
const MOST_SMALLER: usize = 3;
/// What Linux charges to a group in addition to what a replay counts: stacks, slab objects of its files and
/// sockets.
const KERNEL: u64 = 1 << 20;
/// Headroom for files is at most this share of the limit, as a divisor.
const FILES_SHARE: u64 = 4;
/// How far `MemoryMax` is above `MemoryHigh`, as a divisor of it, so that reclaim comes before a kill.
const HIGH_TO_MAX: u64 = 8;
const MIB: u64 = 1 << 20;

/// A limit, and the share of the run time that the program is then stalled: an estimate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Priced {
    /// The limit.
    pub setting: LimitSetting,
    /// Major faults.
    pub major_faults: f64,
    /// The share of the run time, without what is paid once.
    pub share: Range,
    /// What is paid once, in seconds.
    pub once_seconds: f64,
    /// Linux may kill the program there, though it has room in the swap.
    pub may_be_killed: bool,
}

/// How much memory is enough.
#[derive(Clone, PartialEq, Debug)]
pub struct Enough {
    /// The smallest limit under which the program is stalled for less than 2 % of its time, and under which
    /// Linux does not kill it by chance.
    pub least: Priced,
    /// The next smaller ones.
    pub smaller: Vec<Priced>,
    /// What to set as `MemoryHigh`: the limit, headroom for files and the kernel's own memory, and
    /// [`Self::pool`]. Bytes.
    pub high: u64,
    /// What to set as `MemoryMax`.
    pub max: u64,
    /// Of both, the pool of zswap, which a group of version 2 is charged for; that of zram is not.
    pub pool: u64,
    /// How large the swap should be.
    pub swap_bytes: u64,
    /// How much less of the host's RAM is in use at the peak: what the limit takes away, less what swap in
    /// RAM takes for it.
    pub saved: u64,
}

impl Enough {
    /// Of limits of a program that ran for `seconds`, a range, and touched `files` bytes of files. None if no
    /// limit's cost is known, or even the largest costs too much.
    pub(super) fn of(limits: &Limits, swap: LimitSwap, seconds: Range, files: u64) -> Option<Self> {
        let mut known: Vec<(&LimitSetting, &LimitRow)> =
            limits.all().filter(|(it, _)| it.swap == swap).collect();
        // Of a limit that was tried twice the one of all recordings, which comes first.
        known.sort_by_key(|(setting, _)| std::cmp::Reverse(setting.percent));
        known.dedup_by_key(|(setting, _)| setting.percent);
        let priced: Vec<Priced> = known
            .iter()
            .map_while(|(setting, row)| {
                let figures = row.figures?;
                Some(Priced {
                    setting: **setting,
                    major_faults: figures.major_faults.median,
                    share: row.stalled_share(seconds)?,
                    once_seconds: figures.once_ns.median / 1e9,
                    may_be_killed: figures.may_be_killed,
                })
            })
            .collect();
        let is_cheap = |priced: &&Priced| priced.share.median < ENOUGH && !priced.may_be_killed;
        let cheap = priced.iter().take_while(is_cheap).count();
        let least = *priced.get(cheap.checked_sub(1)?)?;
        let bytes = least.setting.bytes;
        let figures = known.iter().find(|(setting, _)| **setting == least.setting);
        let figures = figures.and_then(|(_, row)| row.figures).unwrap_or_default();
        let compressed = figures.compressed.map_or(0, |compressed| compressed.max as u64);
        let pool = if swap == LimitSwap::Zswap { compressed.next_multiple_of(MIB) } else { 0 };
        let high = (bytes + KERNEL + files.min(bytes / FILES_SHARE)).next_multiple_of(MIB) + pool;
        let max = (high + high / HIGH_TO_MAX).next_multiple_of(MIB);
        Some(Self {
            least,
            smaller: priced[cheap..].iter().copied().take(MOST_SMALLER).collect(),
            high,
            max,
            pool,
            swap_bytes: (2 * figures.swapped.max as u64).next_multiple_of(64 * MIB).max(64 * MIB),
            saved: least.setting.need.all().saturating_sub(bytes + compressed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{LimitFigures, Need};

    /// Rows of these percents, in which it is stalled for so many milliseconds.
    fn limits(stalls: &[(u32, Option<f64>)]) -> Limits {
        let row = |&(percent, stall): &(u32, Option<f64>)| {
            let stalled = |ms: f64| {
                let stall_ns = Range { median: ms * 1e6, min: 0.0, max: ms * 2e6 };
                LimitFigures { stall_ns, swapped: Range::of([3e6]), ..LimitFigures::default() }
            };
            let row = LimitRow {
                does_not_fit: stall.is_none().then(|| "no memory".to_owned()),
                figures: stall.map(stalled),
            };
            let need = Need { anonymous: 100 * MIB, stays: 0 };
            (LimitSetting::new(need, percent, LimitSwap::Zram), row)
        };
        Limits { rows: stalls.iter().map(row).collect(), ..Limits::default() }
    }

    fn enough(limits: &Limits, files: u64) -> Option<Enough> {
        Enough::of(limits, LimitSwap::Zram, Range { median: 1.0, min: 1.0, max: 1.0 }, files)
    }

    #[test]
    fn the_smallest_limit_that_costs_little_is_enough() {
        let limits = limits(&[(90, Some(1.0)), (75, Some(19.0)), (50, Some(300.0)), (25, None)]);
        let found = enough(&limits, 3 * MIB).unwrap();
        assert_eq!((found.least.setting.percent, found.least.share.median), (75, 0.019));
        assert_eq!(found.smaller.iter().map(|priced| priced.setting.percent).collect::<Vec<_>>(), [50]);
        assert_eq!((found.high, found.max), (79 * MIB, 89 * MIB), "75 MiB, files of 3 and 1 of the kernel");
        assert_eq!(found.swap_bytes, 64 * MIB);
        assert_eq!(enough(&limits, 1 << 40).unwrap().high, 95 * MIB, "files get a quarter at most");
    }

    /// A group of version 2 that may have 20 MiB cannot have a pool of 23 MiB.
    #[test]
    fn the_pool_of_zswap_is_part_of_the_limit() {
        let of = |swap| {
            let mut limits = limits(&[(15, Some(1.0))]);
            let (setting, row) = &mut limits.rows[0];
            setting.swap = swap;
            row.figures.as_mut().unwrap().compressed = Some(Range::of([20e6, 23.5 * MIB as f64]));
            Enough::of(&limits, swap, Range::of([1.0]), 0).unwrap()
        };
        let (zswap, zram) = (of(LimitSwap::Zswap), of(LimitSwap::Zram));
        assert_eq!((zswap.pool, zswap.high, zswap.max), (24 * MIB, 40 * MIB, 45 * MIB));
        assert_eq!((zram.pool, zram.high, zram.max), (0, 16 * MIB, 18 * MIB));
        // Of 85 MiB that are out, 23.5 stay in the host's RAM, whichever group is charged for them.
        assert_eq!((zswap.saved, zram.saved), (61 * MIB + MIB / 2, 61 * MIB + MIB / 2));
    }

    #[test]
    fn a_limit_at_which_linux_may_kill_is_not_enough() {
        let mut limits = limits(&[(90, Some(1.0)), (75, Some(1.0)), (50, Some(1.0))]);
        assert_eq!(enough(&limits, 0).unwrap().least.setting.percent, 50);
        limits.rows[1].1.figures.as_mut().unwrap().may_be_killed = true;
        let found = enough(&limits, 0).unwrap();
        assert_eq!(found.least.setting.percent, 90);
        assert!(found.smaller[0].may_be_killed);
    }

    #[test]
    fn what_is_dear_stays_dear_below() {
        // A replay may have fewer faults within less memory, by chance.
        let found = enough(&limits(&[(90, Some(5.0)), (75, Some(90.0)), (50, Some(10.0))]), 0).unwrap();
        assert_eq!(found.least.setting.percent, 90);
        assert_eq!(enough(&limits(&[(90, Some(50.0))]), 0), None, "too dear");
        assert_eq!(enough(&limits(&[(90, None), (75, Some(1.0))]), 0), None, "does not fit");
        assert_eq!(enough(&Limits::default(), 0), None);
    }
}

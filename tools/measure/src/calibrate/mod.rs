//! The cost of page faults, zeroing and collapses on this host.
//!
//! Each figure is the processor time of a loop over many pages, divided, several times. Faults are timed in
//! mappings that were touched before and emptied, so that the one-time setup of a mapping is not included, and
//! get frames that lie in no cache of a processor, as those of a program that grows. A size of folios is timed
//! in mappings of that size, which no larger folio fits into: so a size is turned on for a moment, and none is
//! turned off.

mod cache;
mod fork;
mod kernel;
mod region;

use std::collections::BTreeMap;
use std::io;

use serde::{Deserialize, Serialize};

use crate::counters::{HostCounters, folio_sizes};
use crate::error::MeasureError;
use crate::run::processor_time;
use crate::run::quiet::Loud;
use crate::settings::{HostSettings, HugeSettings};
pub use fork::ForkCost;
pub use kernel::KernelMemory;
use region::{Region, Turns};

/// Times that each is measured; odd, so that one is in the middle.
const ROUNDS: usize = 31;
/// Memory that is touched in a round: a few milliseconds, so that other load on this host disturbs only
/// some rounds.
const TOUCHED: usize = 4 << 20;
/// So many times that takes turns: the frames that a round gets were written to so many rounds ago.
const TURNS: usize = 16;
/// Memory that is zeroed in a round: more than most caches of one processor hold.
const ZEROED: usize = 32 << 20;
const SMALL: usize = 4 << 10;
const HUGE: usize = 2 << 20;

/// A time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Of the rounds, the one in the middle.
    pub median: f64,
    /// The shortest.
    pub min: f64,
    /// The longest: shows other load on this host.
    pub max: f64,
}

/// The first touch of anonymous memory, which gets a folio of some size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FaultCost {
    /// The whole fault.
    pub total: Cost,
    /// Of the median: zeroing, in nanoseconds.
    pub zeroing: f64,
    /// Of the median: the rest.
    pub fixed: f64,
}

/// The cost of memory management on this host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// The kernel's release.
    pub kernel: String,
    /// The processor's model.
    pub cpu: String,
    /// Faults by the size of the folio in bytes: 4096, 2 MiB, and each size of the kernel's that could be
    /// turned on.
    pub faults: BTreeMap<u64, FaultCost>,
    /// A fault that finds its page in memory, and only maps it.
    pub map_present: Cost,
    /// Zeroing 4 KiB of resident memory, in a program.
    pub zero_small: Cost,
    /// Zeroing 2 MiB of resident memory, in a program.
    pub zero_huge: Cost,
    /// Collapsing 512 small pages into a huge page (`MADV_COLLAPSE`), if this kernel supports it.
    pub collapse: Option<Cost>,
    /// What a fork costs, if it was measured.
    #[serde(default)]
    pub fork: Option<ForkCost>,
    /// What the kernel keeps for programs, if memory cgroups may be made, which root may.
    #[serde(default)]
    pub kernel_memory: Option<KernelMemory>,
}

/// Measures the costs on this host, in about two seconds. As root it turns each size of folios on for a
/// moment, and off again; without, it measures those that are on.
///
/// # Errors
///
/// Another measurement holds the host's settings or runs in this process, or there is not enough memory.
pub fn calibrate() -> Result<Costs, MeasureError> {
    let _loud = Loud::start()?;
    let zero_small = zeroing(SMALL)?;
    let zero_huge = zeroing(HUGE)?;
    let mut totals = BTreeMap::new();
    let small = || Region::new(TOUCHED, HUGE, false)?.advised(libc::MADV_NOHUGEPAGE);
    totals.insert(SMALL as u64, touches(mapped(Turns::new(TURNS, SMALL, small))?, SMALL)?);
    let host = HostSettings::default();
    for size in folio_sizes() {
        if let Some(total) = folio(&host, size)? {
            totals.insert(size, total);
        }
    }
    let byte = zeroing_in_faults(&totals, zero_small);
    let faults = totals.into_iter().map(|(size, total)| (size, split(size, total, byte))).collect();
    Ok(Costs {
        kernel: cache::kernel(),
        cpu: cache::cpu(),
        faults,
        map_present: map_present()?,
        zero_small,
        zero_huge,
        collapse: collapse()?,
        fork: Some(fork::measure()?),
        kernel_memory: kernel::measure(),
    })
}

/// Nanoseconds that zeroing a byte takes in a fault: from the difference between a large fault and a small
/// one. Without huge pages, zeroing by a program.
fn zeroing_in_faults(totals: &BTreeMap<u64, Cost>, zero_small: Cost) -> f64 {
    let (Some((small, least)), Some((large, most))) = (totals.first_key_value(), totals.last_key_value())
    else {
        return 0.0;
    };
    if large <= small || most.median <= least.median {
        return zero_small.median / SMALL as f64;
    }
    (most.median - least.median) / (large - small) as f64
}

fn split(size: u64, total: Cost, zeroing_a_byte: f64) -> FaultCost {
    let zeroing = (size as f64 * zeroing_a_byte).min(total.median);
    FaultCost { total, zeroing, fixed: total.median - zeroing }
}

/// A fault that gets a folio of `size` bytes; none if the kernel gives none.
fn folio(host: &HostSettings, size: u64) -> Result<Option<Cost>, MeasureError> {
    let file = format!("hugepages-{}kB/enabled", size >> 10);
    let on = |word: &str| word == "always" || word == "madvise";
    let word = host.word(&file)?;
    let _guard = if on(&word) || (word == "inherit" && on(&host.word("enabled")?)) {
        None
    } else {
        match host.apply(&HugeSettings::new().with(&file, "madvise")) {
            Err(MeasureError::Denied { .. }) => return Ok(None),
            guard => Some(guard?),
        }
    };
    let length = size as usize;
    let region = || Region::new(TOUCHED, length, true)?.advised(libc::MADV_HUGEPAGE);
    let turns = mapped(Turns::new(TURNS, 2 * length, region))?;
    let before = HostCounters::now();
    let cost = touches(turns, length)?;
    let counted = HostCounters::now().since(&before);
    let folios = (TOUCHED / length * ROUNDS) as u64;
    let given = counted.faults_by_size.get(&size).is_some_and(|count| *count >= folios);
    Ok(given.then_some(cost))
}

/// Touches what is empty of `turns`, of which each touch brings in `each` bytes.
fn touches(mut turns: Turns, each: usize) -> Result<Cost, MeasureError> {
    rounds(TOUCHED / each, |timed| {
        let (region, step) = turns.emptied()?;
        timed(&mut || region.touch(step));
        Ok(())
    })
}

/// A page that another mapping of a file in memory holds.
fn map_present() -> Result<Cost, MeasureError> {
    let region = mapped(Region::shared(TOUCHED))?;
    rounds(TOUCHED / SMALL, |timed| {
        timed(&mut || region.touch(SMALL));
        region.empty()
    })
}

fn zeroing(each: usize) -> Result<Cost, MeasureError> {
    let region = mapped(Region::new(ZEROED, HUGE, false))?;
    mapped(region.advise(if each == HUGE { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE }))?;
    region.touch(SMALL);
    rounds(ZEROED / each, |timed| {
        timed(&mut || region.zero(each));
        Ok(())
    })
}

fn collapse() -> Result<Option<Cost>, MeasureError> {
    let region = mapped(Region::new(TOUCHED, HUGE, false))?;
    let mut refused = false;
    let cost = rounds(TOUCHED / HUGE, |timed| {
        region.advise(libc::MADV_NOHUGEPAGE)?;
        region.touch(SMALL);
        region.advise(libc::MADV_HUGEPAGE)?;
        timed(&mut || refused |= region.collapse().is_err());
        region.empty()
    })?;
    Ok((!refused).then_some(cost))
}

fn mapped<T>(result: io::Result<T>) -> Result<T, MeasureError> {
    result.map_err(|why| MeasureError::system("memory to calibrate with", why))
}

/// Calls `round` several times, and once before that to warm up; the closure that it passes to its
/// argument is timed.
fn rounds(
    operations: usize,
    mut round: impl FnMut(&mut dyn FnMut(&mut dyn FnMut())) -> io::Result<()>,
) -> Result<Cost, MeasureError> {
    let mut times = Vec::with_capacity(ROUNDS);
    for at in 0..=ROUNDS {
        let mut time = |work: &mut dyn FnMut()| {
            let started = processor_time();
            work();
            if at > 0 {
                times.push((processor_time() - started).as_nanos() as f64 / operations as f64);
            }
        };
        mapped(round(&mut time))?;
    }
    times.sort_unstable_by(f64::total_cmp);
    Ok(Cost { median: times[ROUNDS / 2], min: times[0], max: times[ROUNDS - 1] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_zeroing_and_the_rest() {
        let cost = |median| Cost { median, min: median, max: median };
        let small = cost(600.0);
        let totals = BTreeMap::from([(4 << 10, small), (2 << 20, cost(600.0 + 511.0 * 100.0))]);
        let byte = zeroing_in_faults(&totals, cost(300.0));
        let faults = totals.iter().map(|(size, total)| split(*size, *total, byte)).collect::<Vec<_>>();
        for (fault, zeroing) in faults.iter().zip([100.0, 51_200.0]) {
            assert!(
                (fault.zeroing - zeroing).abs() < 1e-6 && (fault.fixed - 500.0).abs() < 1e-6,
                "{fault:?}"
            );
        }
        // Without huge pages. Never more than the fault.
        let byte = zeroing_in_faults(&BTreeMap::from([(4 << 10, small)]), cost(800.0));
        assert_eq!(split(4 << 10, small, byte).fixed, 0.0);
    }

    /// Turns sizes on and off again, as root.
    #[test]
    fn costs_of_this_host() {
        let before = HostSettings::default().current();
        let costs = match calibrate() {
            Err(error @ (MeasureError::Busy(_) | MeasureError::Missing(_))) => {
                return eprintln!("skipped: {error}");
            }
            costs => costs.expect("costs"),
        };
        assert_eq!(HostSettings::default().current().ok(), before.ok(), "all is as it was");
        for (size, fault) in &costs.faults {
            assert!(fault.total.min > 0.0 && fault.total.min <= fault.total.median, "{size}: {fault:?}");
            assert!(fault.total.median <= fault.total.max, "{size}: {fault:?}");
        }
        assert!(costs.faults.contains_key(&4096));
        assert!(
            costs.map_present.min > 0.0
                && costs.zero_small.min > 0.0
                && costs.zero_huge.min > costs.zero_small.min
        );
        let fork = costs.fork.expect("costs of a fork");
        assert!(fork.base.min > 0.0 && fork.page.median > 0.0 && fork.copy.min > 0.0, "{fork:?}");
        // One entry for 2 MiB takes less than 512 for as much.
        assert!(fork.huge.is_none_or(|huge| huge.median < 512.0 * fork.page.median), "{fork:?}");
        let text = serde_json::to_string(&costs).expect("text");
        let again: Costs = serde_json::from_str(&text).expect("costs");
        assert_eq!(again.faults.len(), costs.faults.len());
    }
}

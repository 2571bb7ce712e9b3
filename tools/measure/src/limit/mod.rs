//! A memory limit for a program and everything it starts, with swap behind it.
//!
//! A shell sets up the swap and outlives this process, as that of [`crate::Guard`] does: it removes swap
//! and cgroup when this process has ended in any way. The lock's file lists what is to be removed; if the
//! shell is killed, too, the next one starts with that.

mod files;
mod group;
mod host_swap;
mod support;

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::time::Instant;

use crate::change::{Change, chosen};
use crate::error::MeasureError;
use crate::lock::{Lock, start_shell};
use crate::mean::Mean;
use crate::settings::LOCK;
use crate::swap::{Pool, Swap, SwapKind, SwapTruth};
pub use files::limit_files;
pub(crate) use group::Group;
pub use group::{CgroupRoot, CgroupVersion};
pub use host_swap::HostSwap;
pub use support::SwapSupport;

const SETUP: &str = include_str!("setup.sh");
/// Locked by the measurement that limits memory. It lists what is to be removed.
const LIMIT_LOCK: &str = "/run/quire-memory-limit";
const ZSWAP: &str = "/sys/module/zswap/parameters";
const COMPRESSOR: &str = "lz4";

/// A limit of memory for a program and everything it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// What may be charged to its memory cgroup: anonymous memory, files that it reads, page tables.
    pub bytes: u64,
    /// The swap for pages that do not fit. Without it the program is OOM-killed when there are too many.
    pub swap: Option<Swap>,
    /// Where its group is created; by default at this host's memory controller.
    pub cgroups: Option<CgroupRoot>,
}

impl MemoryLimit {
    /// A limit on this host.
    pub fn new(bytes: u64, swap: Option<Swap>) -> Self {
        Self { bytes, swap, cgroups: None }
    }
}

/// What a program did within a limit. Memory in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LimitTruth {
    /// The limit, as the kernel rounds it.
    pub bytes: u64,
    /// The most that was charged: `memory.max_usage_in_bytes`, `memory.peak`.
    pub peak_charge: u64,
    /// How often the limit was reached, and memory reclaimed: `memory.failcnt`, `max` of `memory.events`.
    pub hits: u64,
    /// Processes that were killed for memory.
    pub oom_kills: u64,
    /// Major faults, as the group counts them: `pgmajfault`.
    pub major_faults: u64,
    /// The charge at the sample where it was largest; the last such sample.
    pub at_peak: Option<Charge>,
    /// The most that must fit at one moment: anonymous and shared memory and the kernel's own, without files.
    pub peak_in_use: u64,
    /// The most mapped anonymous memory of all processes together.
    pub peak_anonymous: u64,
    /// Anonymous memory that is charged, averaged over the time: also what is not mapped any more of large
    /// folios that were not split. Linux charges 64 pages in advance for each processor.
    pub mean_anonymous: f64,
    /// The same when the first process ended.
    pub end_anonymous: u64,
    /// The most of the group's memory that was swapped out, of all samples.
    pub peak_swapped: u64,
    /// Medians of the samples after the limit was first reached, each figure by itself. None if it never was.
    pub limited: Option<Charge>,
    /// How many samples these are.
    pub limited_samples: u64,
    /// What went through the swap.
    pub swap: Option<SwapTruth>,
}

/// The charge of a memory cgroup. In bytes. The kernel sums the figures by kind every two seconds, and when
/// one is read only if more than 64 pages for each processor changed: those of a short run may be missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charge {
    /// All of it.
    pub all: u64,
    /// Mapped anonymous memory: `rss`, `anon`.
    pub anonymous: u64,
    /// Anonymous memory, mapped or not, that has its place in swap as well: `swapcached`.
    pub swap_cache: u64,
    /// The page cache of files, without shared memory and the swap cache.
    pub file: u64,
    /// Shared memory and tmpfs: `shmem`.
    pub shared: u64,
    /// The kernel's own: page tables, stacks, slab objects.
    pub kernel: u64,
    /// Swapped-out memory, which is not charged as memory.
    pub swapped: u64,
}

/// A limit that is in place: dropping it removes it.
#[derive(Debug)]
pub(crate) struct Limited {
    group: Group,
    shell: Option<Child>,
    lock: Arc<Lock>,
    /// Nothing else changes the host's settings meanwhile.
    _settings: Arc<Lock>,
    kind: Option<SwapKind>,
    pool: Option<Pool>,
    at_peak: Option<Charge>,
    peak_in_use: u64,
    peak_anonymous: u64,
    mean: Mean,
    anonymous: u64,
    end: u64,
    peak_swapped: u64,
    limited: Vec<Charge>,
}

impl Limited {
    /// Sets it up.
    pub(crate) fn start(limit: &MemoryLimit) -> Result<Self, MeasureError> {
        let settings = Lock::share(Path::new(LOCK))?;
        let lock = Lock::take(Path::new(LIMIT_LOCK))?;
        let root = limit.cgroups.clone().map_or_else(CgroupRoot::of_host, Ok)?;
        let group = root.group(&format!("quire-{}", std::process::id()));
        let shell = |swap, words| set_up(&[&lock, &settings], group.folder(), swap, words);
        if !lock.notes()?.is_empty() {
            // Values of settings are read below: first the right ones are restored.
            let (mut shell, _) = shell(None, Vec::new())?;
            shell.wait().map_err(|why| MeasureError::system("cannot wait for sh", why))?;
        }
        let kind = limit.swap.map(|swap| swap.kind);
        let zswap = if kind == Some(SwapKind::Zswap) { zswap_changes()? } else { Vec::new() };
        let turned_on = root.turned_on();
        let mut words: Vec<OsString> = Vec::new();
        words.extend(turned_on.iter().flat_map(|(file, off)| [file.into(), (*off).into()]));
        words.extend(zswap.iter().flat_map(|change| [change.path.clone().into(), change.old.clone().into()]));
        let (shell, device) = shell(limit.swap, words)?;
        let pool = kind.map(|kind| Pool::of(kind, Path::new(&device)));
        let limited = Self {
            group,
            shell: Some(shell),
            lock,
            _settings: settings,
            kind,
            pool,
            at_peak: None,
            peak_in_use: 0,
            peak_anonymous: 0,
            mean: Mean::default(),
            anonymous: 0,
            end: 0,
            peak_swapped: 0,
            limited: Vec::new(),
        };
        // An error drops it: everything is removed.
        if let Some((file, _)) = turned_on {
            fs::write(&file, "+memory").map_err(|why| MeasureError::file(&file, why))?;
        }
        for change in &zswap {
            match change.make() {
                // A kernel without lz4 keeps its compressor.
                Err(_) if change.new == COMPRESSOR => {}
                made => made?,
            }
        }
        limited.group.make()?;
        limited.group.limit(limit.bytes, limit.swap.map_or(0, |swap| swap.bytes))?;
        Ok(limited)
    }

    /// The file through which a process enters.
    pub(crate) fn entrance(&self) -> Result<File, MeasureError> {
        self.group.entrance()
    }

    /// Reads what is charged now.
    pub(crate) fn sample(&mut self) {
        let charge = self.group.charge();
        if self.at_peak.is_none_or(|most| charge.all >= most.all) {
            self.at_peak = Some(charge);
        }
        self.anonymous = charge.all.saturating_sub(charge.file + charge.shared + charge.kernel);
        self.mean.add(Instant::now(), self.anonymous);
        self.peak_anonymous = self.peak_anonymous.max(charge.anonymous);
        self.peak_in_use = self.peak_in_use.max(charge.anonymous + charge.shared + charge.kernel);
        self.peak_swapped = self.peak_swapped.max(charge.swapped);
        if !self.limited.is_empty() || self.group.hits() > 0 {
            self.limited.push(charge);
        }
        if let Some(pool) = &mut self.pool {
            pool.sample();
        }
    }

    /// A thread of the first process ends after the last sample.
    pub(crate) fn first_process_ends(&mut self) {
        self.end = self.anonymous;
    }

    /// Removes it, and returns the figures.
    pub(crate) fn finish(mut self) -> Result<LimitTruth, MeasureError> {
        let compressor = match self.kind {
            Some(SwapKind::Zram) => Some(COMPRESSOR.to_owned()),
            Some(SwapKind::Zswap) => parameter("compressor").ok(),
            Some(SwapKind::File) | None => None,
        };
        let truth = LimitTruth {
            bytes: self.group.limited_to(),
            peak_charge: self.group.peak(),
            hits: self.group.hits(),
            oom_kills: self.group.kills(),
            major_faults: self.group.major_faults(),
            at_peak: self.at_peak,
            peak_in_use: self.peak_in_use,
            peak_anonymous: self.peak_anonymous,
            mean_anonymous: self.mean.get(),
            end_anonymous: self.end,
            peak_swapped: self.peak_swapped,
            limited: medians(&self.limited),
            limited_samples: self.limited.len() as u64,
            swap: self.pool.take().map(|pool| pool.finish(compressor)),
        };
        self.remove()?;
        Ok(truth)
    }

    fn remove(&mut self) -> Result<(), MeasureError> {
        let Some(mut shell) = self.shell.take() else { return Ok(()) };
        // Closes its input, and waits until it is done.
        if shell.wait().is_ok_and(|status| status.success()) {
            return Ok(());
        }
        Err(self.lock.not_restored())
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = self.remove();
    }
}

/// Starts the shell, which sets up `swap`, and later removes it, the folder `group` and what an earlier one
/// left. The file of the first of the locks, which it holds, lists them. `words` are files and the values to
/// be restored. Returns the device, too.
fn set_up(
    locks: &[&Lock],
    group: &Path,
    swap: Option<Swap>,
    words: Vec<OsString>,
) -> Result<(Child, String), MeasureError> {
    let kind = swap.map_or("none", |swap| swap.kind.name());
    let bytes = swap.map_or(0, |swap| swap.bytes).to_string();
    let notes = locks.first().map_or(Path::new(LIMIT_LOCK), |lock| lock.path());
    let first = [notes.into(), group.into(), kind.into(), bytes.into()];
    let started = start_shell(SETUP, first.into_iter().chain(words), locks);
    let (mut shell, said) = started.map_err(|why| MeasureError::system("cannot start sh", why))?;
    if let Some(device) = said.strip_prefix("ready ") {
        return Ok((shell, device.to_owned()));
    }
    let _ = shell.wait();
    let why = said.strip_prefix("failed ").unwrap_or("its shell does not run");
    Err(MeasureError::Limit(why.trim_end().to_owned()))
}

/// Each figure's median.
fn medians(samples: &[Charge]) -> Option<Charge> {
    let median = |of: fn(&Charge) -> u64| {
        let mut values: Vec<u64> = samples.iter().map(of).collect();
        values.sort_unstable();
        values.get(values.len() / 2).copied()
    };
    Some(Charge {
        all: median(|charge| charge.all)?,
        anonymous: median(|charge| charge.anonymous)?,
        swap_cache: median(|charge| charge.swap_cache)?,
        file: median(|charge| charge.file)?,
        shared: median(|charge| charge.shared)?,
        kernel: median(|charge| charge.kernel)?,
        swapped: median(|charge| charge.swapped)?,
    })
}

/// Turns zswap on, with lz4.
fn zswap_changes() -> Result<Vec<Change>, MeasureError> {
    let mut changes = Vec::new();
    for (name, new) in [("compressor", COMPRESSOR), ("enabled", "Y")] {
        let old = parameter(name)?;
        if old != new {
            changes.push(Change { path: zswap_file(name), old, new: new.to_owned() });
        }
    }
    Ok(changes)
}

fn zswap_file(parameter: &str) -> PathBuf {
    Path::new(ZSWAP).join(parameter)
}

fn parameter(name: &str) -> Result<String, MeasureError> {
    let file = zswap_file(name);
    let text = fs::read_to_string(&file).map_err(|why| MeasureError::file(&file, why))?;
    Ok(chosen(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_of_each_figure() {
        let charge = |all, kernel| Charge { all, kernel, ..Charge::default() };
        assert_eq!(medians(&[]), None);
        assert_eq!(medians(&[charge(3, 10), charge(1, 30), charge(2, 20)]), Some(charge(2, 20)));
    }
}

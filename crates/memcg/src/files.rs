//! The files of a memcg, as text in and out.

use crate::charge::MemcgCharges;
use crate::counter::{PageCounter, UNLIMITED};
use crate::counters::MemcgCounters;
use crate::error::MemcgError;
use crate::event::MemcgEvent;
use crate::folios::MemcgFolios;
use crate::id::MemcgId;
use crate::limit::{Limit, parse_limit, parse_size, parse_switch};
use crate::lists::LruList;
use crate::memcg::Memcg;
use crate::numa::{NodePages, write_numa_stat};
use crate::outcome::WriteOutcome;
use crate::peak::MemcgPeak;
use crate::stat::{MemcgStat, MemcgStats};
use crate::tree::MemcgTree;
use core::fmt;
use quire_arch::{PAGE_SHIFT, PAGE_SIZE, Platform};
use quire_sync::atomic::Ordering;
use quire_sync::atomic::raw::AtomicBool;

/// The files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum File {
    Current,
    Peak,
    Limit(Limit),
    SwapCurrent,
    SwapPeak,
    Events,
    EventsLocal,
    SwapEvents,
    ZswapCurrent,
    ZswapWriteback,
    OomGroup,
    Stat,
    NumaStat,
    Reclaim,
}

impl File {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "memory.current" => Self::Current,
            "memory.peak" => Self::Peak,
            "memory.min" => Self::Limit(Limit::Min),
            "memory.low" => Self::Limit(Limit::Low),
            "memory.high" => Self::Limit(Limit::High),
            "memory.max" => Self::Limit(Limit::Max),
            "memory.swap.current" => Self::SwapCurrent,
            "memory.swap.high" => Self::Limit(Limit::SwapHigh),
            "memory.swap.max" => Self::Limit(Limit::SwapMax),
            "memory.swap.peak" => Self::SwapPeak,
            "memory.events" => Self::Events,
            "memory.events.local" => Self::EventsLocal,
            "memory.swap.events" => Self::SwapEvents,
            "memory.zswap.current" => Self::ZswapCurrent,
            "memory.zswap.max" => Self::Limit(Limit::ZswapMax),
            "memory.zswap.writeback" => Self::ZswapWriteback,
            "memory.oom.group" => Self::OomGroup,
            "memory.stat" => Self::Stat,
            "memory.numa_stat" => Self::NumaStat,
            "memory.reclaim" => Self::Reclaim,
            _ => return None,
        })
    }

    /// The file of a memcg; the root has few.
    fn of(id: MemcgId, name: &str) -> Result<Self, MemcgError> {
        let at_root =
            |file: &Self| matches!(file, Self::Stat | Self::NumaStat | Self::Reclaim | Self::ZswapWriteback);
        Self::named(name).filter(|file| !id.is_root() || at_root(file)).ok_or(MemcgError::NoFile)
    }
}

/// `memory.events`.
const EVENTS: [(&str, MemcgEvent); 6] = [
    ("low", MemcgEvent::Low),
    ("high", MemcgEvent::High),
    ("max", MemcgEvent::Max),
    ("oom", MemcgEvent::Oom),
    ("oom_kill", MemcgEvent::OomKill),
    ("oom_group_kill", MemcgEvent::OomGroupKill),
];

/// A line of `memory.stat`.
enum Line {
    /// Charged pages that are of no file, in bytes.
    Anon,
    /// In bytes.
    Bytes(MemcgStat),
    /// As it is.
    Plain(MemcgStat),
    /// Pages on lists, in bytes.
    List(LruList),
    /// Several numbers in one.
    Sum(&'static str, [MemcgStat; 3]),
}

/// `memory.stat`, as far as it is counted, in the order of Linux 6.18.
const STAT: [Line; 41] = {
    use Line::{Anon, Bytes, List, Plain, Sum};
    use MemcgStat as S;
    [
        Anon,
        Bytes(S::File),
        Bytes(S::Shmem),
        Plain(S::Zswap),
        Bytes(S::Zswapped),
        Bytes(S::FileThp),
        Bytes(S::ShmemThp),
        List(LruList::InactiveAnon),
        List(LruList::ActiveAnon),
        List(LruList::InactiveFile),
        List(LruList::ActiveFile),
        List(LruList::Unevictable),
        Plain(S::WorkingsetRefaultAnon),
        Plain(S::WorkingsetActivateAnon),
        Plain(S::WorkingsetRestoreAnon),
        Sum("pgscan", [S::PgscanKswapd, S::PgscanDirect, S::PgscanProactive]),
        Sum("pgsteal", [S::PgstealKswapd, S::PgstealDirect, S::PgstealProactive]),
        Plain(S::Pswpin),
        Plain(S::Pswpout),
        Plain(S::PgscanKswapd),
        Plain(S::PgscanDirect),
        Plain(S::PgscanProactive),
        Plain(S::PgstealKswapd),
        Plain(S::PgstealDirect),
        Plain(S::PgstealProactive),
        Plain(S::Pgfault),
        Plain(S::Pgmajfault),
        Plain(S::Pgrefill),
        Plain(S::Pgactivate),
        Plain(S::Pgdeactivate),
        Plain(S::Pglazyfree),
        Plain(S::Pglazyfreed),
        Plain(S::SwpinZero),
        Plain(S::SwpoutZero),
        Plain(S::Zswpin),
        Plain(S::Zswpout),
        Plain(S::Zswpwb),
        Plain(S::ThpFaultAlloc),
        Plain(S::ThpCollapseAlloc),
        Plain(S::ThpSwpout),
        Plain(S::ThpSwpoutFallback),
    ]
};

impl Line {
    fn write(
        &self,
        anonymous: u64,
        stats: &MemcgStats,
        lists: &[u64; LruList::COUNT],
        out: &mut dyn fmt::Write,
    ) -> fmt::Result {
        // A value counted up on one CPU and down on another may be negative for a moment.
        let read = |stat: MemcgStat| stats[stat as usize].max(0);
        match *self {
            Self::Anon => writeln!(out, "anon {}", anonymous << PAGE_SHIFT),
            Self::Bytes(stat) => writeln!(out, "{} {}", stat.name(), read(stat) << PAGE_SHIFT),
            Self::Plain(stat) => writeln!(out, "{} {}", stat.name(), read(stat)),
            Self::List(list) => writeln!(out, "{} {}", list.name(), lists[list as usize] << PAGE_SHIFT),
            Self::Sum(name, parts) => writeln!(out, "{name} {}", parts.map(read).iter().sum::<i64>()),
        }
    }
}

/// Pages of all programs and files of a machine, as the root's files show them.
#[derive(Clone, Copy, Default, Debug)]
pub struct MachinePages {
    /// Anonymous pages.
    pub anon: u64,
    /// Pages of files, shared memory among them.
    pub file: u64,
    /// Pages of shared memory.
    pub shmem: u64,
    /// Pages of folios of the PMD's order of files, without shared memory.
    pub file_thp: u64,
    /// The same of shared memory.
    pub shmem_thp: u64,
}

quire_arch::part_of! {
    /// The files of memcgs, and the limits that they hold.
    pub struct MemcgFiles { pub(crate) tree: MemcgTree }
}

impl<P: Platform> MemcgFiles<'_, P> {
    /// Writes what is in the memcg's file `name` to `out`, as Linux would. Nothing is charged to the root, so
    /// `machine` is asked for the pages of the whole machine. A peak is that since the last write to this
    /// open file, which gave `since`, or that of all times.
    ///
    /// # Errors
    ///
    /// [`MemcgError::NoMemcg`], [`MemcgError::NoFile`], [`MemcgError::WriteOnly`], [`MemcgError::Output`].
    pub fn read(
        self,
        id: MemcgId,
        name: &str,
        since: Option<MemcgPeak>,
        machine: impl FnOnce() -> MachinePages,
        out: &mut dyn fmt::Write,
    ) -> Result<(), MemcgError> {
        let file = File::of(id, name)?;
        let memcg = self.tree.online(id)?;
        match file {
            File::Current => writeln!(out, "{}", memcg.memory.usage() * PAGE_SIZE)?,
            File::Peak => writeln!(out, "{}", self.peak(&memcg.memory, since) * PAGE_SIZE)?,
            File::SwapCurrent => writeln!(out, "{}", memcg.swap.usage() * PAGE_SIZE)?,
            File::SwapPeak => writeln!(out, "{}", self.peak(&memcg.swap, since) * PAGE_SIZE)?,
            File::Limit(limit) => match self.limit(id, limit) {
                Some(bytes) => writeln!(out, "{bytes}")?,
                None => writeln!(out, "max")?,
            },
            File::Events => {
                for (name, event) in EVENTS {
                    writeln!(out, "{name} {}", MemcgCounters::new(self.tree).events(id, event))?;
                }
            }
            File::EventsLocal => {
                for (name, event) in EVENTS {
                    writeln!(out, "{name} {}", MemcgCounters::new(self.tree).local_events(id, event))?;
                }
            }
            File::SwapEvents => {
                let events = [MemcgEvent::SwapHigh, MemcgEvent::SwapMax, MemcgEvent::SwapFail];
                let [high, max, fail] = events.map(|event| MemcgCounters::new(self.tree).events(id, event));
                writeln!(out, "high {high}\nmax {max}\nfail {fail}")?;
            }
            File::ZswapCurrent => {
                let stats = MemcgCounters::new(self.tree).stats(id);
                writeln!(out, "{}", stats[MemcgStat::Zswap as usize].max(0))?;
            }
            File::ZswapWriteback => {
                writeln!(out, "{}", u8::from(memcg.zswap_writeback.load(Ordering::Relaxed)))?;
            }
            File::OomGroup => writeln!(out, "{}", u8::from(memcg.oom_group.load(Ordering::Relaxed)))?,
            File::Stat => {
                MemcgFolios::new(self.tree).take_in(None);
                let lists = MemcgFolios::new(self.tree).subtree_sizes(id);
                let (anonymous, stats) = self.totals(id, machine);
                for line in &STAT {
                    line.write(anonymous, &stats, &lists, out)?;
                }
            }
            File::NumaStat => {
                MemcgFolios::new(self.tree).take_in(None);
                let (anon, stats) = self.totals(id, machine);
                let pages = |stat: MemcgStat| stats[stat as usize].max(0) as u64;
                let all = NodePages {
                    anon,
                    file: pages(MemcgStat::File),
                    shmem: pages(MemcgStat::Shmem),
                    file_thp: pages(MemcgStat::FileThp),
                    shmem_thp: pages(MemcgStat::ShmemThp),
                };
                write_numa_stat(self.tree, id, all, out)?;
            }
            File::Reclaim => return Err(MemcgError::WriteOnly),
        }
        Ok(())
    }

    /// Anonymous pages, and what is counted.
    fn totals(self, id: MemcgId, machine: impl FnOnce() -> MachinePages) -> (u64, MemcgStats) {
        let counters = MemcgCounters::new(self.tree);
        if id.is_root() {
            let pages = machine();
            let mut stats = counters.machine_stats();
            for (stat, pages) in [
                (MemcgStat::File, pages.file),
                (MemcgStat::Shmem, pages.shmem),
                (MemcgStat::FileThp, pages.file_thp),
                (MemcgStat::ShmemThp, pages.shmem_thp),
            ] {
                stats[stat as usize] = pages as i64;
            }
            return (pages.anon, stats);
        }
        let (used, stats) = (MemcgCharges::new(self.tree).used(id), counters.stats(id));
        (used.saturating_sub(stats[MemcgStat::File as usize].max(0) as u64), stats)
    }

    /// Writes `text` to the memcg's file `name`. The caller does what the result asks for. Nothing is written
    /// with an empty text.
    ///
    /// # Errors
    ///
    /// [`MemcgError::NoMemcg`], [`MemcgError::NoFile`], [`MemcgError::ReadOnly`] (Linux: `EACCES`),
    /// [`MemcgError::BadValue`] (`EINVAL`), [`MemcgError::OutOfRange`]. Nothing was changed.
    pub fn write(self, id: MemcgId, name: &str, text: &str) -> Result<WriteOutcome, MemcgError> {
        let file = File::of(id, name)?;
        let memcg = self.tree.online(id)?;
        match file {
            File::Limit(_)
            | File::Reclaim
            | File::Peak
            | File::SwapPeak
            | File::OomGroup
            | File::ZswapWriteback
                if text.is_empty() =>
            {
                // Linux's files do not get to see such a write.
                Ok(WriteOutcome::Done)
            }
            File::Limit(limit) => self.set(id, limit, parse_limit(text)?),
            File::Reclaim => parse_reclaim(text),
            File::Peak => Ok(self.reset_peak(&memcg.memory)),
            File::SwapPeak => Ok(self.reset_peak(&memcg.swap)),
            File::OomGroup => self.set_switch(id, text, |memcg| &memcg.oom_group),
            File::ZswapWriteback => self.set_switch(id, text, |memcg| &memcg.zswap_writeback),
            _ => Err(MemcgError::ReadOnly),
        }
    }

    fn set_switch(
        self,
        id: MemcgId,
        text: &str,
        switch: impl FnOnce(&Memcg<P>) -> &AtomicBool,
    ) -> Result<WriteOutcome, MemcgError> {
        let is_on = parse_switch(text)?;
        let _pin = self.tree.frames.platform().pin();
        // Against a removal, after which there are no switches.
        let _registry = self.tree.registry.lock();
        switch(self.tree.online(id)?).store(is_on, Ordering::Relaxed);
        Ok(WriteOutcome::Done)
    }

    fn peak(self, counter: &PageCounter, since: Option<MemcgPeak>) -> u64 {
        let _pin = self.tree.frames.platform().pin();
        let _registry = self.tree.registry.lock();
        counter.peak_since(since)
    }

    fn reset_peak(self, counter: &PageCounter) -> WriteOutcome {
        let _pin = self.tree.frames.platform().pin();
        let _registry = self.tree.registry.lock();
        WriteOutcome::PeakReset(counter.reset_peak())
    }

    /// Sets a limit in bytes, rounded down to pages, or no limit.
    ///
    /// # Errors
    ///
    /// [`MemcgError::Root`], [`MemcgError::NoMemcg`].
    pub fn set(self, id: MemcgId, limit: Limit, bytes: Option<u64>) -> Result<WriteOutcome, MemcgError> {
        if id.is_root() {
            return Err(MemcgError::Root);
        }
        let pin = self.tree.frames.platform().pin();
        let pages = bytes.map_or(UNLIMITED, |bytes| (bytes >> PAGE_SHIFT).min(UNLIMITED));
        {
            // Against a removal, after which there are no claims.
            let _registry = self.tree.registry.lock();
            let memcg = self.tree.online(id)?;
            match limit {
                Limit::Max => memcg.memory.set_max(pages),
                Limit::High => memcg.high.store(pages, Ordering::Relaxed),
                Limit::Low => self.tree.set_min_and_low(memcg, memcg.min.setting(), pages),
                Limit::Min => self.tree.set_min_and_low(memcg, pages, memcg.low.setting()),
                Limit::SwapHigh => memcg.swap_high.store(pages, Ordering::Relaxed),
                Limit::SwapMax => memcg.swap.set_max(pages),
                Limit::ZswapMax => memcg.zswap_max.store(pages, Ordering::Relaxed),
            }
        }
        if matches!(limit, Limit::Max | Limit::High) && MemcgCharges::new(self.tree).usage(id) > pages {
            MemcgCharges::new(self.tree).drain_stocks_of(&pin, |whose| self.tree.is_below(whose, id));
        }
        Ok(match limit {
            Limit::Max if self.pages_over(id, limit) > 0 => WriteOutcome::AboveMax,
            Limit::High if self.pages_over(id, limit) > 0 => WriteOutcome::AboveHigh,
            _ => WriteOutcome::Done,
        })
    }

    /// By how many pages the memcg is over its `memory.max` or `memory.high` now.
    pub fn pages_over(self, id: MemcgId, limit: Limit) -> u64 {
        match limit {
            Limit::Max | Limit::High => {
                let most = self.limit(id, limit).map_or(UNLIMITED, |bytes| bytes >> PAGE_SHIFT);
                MemcgCharges::new(self.tree).usage(id).saturating_sub(most)
            }
            Limit::Low | Limit::Min | Limit::SwapHigh | Limit::SwapMax | Limit::ZswapMax => 0,
        }
    }

    /// A limit in bytes, or `None` if there is none.
    pub fn limit(self, id: MemcgId, limit: Limit) -> Option<u64> {
        let memcg = self.tree.table.get(id)?;
        let pages = match limit {
            Limit::Max => memcg.memory.max(),
            Limit::High => memcg.high.load(Ordering::Relaxed),
            Limit::Low => memcg.low.setting(),
            Limit::Min => memcg.min.setting(),
            Limit::SwapHigh => memcg.swap_high.load(Ordering::Relaxed),
            Limit::SwapMax => memcg.swap.max(),
            Limit::ZswapMax => memcg.zswap_max.load(Ordering::Relaxed),
        };
        (pages < UNLIMITED).then_some(pages << PAGE_SHIFT)
    }
}

/// `SIZE`. Linux takes `SIZE swappiness=N`, too; only anonymous pages are reclaimed here, so it is refused.
fn parse_reclaim(text: &str) -> Result<WriteOutcome, MemcgError> {
    let text = text.trim_ascii();
    let (bytes, rest) = parse_size(text);
    if text.is_empty() || !rest.is_empty() {
        return Err(MemcgError::BadValue);
    }
    Ok(WriteOutcome::Reclaim { pages: bytes >> PAGE_SHIFT })
}

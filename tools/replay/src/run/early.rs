//! Whether Linux may kill programs soon after they reach their limit, though there is room in the swap.
//!
//! Reclaim takes inactive pages. One that it finds used twice becomes active, and it makes active pages
//! inactive where these are the more. How many there are it reads in statistics of the memory cgroup, which
//! Linux sums up every two seconds only. Before a program reaches its limit all of its pages are inactive. If
//! it then uses all of them again before the next sum, none is inactive any more, though the statistics say
//! that all are: so reclaim has nothing to scan, fails 16 times within a tenth of a millisecond, and the OOM
//! killer comes. Whether a sum falls in between is chance: of such runs a half was seen to be killed.

use quire_arch::PAGE_SIZE;
use quire_host::HostPlatform;
use quire_mm::{
    Memory,
    memcg::{MemcgId, MemcgStat},
};
use quire_trace::format::TraceHeader;

/// How old the statistics can be.
const STALE_NS: u64 = 2_000_000_000;
/// A recording under pressure is taken to be so many times as long as the program runs without it.
const SLOWER: u64 = 4;

/// Whether so many pages became active soon after the limit was reached that the OOM killer may come.
#[derive(Clone, Copy, Debug)]
pub(super) struct EarlyKill {
    /// How old the statistics can be, in time of the recording.
    stale_ns: u64,
    /// When memory was first reclaimed.
    reached: Option<u64>,
    may_be_killed: bool,
}

impl EarlyKill {
    pub(super) fn new(header: &TraceHeader) -> Self {
        let times = if header.pressure.is_some() { SLOWER } else { 1 };
        Self { stale_ns: STALE_NS * times, reached: None, may_be_killed: false }
    }

    /// At this time the limit has room for so many bytes of anonymous memory.
    pub(super) fn note(&mut self, memory: &Memory<HostPlatform>, memcg: MemcgId, room: u64, time_ns: u64) {
        if self.reached.is_some_and(|reached| time_ns > reached.saturating_add(self.stale_ns)) {
            return;
        }
        let stats = memory.memcgs().counters().stats(memcg);
        let count = |stat: MemcgStat| stats[stat as usize].max(0) as u64;
        if count(MemcgStat::PgscanDirect) + count(MemcgStat::PgscanKswapd) == 0 {
            return;
        }
        self.reached.get_or_insert(time_ns);
        let active = count(MemcgStat::Pgactivate) + count(MemcgStat::WorkingsetActivateAnon);
        self.may_be_killed |= active.saturating_mul(PAGE_SIZE) >= room;
    }

    pub(super) fn may_be_killed(&self) -> bool {
        self.may_be_killed
    }
}

//! A limit on the memory of the programs, like that of a memory cgroup.

use quire_arch::PAGE_SIZE;
use quire_host::HostPlatform;
use quire_mm::{
    Memory,
    memcg::{Limit, MemcgId, MemcgStat},
};

/// Events after which the limit is updated.
const EVERY: u64 = 64;

/// The memcg of the programs and what Linux would allow them.
///
/// Linux charges page tables to the cgroup too, and drops clean pages of files before it pages out. Quire
/// charges no tables, and pages of files stay until there is a page cache. So the memcg's limit is lowered by
/// the tables, and raised by the pages of files. Where the charge that Linux makes beside anonymous memory
/// was measured, it is used instead of the tables.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupLimit {
    pub(super) memcg: MemcgId,
    /// `memory.max`, in bytes.
    pub(super) bytes: u64,
    /// The charge beside anonymous memory, where that was measured.
    pub(super) beside: Option<u64>,
}

impl GroupLimit {
    /// Whether the limit is to be updated before event number `event`.
    pub(super) fn is_due(event: u64) -> bool {
        event.is_multiple_of(EVERY)
    }

    /// Sets the limit by the current size of the tables and the pages of files. Memory over it is reclaimed
    /// at the next charge.
    pub(super) fn set(&self, memory: &Memory<HostPlatform>) {
        let mut tables = 0;
        memory.for_each_resident(|_, resident| tables += resident.page_tables);
        let files = memory.memcgs().stats(self.memcg)[MemcgStat::File as usize].max(0) as u64 * PAGE_SIZE;
        let beside = self.beside.unwrap_or(tables);
        let bytes = self.bytes.saturating_sub(beside).saturating_add(files);
        // The memcg exists as long as the machine, and is not the root.
        let _ = memory.memcgs().set(self.memcg, Limit::Max, Some(bytes));
    }
}

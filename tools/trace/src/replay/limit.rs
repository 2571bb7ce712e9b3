//! A limit on the memory of the programs, like that of a memory cgroup.

use super::charge::{ExtraCharge, file_bytes};
use super::plan::Sample;
use quire_host::HostPlatform;
use quire_mm::{
    Memory,
    memcg::{Limit, MemcgId},
};

/// Events after which the limit is updated.
const EVERY: u64 = 64;

/// The memcg of the programs and what Linux would allow them.
///
/// Linux charges page tables to the cgroup too, and what else it keeps for the programs, and drops clean
/// pages of files before it pages out. Quire charges none of that, and pages of files stay until there is a
/// page cache. So the memcg's limit is lowered by the tables and the rest, and raised by the pages of files.
/// Shared memory and locked files, whose pages are among those of files here, lower it again: they stay in
/// memory. Where the charge that Linux makes beside anonymous and shared memory was measured, it is used
/// instead of the tables and what the kernel keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupLimit {
    pub(super) memcg: MemcgId,
    /// `memory.max`, in bytes.
    pub(super) bytes: u64,
    /// The charge beside anonymous and shared memory, where that was measured.
    pub(super) beside: Option<u64>,
    /// The part of the memory that is replayed, of which the bytes above are.
    pub(super) sample: Option<Sample>,
}

impl GroupLimit {
    /// Whether the limit is to be updated before event number `event`.
    pub(super) fn is_due(event: u64) -> bool {
        event.is_multiple_of(EVERY)
    }

    /// Sets the limit by the current size of the tables and the pages of files, and by what is charged
    /// besides. Memory over it is reclaimed at the next charge. Returns the room for anonymous memory.
    pub(super) fn set(&self, memory: &Memory<HostPlatform>, extra: &ExtraCharge) -> u64 {
        self.set_before(memory, extra, 0)
    }

    /// The same before a call that brings in so many bytes of files: Linux drops those that do not fit.
    pub(super) fn set_before(&self, memory: &Memory<HostPlatform>, extra: &ExtraCharge, coming: u64) -> u64 {
        let (mut tables, mut spaces, mut mappings) = (0, 0, 0);
        memory.for_each_resident(|_, resident| {
            tables += resident.page_tables;
            spaces += 1;
            mappings += resident.mappings;
        });
        let part = |bytes| self.sample.map_or(bytes, |sample| sample.part(bytes));
        let files = file_bytes(memory, self.memcg);
        let beside = self.beside.unwrap_or_else(|| tables + part(extra.kernel(spaces, mappings)));
        let stays = beside.saturating_add(part(extra.shared.saturating_add(extra.locked_files)));
        let room = self.bytes.saturating_sub(stays);
        let bytes = room.saturating_add(files).saturating_add(coming);
        // The memcg exists as long as the machine, and is not the root.
        let _ = memory.memcgs().set(self.memcg, Limit::Max, Some(bytes));
        room
    }
}

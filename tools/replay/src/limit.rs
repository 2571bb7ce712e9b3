//! A limit on the memory of the programs, like that of a memory cgroup.

use super::charge::{ExtraCharge, file_bytes, shared_bytes};
use super::plan::SampledPart;
use quire_host::HostPlatform;
use quire_mm::{
    Memory,
    memcg::{Limit, MemcgId},
};

/// Events after which the limit is updated.
const EVERY: u64 = 64;
/// Address spaces that are looked at for each event.
const SPACES_OF_EVENT: u64 = 16;

/// The memcg of the programs and what Linux would allow them.
///
/// Linux charges page tables to the cgroup too, and what else it keeps for the programs, and drops clean
/// pages of files before it pages out. Quire charges none of that, and does not reclaim pages of files. So
/// the memcg's limit is lowered by the tables and the rest, and raised by the pages of files. Locked files
/// lower it again: they stay in memory. So does shared memory that Linux had and no touch brought in. Where
/// the charge that Linux makes beside anonymous and shared memory was measured, it is used instead of the
/// tables and what the kernel keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupLimit {
    pub(super) memcg: MemcgId,
    /// `memory.max`, in bytes.
    pub(super) bytes: u64,
    /// The charge beside anonymous and shared memory, where that was measured.
    pub(super) beside: Option<u64>,
    /// The part of the memory that is replayed, of which the bytes above are.
    pub(super) sample: Option<SampledPart>,
}

impl GroupLimit {
    /// Whether the limit is to be updated before event number `event`.
    pub(super) fn is_due(event: u64) -> bool {
        event.is_multiple_of(EVERY)
    }

    /// Sets the limit by the size of the tables and by what is charged besides, and by the current pages of
    /// files. Memory over it is reclaimed at the next charge. Returns the room for anonymous and shared
    /// memory.
    pub(super) fn set(
        &self,
        memory: &Memory<HostPlatform>,
        spaces: &SpacesCharge,
        extra: &ExtraCharge,
    ) -> u64 {
        self.set_before(memory, spaces, extra, 0)
    }

    /// Sets the limit before a call that brings in so many bytes of files: Linux drops those that do not fit.
    pub(super) fn set_before(
        &self,
        memory: &Memory<HostPlatform>,
        spaces: &SpacesCharge,
        extra: &ExtraCharge,
        coming: u64,
    ) -> u64 {
        let part = |bytes| self.sample.map_or(bytes, |sample| sample.part(bytes));
        let files = file_bytes(memory, self.memcg).saturating_sub(shared_bytes(memory, self.memcg));
        let kernel = || spaces.tables + part(extra.kernel(spaces.spaces, spaces.mappings));
        let beside = self.beside.unwrap_or_else(kernel);
        let stays = beside.saturating_add(part(extra.unplaced.saturating_add(extra.locked_files)));
        let room = self.bytes.saturating_sub(stays);
        let bytes = room.saturating_add(files).saturating_add(coming);
        // The memcg exists as long as the machine, and is not the root.
        let _ = memory.memcgs().files().set(self.memcg, Limit::Max, Some(bytes));
        room
    }
}

/// What the address spaces of the programs are charged for, as it was added up last. To add it up is to look
/// at each of them, so events pay for that.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SpacesCharge {
    tables: u64,
    spaces: u64,
    mappings: u64,
    /// From this event on it may be added up again.
    from: u64,
}

impl SpacesCharge {
    /// Adds it up before event number `event`, if those before have paid for the last time. Returns how many
    /// spaces were looked at.
    pub(super) fn update(&mut self, memory: &Memory<HostPlatform>, event: u64) -> u64 {
        if event < self.from {
            return 0;
        }
        *self = Self::default();
        memory.for_each_resident(|_, resident| {
            self.tables += resident.page_tables;
            self.spaces += 1;
            self.mappings += resident.mappings;
        });
        self.from = event.saturating_add(self.spaces / SPACES_OF_EVENT);
        self.spaces
    }
}

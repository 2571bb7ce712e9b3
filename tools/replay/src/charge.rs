//! What is charged to the memory cgroup of programs: pages of files, as a replay's machine counts them. And
//! what Linux charges that the machine does not: what the kernel keeps for threads, processes and mappings,
//! and shared memory that no touch brought in.

use quire_arch::PAGE_SIZE;
use quire_host::HostPlatform;
use quire_mm::{
    Memory,
    memcg::{MemcgId, MemcgStat},
};
use serde::{Deserialize, Serialize};

/// Pages of files and of shared memory that are charged to `memcg`, in bytes.
pub(super) fn file_bytes(memory: &Memory<HostPlatform>, memcg: MemcgId) -> u64 {
    memory.memcgs().counters().stats(memcg)[MemcgStat::File as usize].max(0) as u64 * PAGE_SIZE
}

/// Of these, pages of shared memory.
pub(super) fn shared_bytes(memory: &Memory<HostPlatform>, memcg: MemcgId) -> u64 {
    memory.memcgs().counters().stats(memcg)[MemcgStat::Shmem as usize].max(0) as u64 * PAGE_SIZE
}

/// What the kernel keeps for programs, in bytes, beside page tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelCosts {
    /// A thread: its stack in the kernel, its descriptor, and what else belongs to it.
    pub thread: u64,
    /// A process beside its first thread and its mappings.
    pub process: u64,
    /// A mapping, as if it was touched.
    pub mapping: u64,
}

/// As measured on Linux 6.18 on x86-64.
impl Default for KernelCosts {
    fn default() -> Self {
        Self { thread: 22 << 10, process: 14 << 10, mapping: 544 }
    }
}

/// What Linux charges at one moment and the machine does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct ExtraCharge {
    pub(super) costs: KernelCosts,
    /// Threads that live.
    pub(super) threads: u64,
    /// Shared memory, in bytes, that Linux had and no touch brought in.
    pub(super) unplaced: u64,
    /// Pages of files that are locked, in bytes: those are not dropped.
    pub(super) locked_files: u64,
    /// Of all shared memory what nothing maps, in bytes.
    pub(super) unmapped: u64,
}

impl ExtraCharge {
    /// What the kernel keeps for the threads, and for so many address spaces and mappings.
    pub(super) fn kernel(&self, spaces: u64, mappings: u64) -> u64 {
        let KernelCosts { thread, process, mapping } = self.costs;
        let each = [(self.threads, thread), (spaces, process), (mappings, mapping)];
        each.iter().fold(0, |sum: u64, (count, bytes)| sum.saturating_add(count.saturating_mul(*bytes)))
    }
}

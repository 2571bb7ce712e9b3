//! What Linux charges to the cgroup of programs that a replay does not take from its machine: shared memory,
//! and what the kernel keeps for threads, processes and mappings.

/// What the kernel keeps for programs, in bytes, beside page tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelCosts {
    /// A thread: its stack in the kernel, its descriptor, and what else belongs to it.
    pub thread: u64,
    /// A process beside its first thread and its mappings.
    pub process: u64,
    /// A mapping that is touched.
    pub mapping: u64,
}

/// As measured on Linux 6.18 on x86-64.
impl Default for KernelCosts {
    fn default() -> Self {
        Self { thread: 22 << 10, process: 14 << 10, mapping: 544 }
    }
}

/// What is charged beside the machine's own memory at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Beside {
    pub(super) costs: KernelCosts,
    /// Threads that live.
    pub(super) threads: u64,
    /// Shared memory, in bytes, each page counted once.
    pub(super) shared: u64,
}

impl Beside {
    /// What the kernel keeps for the threads, and for so many address spaces and mappings.
    pub(super) fn kernel(&self, spaces: u64, mappings: u64) -> u64 {
        let KernelCosts { thread, process, mapping } = self.costs;
        let each = [(self.threads, thread), (spaces, process), (mappings, mapping)];
        each.iter().fold(0, |sum: u64, (count, bytes)| sum.saturating_add(count.saturating_mul(*bytes)))
    }
}

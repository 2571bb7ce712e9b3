//! The CPU that a thread ran on.

use super::Tracer;
use super::state::Rseq;
use crate::proc::status::Stat;
use crate::sys::{Tid, memory, ptrace};

impl Tracer<'_> {
    /// The CPU that a stopped thread last ran on.
    pub(super) fn cpu(&mut self, tid: Tid) -> u32 {
        /// `cpu_id` in the kernel's structure is the upper half of its first word.
        const SHIFT: u32 = 32;
        let Some(task) = self.tasks.get_mut(&tid) else { return 0 };
        if let Some(cpu) = self.same_cpu.cpu(tid) {
            task.cpu = cpu;
            return cpu;
        }
        if let Rseq::Ask(left) = task.rseq {
            task.rseq = match ptrace::rseq_area(tid) {
                Some(area) => Rseq::At(area),
                None if left > 0 => Rseq::Ask(left - 1),
                None => Rseq::None,
            };
        }
        let told = if let Rseq::At(area) = task.rseq { memory::read_u64(tid, area) } else { None };
        task.cpu = told.map_or_else(|| Stat::read(tid).processor, |word| (word >> SHIFT) as u32);
        task.cpu
    }
}

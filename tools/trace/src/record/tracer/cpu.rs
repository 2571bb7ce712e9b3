//! The CPU that a thread ran on.

use super::Tracer;
use super::state::Rseq;
use crate::record::proc::status::Stat;
use crate::record::sys::{Tid, memory, ptrace};

impl Tracer<'_> {
    /// The CPU that a stopped thread last ran on.
    pub(super) fn cpu(&mut self, tid: Tid) -> u32 {
        /// `cpu_id` in the kernel's structure.
        const OFFSET: u64 = 4;
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
        let mut bytes = [0; 4];
        task.cpu = match task.rseq {
            Rseq::At(area) if memory::read(tid, area + OFFSET, &mut bytes) == 4 => u32::from_ne_bytes(bytes),
            _ => Stat::read(tid).processor,
        };
        task.cpu
    }
}

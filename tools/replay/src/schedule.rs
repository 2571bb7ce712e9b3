//! Which thread each CPU runs, as far as a recording says: the one of its last event, until that thread
//! is seen elsewhere or ends.

use quire_trace::event::TaskId;

/// The thread on each vCPU.
#[derive(Debug)]
pub(super) struct Schedule(Vec<Option<TaskId>>);

/// What changes when a thread migrates to a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Arrival {
    /// The CPU that it ran on before, which is idle now.
    pub(super) left: Option<usize>,
}

impl Schedule {
    /// All of `cpus` idle.
    pub(super) fn new(cpus: usize) -> Self {
        Self(vec![None; cpus])
    }

    /// Whether `task` is on `cpu`.
    #[inline]
    pub(super) fn runs(&self, task: TaskId, cpu: usize) -> bool {
        self.0[cpu] == Some(task)
    }

    /// An event names `task` on `cpu`. Returns `None` if it was there already.
    pub(super) fn enter(&mut self, task: TaskId, cpu: usize) -> Option<Arrival> {
        if self.runs(task, cpu) {
            return None;
        }
        let left = self.leave(task);
        self.0[cpu] = Some(task);
        Some(Arrival { left })
    }

    /// The CPU that `task` is on.
    pub(super) fn cpu_of(&self, task: TaskId) -> Option<usize> {
        self.0.iter().position(|&running| running == Some(task))
    }

    /// `task` runs nowhere any more. Returns the CPU that is idle now.
    pub(super) fn leave(&mut self, task: TaskId) -> Option<usize> {
        let cpu = self.cpu_of(task)?;
        self.0[cpu] = None;
        Some(cpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_on_one_cpu_and_a_cpu_runs_one_thread() {
        let [first, second] = [TaskId(0), TaskId(1)];
        let mut schedule = Schedule::new(2);
        assert_eq!(schedule.enter(first, 0), Some(Arrival { left: None }));
        assert_eq!(schedule.enter(first, 0), None);
        assert_eq!(schedule.enter(second, 1), Some(Arrival { left: None }));
        // The first one's CPU is idle once it is seen elsewhere; that of the second is taken.
        assert_eq!(schedule.enter(first, 1), Some(Arrival { left: Some(0) }));
        assert_eq!(schedule.leave(second), None, "another thread runs there");
        assert_eq!(schedule.enter(second, 1), Some(Arrival { left: None }));
        assert_eq!(schedule.leave(first), None);
        assert_eq!(schedule.leave(second), Some(1));
        assert_eq!(schedule.enter(first, 1), Some(Arrival { left: None }));
    }
}

//! Exhaustion of memory, which ends a replay.

use super::RunningReplay;
use crate::report::DoesNotFit;
use quire_arch::PAGE_SHIFT;
use quire_trace::event::TaskId;

impl RunningReplay<'_> {
    /// Process number `process` found no memory for `what`.
    pub(super) fn exhausted(&mut self, process: usize, what: String) {
        self.misfit(Some(process), what, false);
    }

    /// The next event of `task` would bring in more than is in proportion to the trace.
    pub(super) fn out_of_proportion(&mut self, task: TaskId) {
        let process = self.task(task).map(|task| task.process);
        self.misfit(process, "its events name more pages than their number lets expect".to_owned(), true);
    }

    fn misfit(&mut self, process: Option<usize>, what: String, out_of_proportion: bool) {
        if self.does_not_fit.is_some() {
            return;
        }
        let memory = self.machine.memory();
        let report = process.map(|process| &self.processes[process].report);
        self.does_not_fit = Some(DoesNotFit {
            event: self.event,
            pid: report.map_or(0, |report| report.pid),
            program: report.map_or_else(Default::default, |report| report.program.clone()),
            what,
            out_of_proportion,
            ram: memory.frames().reports().totals().present << PAGE_SHIFT,
            limit: self.options.limit.map(|limit| limit.bytes),
            swap: memory.swap().devices().total_slots() << PAGE_SHIFT,
            held: self.held(),
            suffices: self.options.suffices,
        });
    }
}

//! Ends of threads, and Linux's figures of address spaces.

use super::Tracer;
use super::reuse::ReuseMoment;
use super::state::State;
use crate::merge::Rule;
use crate::proc::status::Stat;
use crate::sys::time::process_cpu;
use crate::sys::{Tid, ptrace};
use quire_trace::event::{EventKind, ExitStatus, FiguresCause, LinuxFigures};

impl Tracer<'_> {
    /// A thread is about to end; its address space is still there.
    pub(super) fn at_exit_stop(&mut self, tid: Tid, time: u64) {
        /// The part of an exit status that has the signal.
        const SIGNAL: u64 = 0x7f;
        self.takes_place_before_end(tid, time);
        self.made_before_end(tid, time);
        self.called_before_end(tid, time);
        let replaced = self.replaced_before_end(tid);
        self.abandon_call(tid, time);
        let status = ptrace::event_message(tid, libc::PTRACE_EVENT_EXIT).unwrap_or(0);
        let Some(task) = self.tasks.get_mut(&tid) else { return };
        if let Some(process) = self.processes.get_mut(&task.pid) {
            process.cpu_ns = process_cpu(task.pid).unwrap_or(process.cpu_ns);
        }
        if !std::mem::replace(&mut task.exiting, true) {
            let (space, pid) = (task.space, task.pid);
            let last = self.leave_space(space);
            if last && self.begun {
                let figures = replaced.unwrap_or_else(|| {
                    self.touched_before_end(tid);
                    self.sample_reuse_before_end(tid, ReuseMoment::Exit);
                    self.figures(tid, pid, space, FiguresCause::Exit).map(Box::new)
                });
                if let Some(space) = self.spaces.get_mut(&space) {
                    space.figures = figures.or(space.figures.take());
                }
                self.note_figures(tid, space, time);
                self.note_unheard(tid, time);
                self.drain_before_program_ends(time);
            } else if status & SIGNAL != 0 {
                self.look_before_end(tid);
            }
        }
        self.resume(tid, 0);
    }

    /// A thread is about to end in the middle of a call. If it was killed after the call took effect, there
    /// was no exit stop: its registers have the call's result. Other processes may still use the address
    /// space.
    fn called_before_end(&mut self, tid: Tid, time: u64) {
        let Some(task) = self.tasks.get_mut(&tid) else { return };
        let State::InCall(call) = &task.state else { return };
        let number = call.entry.number;
        let Ok(Some(regs)) = ptrace::registers(tid) else { return };
        let result = regs.rax as i64;
        if regs.orig_rax != number || !was_made(result) {
            return;
        }
        if let State::InCall(call) = std::mem::replace(&mut task.state, State::Running) {
            self.note_call(tid, call, result, time);
        }
    }

    /// A thread is about to end in the middle of exec. If it has the new program's memory already, which is
    /// not in the trace, this returns the figures of the old one.
    fn replaced_before_end(&mut self, tid: Tid) -> Option<Option<Box<LinuxFigures>>> {
        let State::InExec { figures, stack, .. } = &mut self.tasks.get_mut(&tid)?.state else { return None };
        (Stat::read(tid).start_stack != *stack).then(|| figures.take())
    }

    /// A thread will not return from the call that it is in.
    fn abandon_call(&mut self, tid: Tid, time: u64) {
        let Some(task) = self.tasks.get_mut(&tid) else { return };
        let (pid, space) = (task.pid, task.space);
        match std::mem::replace(&mut task.state, State::Running) {
            State::InCall(call) => self.merger.cancel(tid, call.start),
            State::InClone { start, .. } => self.merger.cancel(tid, start),
            State::InExec { start, .. } => {
                self.record(tid, (start, time), Rule::KilledExec { pid }, Vec::new());
            }
            State::Running | State::Ignored | State::AwaitsCallLock(_) => {}
        }
        self.release(tid, space, time);
    }

    /// A thread has ended.
    pub(super) fn at_end(&mut self, tid: Tid, status: ExitStatus, time: u64) {
        if tid == self.root {
            self.summary.status = status;
            self.root_ended = Some(time);
        }
        self.takes_place_before_end(tid, time);
        self.abandon_call(tid, time);
        if self.begun {
            let unseen = self.tasks.get(&tid).filter(|task| !task.exiting).map(|task| task.space);
            if let Some(space) = unseen
                && self.spaces.get(&space).is_some_and(|space| space.users == 1)
            {
                self.note_figures(tid, space, time);
            }
            self.note(tid, time, vec![EventKind::Exit(status)]);
        }
        self.remove_task(tid, time);
    }
}

/// Whether a call of a thread that was killed in it took effect, by the result in its registers.
fn was_made(result: i64) -> bool {
    // ENOSYS is the initial value: the thread was killed before it entered the call. EINTR: it was killed
    // while it waited for the mmap lock.
    ![libc::ENOSYS, libc::EINTR].map(|errno| -i64::from(errno)).contains(&result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_a_kill_kept_from_its_work_was_not_made() {
        assert!(was_made(0) && was_made(0x7fff_0000) && was_made(-i64::from(libc::ENOMEM)));
        assert!(!was_made(-i64::from(libc::ENOSYS)));
        assert!(!was_made(-i64::from(libc::EINTR)));
    }
}

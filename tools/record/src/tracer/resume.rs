//! Resuming stopped threads.

use super::Tracer;
use super::same_cpu::Until;
use super::state::State;
use crate::sys::ptrace::Resume;
use crate::sys::{Tid, ptrace};
use quire_trace::format::CallSource;

impl Tracer<'_> {
    /// Resumes a thread, in the way that its state requires.
    pub(super) fn resume(&mut self, tid: Tid, signal: i32) {
        let until = match self.tasks.get(&tid).map(|task| &task.state) {
            // Its children inherit its affinity.
            Some(State::InClone { .. }) => Until::UsesCpus,
            Some(State::InCall(_)) => Until::EndOfCall,
            _ => Until::Unknown,
        };
        self.resume_until(tid, until, signal);
    }

    pub(super) fn resume_until(&mut self, tid: Tid, until: Until, signal: i32) {
        let how = self.how_to_resume(tid);
        // The only error is that the thread was killed meanwhile; its end is reported by the next wait.
        self.same_cpu.resume(tid, until, || drop(ptrace::resume(tid, how, signal)));
    }

    /// Resumes a thread at the entry of a call that is not recorded.
    pub(super) fn ignore(&mut self, tid: Tid) {
        self.set_ignored(tid);
        self.resume(tid, 0);
    }

    pub(super) fn set_ignored(&mut self, tid: Tid) {
        if let Some(task) = self.tasks.get_mut(&tid) {
            // A seccomp stop can be left at once; the other kind is followed by one at the call's end.
            let every = self.calls == CallSource::EveryCall;
            task.state = if every { State::Ignored } else { State::Running };
        }
    }

    pub(super) fn how_to_resume(&self, tid: Tid) -> Resume {
        let in_call = self.tasks.get(&tid).is_some_and(|task| {
            matches!(
                task.state,
                State::InCall(_) | State::InClone { .. } | State::InExec { .. } | State::Ignored
            )
        });
        if in_call || self.calls == CallSource::EveryCall { Resume::Syscall } else { Resume::Continue }
    }

    pub(super) fn restart(&mut self, tid: Tid, how: Resume, signal: i32) {
        // The only error is that the thread was killed meanwhile; its end is reported by the next wait.
        drop(ptrace::resume(tid, how, signal));
    }
}

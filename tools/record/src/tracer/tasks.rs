//! The threads, processes and address spaces that are recorded, and what is recorded of them.

use super::Tracer;
use super::state::{Rseq, State, TracedProcess, TracedSpace, TracedTask};
use crate::merge::{Record, Rule, SpaceId};
use crate::perf::Root;
use crate::proc::status::privileges;
use crate::sys::Tid;
use quire_trace::event::{EventKind, Privileges, TaskId};
use std::time::Duration;

impl Tracer<'_> {
    pub(super) fn new_space(&mut self) -> SpaceId {
        let id = SpaceId(self.next_space);
        self.next_space += 1;
        self.spaces.insert(id, TracedSpace::default());
        id
    }

    /// Adds a new thread. The caller tells the merger its identity and its start.
    pub(super) fn add_task(
        &mut self,
        tid: Tid,
        pid: Tid,
        space: SpaceId,
        (privileges, event_set): (Privileges, Option<Root>),
    ) -> TaskId {
        let id = TaskId(self.next_task);
        self.next_task += 1;
        self.summary.threads += 1;
        let process = self.processes.entry(pid).or_insert_with(|| {
            self.summary.processes += 1;
            TracedProcess {
                threads: 0,
                threads_peak: 0,
                cpu_ns: 0,
                cpu_before: 0,
                faults_before: (0, 0),
                unheard_faults: 0,
            }
        });
        process.threads += 1;
        process.threads_peak = process.threads_peak.max(process.threads);
        if let Some(space) = self.spaces.get_mut(&space) {
            space.users += 1;
        }
        let (state, rseq) = (State::Running, Rseq::NEW);
        let task = TracedTask {
            id,
            pid,
            space,
            state,
            rseq,
            cpu: 0,
            privileges,
            event_set,
            made_by: None,
            exiting: false,
        };
        self.tasks.insert(tid, task);
        id
    }

    /// One thread fewer uses the address space; `true` if it was the last.
    pub(super) fn leave_space(&mut self, space: SpaceId) -> bool {
        let Some(space) = self.spaces.get_mut(&space) else { return false };
        space.users = space.users.saturating_sub(1);
        space.users == 0
    }

    /// Forgets a thread that has ended.
    pub(super) fn remove_task(&mut self, tid: Tid, time: u64) {
        let Some(task) = self.tasks.remove(&tid) else { return };
        self.merger.ended(tid, time);
        self.ended.extend(task.event_set.map(|event_set| (tid, event_set)));
        if !task.exiting {
            self.leave_space(task.space);
        }
        if !self.tasks.values().any(|other| other.space == task.space) {
            self.forget_space(task.space);
        }
        if let Some(process) = self.processes.get_mut(&task.pid) {
            process.threads -= 1;
            if process.threads == 0 {
                self.summary.programs_cpu += Duration::from_nanos(process.cpu_ns);
                self.note_opened();
                self.processes.remove(&task.pid);
                self.accesses.forget_process(task.pid);
            }
        }
    }

    /// Forgets an address space that is gone.
    pub(super) fn forget_space(&mut self, space: SpaceId) {
        self.spaces.remove(&space);
        self.touched.iter_mut().for_each(|touched| touched.forget(space));
        self.reuse.iter_mut().for_each(|reuse| reuse.forget(space));
        self.rotation.iter_mut().for_each(|rotation| rotation.forget(space));
    }

    /// The state that a copy of an address space inherits.
    pub(super) fn copy_state(&mut self, from: SpaceId, to: SpaceId) {
        let Some(maker) = self.spaces.get(&from) else { return };
        let (foreign, brk, thp_disable) = (maker.foreign, maker.brk, maker.thp_disable);
        if let Some(space) = self.spaces.get_mut(&to) {
            (space.foreign, space.brk, space.thp_disable) = (foreign, brk, thp_disable);
        }
    }

    pub(super) fn set_state(&mut self, tid: Tid, state: State) {
        if let Some(task) = self.tasks.get_mut(&tid) {
            task.state = state;
        }
    }

    /// Records a thread's privileges, if they have changed.
    pub(super) fn note_privileges(&mut self, tid: Tid, time: u64) {
        let Some(task) = self.tasks.get_mut(&tid) else { return };
        let now = privileges(tid);
        if std::mem::replace(&mut task.privileges, now) != now {
            self.note(tid, time, vec![EventKind::Privileges(now)]);
        }
    }

    /// Notes something that has no length.
    pub(super) fn note(&mut self, tid: Tid, time: u64, kinds: Vec<EventKind>) {
        self.record(tid, (time, time), Rule::AtEnd, kinds);
    }

    /// Hands over what a thread did between two times.
    pub(super) fn record(&mut self, tid: Tid, (start, end): (u64, u64), rule: Rule, kinds: Vec<EventKind>) {
        let Some(task) = self.tasks.get(&tid) else { return };
        let (task, space, cpu) = (task.id, task.space, task.cpu);
        self.merger.record(Record { start, end, tid, task, space, cpu, rule, kinds });
    }
}

//! New threads and processes.

use super::Tracer;
use super::state::State;
use crate::event::{CloneFacts, EventKind};
use crate::record::merge::{Record, Rule};
use crate::record::proc::status::Status;
use crate::record::sys::{Tid, ptrace};

impl Tracer<'_> {
    /// A thread has made another one.
    pub(super) fn cloned(&mut self, tid: Tid, event: i32, time: u64) {
        let Ok(child) = ptrace::event_message(tid) else { return };
        let child = child as Tid;
        let Some(task) = self.tasks.get_mut(&tid) else { return };
        let (maker_pid, maker_space) = (task.pid, task.space);
        let (start, flags) = match std::mem::replace(&mut task.state, State::Running) {
            State::InClone { start, flags, .. } => (start, flags),
            // A call that was not seen to begin: one of a foreign ABI. The event tells the least.
            _ if event == libc::PTRACE_EVENT_VFORK => (time, (libc::CLONE_VM | libc::CLONE_VFORK) as u64),
            _ if event == libc::PTRACE_EVENT_CLONE => {
                let same = Status::read(child).number("Tgid") == Some(maker_pid as u64);
                (time, if same { (libc::CLONE_VM | libc::CLONE_THREAD) as u64 } else { 0 })
            }
            _ => (time, 0),
        };
        let shares_memory = flags & libc::CLONE_VM as u64 != 0;
        let same_process = flags & libc::CLONE_THREAD as u64 != 0;
        let pid = if same_process { maker_pid } else { child };
        let space = if shares_memory { maker_space } else { self.new_space() };
        let id = self.add_task(child, pid, space);
        if !shares_memory {
            self.inherit(maker_space, space);
        }
        self.merger.identify(child, start, id, space);
        let kind = EventKind::Clone(CloneFacts {
            child: id,
            child_tid: child as u32,
            child_pid: pid as u32,
            flags,
            shares_memory,
            same_process,
        });
        let Some(task) = self.tasks.get(&tid) else { return };
        let (id, cpu) = (task.id, task.cpu);
        let (rule, kinds) = (Rule::Clone { child }, vec![kind]);
        self.merger.record(Record { start, end: time, tid, task: id, space: maker_space, cpu, rule, kinds });
        if !shares_memory {
            self.touched_after_fork(child, space);
        }
        self.release(tid, maker_space, time);
        self.resume(tid, 0);
        // The child stands still until its birth is noted.
        if self.early.remove(&child) {
            self.resume(child, 0);
        }
    }

    /// What a copy of an address space has in common with the one that it was made from.
    fn inherit(&mut self, from: super::SpaceId, to: super::SpaceId) {
        let Some(maker) = self.spaces.get(&from) else { return };
        let (foreign, brk) = (maker.foreign, maker.brk);
        if let Some(space) = self.spaces.get_mut(&to) {
            (space.foreign, space.brk) = (foreign, brk);
        }
    }
}

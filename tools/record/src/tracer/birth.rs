//! New threads and processes.

use super::Tracer;
use super::other_tracer::may_go_on;
use super::state::{Early, State, TracedTask};
use super::untraced::{is_to_restore, number_in_32_bit};
use crate::merge::Rule;
use crate::proc::Keyed;
use crate::proc::status::ids;
use crate::sys::ptrace::EVENT_STOP;
use crate::sys::wait::ChildStatus;
use crate::sys::{Tid, ptrace};
use quire_trace::event::{CloneFacts, EventKind};

/// A thread without a clone event after this time, that no thread in a clone call can be making, has lost
/// its parent.
const ORPHAN_AFTER_NS: u64 = 200_000_000;

impl Tracer<'_> {
    /// A clone event: a thread has made another one.
    pub(super) fn at_clone_stop(&mut self, tid: Tid, event: i32, time: u64) {
        // If the parent was killed meanwhile, the child is found at the parent's exit stop
        // (`made_before_end`).
        let Some(child) = ptrace::event_message(tid, event) else { return };
        let child = child as Tid;
        self.restore_after_clone(tid);
        self.add_child(tid, child, event, time);
        self.resume(tid, 0);
        self.follow_early(child, time);
    }

    /// Adds a thread that another one has made.
    fn add_child(&mut self, tid: Tid, child: Tid, event: i32, time: u64) {
        if self.unrecorded.contains(&tid) {
            self.unrecorded.insert(child);
            return;
        }
        self.unrecorded.remove(&child);
        let Some(task) = self.tasks.get_mut(&tid) else { return };
        let (maker_pid, maker_space) = (task.pid, task.space);
        let inherited = (task.privileges, task.event_set);
        let mut made_by = None;
        let (start, flags) = match std::mem::replace(&mut task.state, State::Running) {
            State::InClone { start, flags, entry } => {
                made_by = Some(entry).filter(|entry| is_to_restore(child, entry, flags));
                (start, flags)
            }
            // A call whose entry was not seen: one of a foreign ABI. The event has the minimum.
            _ if event == libc::PTRACE_EVENT_VFORK => (time, (libc::CLONE_VM | libc::CLONE_VFORK) as u64),
            _ if event == libc::PTRACE_EVENT_CLONE => {
                let same = Keyed::status(child).number("Tgid") == Some(maker_pid as u64);
                (time, if same { (libc::CLONE_VM | libc::CLONE_THREAD) as u64 } else { 0 })
            }
            _ => (time, 0),
        };
        let shares_memory = flags & libc::CLONE_VM as u64 != 0;
        let same_process = flags & libc::CLONE_THREAD as u64 != 0;
        let pid = if same_process { maker_pid } else { child };
        let space = if shares_memory { maker_space } else { self.new_space() };
        let id = self.add_task(child, pid, space, inherited);
        if let Some(child) = self.tasks.get_mut(&child) {
            child.made_by = made_by;
        }
        if !shares_memory {
            self.copy_state(maker_space, space);
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
        self.record(tid, (start, time), Rule::Clone { child }, vec![kind]);
        if flags & libc::CLONE_NEWUSER as u64 != 0 {
            self.note_privileges(child, time);
        }
        if !shares_memory {
            self.touched_after_fork(child, space);
        }
        self.release(tid, maker_space, time);
    }

    /// A thread is about to end in the middle of a call that makes a thread or process. If it was killed
    /// after it had made the child, there was no clone event: the call's result in its registers has the
    /// child's id.
    pub(super) fn made_before_end(&mut self, tid: Tid, time: u64) {
        let Some(State::InClone { entry, .. }) = self.tasks.get(&tid).map(|task| &task.state) else { return };
        let number = if entry.is_32_bit { number_in_32_bit(entry.number) } else { entry.number };
        let Ok(Some(regs)) = ptrace::registers(tid) else { return };
        // A call that was not made has a negative result here.
        let Ok(made) = Tid::try_from(regs.rax) else { return };
        if regs.orig_rax != number || made <= 0 {
            return;
        }
        let Some(child) = self.seen_from_here(tid, made) else { return };
        self.restore_after_clone(tid);
        self.add_child(tid, child, libc::PTRACE_EVENT_FORK, time);
        self.follow_early(child, time);
    }

    /// The thread that has this id in the pid namespace of another one.
    fn seen_from_here(&self, maker: Tid, id: Tid) -> Option<Tid> {
        let levels = ids(maker).len();
        if levels <= 1 {
            return Some(id);
        }
        let is_it = |child: &&Tid| ids(**child).get(levels - 1) == Some(&id);
        self.early.keys().find(is_it).copied()
    }

    /// Resumes early threads unrecorded if there is no thread left that could have made them.
    pub(super) fn release_orphans(&mut self, time: u64) {
        let in_clone_since = |task: &TracedTask| match task.state {
            State::InClone { start, .. } => Some(start),
            _ => None,
        };
        let earliest = self.tasks.values().filter_map(in_clone_since).min().unwrap_or(u64::MAX);
        let is_orphan =
            |early: &Early| time.saturating_sub(early.since) > ORPHAN_AFTER_NS && earliest > early.since;
        let early = self.early.iter();
        let orphans: Vec<Tid> = early.filter(|(_, early)| is_orphan(early)).map(|(tid, _)| *tid).collect();
        for tid in orphans {
            let Some(early) = self.early.remove(&tid) else { continue };
            self.summary.orphans += 1;
            if let ChildStatus::Stopped { signal, event } = early.status {
                self.unrecorded.insert(tid);
                self.pass(tid, signal, event, time);
            }
        }
    }

    /// Handles a stop of a thread that is traced but not recorded.
    pub(super) fn pass(&mut self, tid: Tid, signal: i32, event: i32, time: u64) {
        match event {
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                self.at_clone_stop(tid, event, time);
            }
            EVENT_STOP => self.group_stop(tid, signal),
            libc::PTRACE_EVENT_SECCOMP if !may_go_on(tid) => {}
            0 if signal != libc::SIGTRAP | 0x80 => self.resume(tid, signal),
            _ => self.resume(tid, 0),
        }
    }
}

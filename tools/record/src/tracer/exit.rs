//! Ends of threads, and Linux's figures of address spaces.

use super::Tracer;
use super::reuse::Moment;
use super::state::State;
use crate::merge::{Rule, SpaceId};
use crate::perf::{Sample, SampleKind};
use crate::proc::status::Stat;
use crate::proc::{Keyed, maps};
use crate::sys::time::{next_look, now, process_cpu};
use crate::sys::{Tid, ptrace};
use quire_trace::event::{EventKind, ExitStatus, FiguresCause, LinuxFigures};
use quire_trace::format::FaultSource;
use std::time::Duration;

/// Page tables and mappings are counted at most this often: it costs some tens of microseconds.
const SAMPLE_EVERY_NS: u64 = 20_000_000;
/// Reading them takes longer the more mappings there are; the pause before the next time is so many times as
/// long.
const SAMPLE_SHARE: u64 = 50;

impl Tracer<'_> {
    /// A thread is about to end; its address space is still there.
    pub(super) fn exits(&mut self, tid: Tid, time: u64) {
        /// The part of an exit status that has the signal.
        const SIGNAL: u64 = 0x7f;
        self.takes_place_before_end(tid, time);
        self.made_before_end(tid, time);
        self.called_before_end(tid, time);
        let replaced = self.replaced_before_end(tid);
        self.give_up(tid, time);
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
                    self.sample_reuse_before_end(tid, Moment::Exit);
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

    /// The instructions that raised faults can be read for the last time, and under pressure its pages are
    /// told from those of the next program. Else the program need not wait.
    pub(super) fn drain_before_program_ends(&mut self, time: u64) {
        if self.summary.faults == FaultSource::Software || self.rotation.is_some() {
            self.drain(time);
            self.settle(false);
        }
    }

    /// A whole process is about to end. Its threads are killed, and a killed thread may end without another
    /// stop, so none of them might be seen as the last.
    pub(super) fn look_before_end(&mut self, tid: Tid) {
        let Some(task) = self.tasks.get(&tid) else { return };
        let (pid, id) = (task.pid, task.space);
        // A single thread does stop.
        if !self.begun || self.spaces.get(&id).is_none_or(|space| space.users < 2 && !task.exiting) {
            return;
        }
        self.touched_before_end(tid);
        let figures = self.figures(tid, pid, id, FiguresCause::Exit).map(Box::new);
        if let Some(space) = self.spaces.get_mut(&id) {
            space.figures = figures.or(space.figures.take());
        }
    }

    /// Records the figures of an address space whose last thread has ended.
    fn note_figures(&mut self, tid: Tid, space: SpaceId, time: u64) {
        let figures = self.spaces.get_mut(&space).and_then(|space| space.figures.take());
        if let Some(figures) = figures {
            self.note(tid, time, vec![EventKind::Figures(figures)]);
        }
    }

    /// One thread fewer uses the address space; `true` if it was the last.
    pub(super) fn leave_space(&mut self, space: SpaceId) -> bool {
        let Some(space) = self.spaces.get_mut(&space) else { return false };
        space.users = space.users.saturating_sub(1);
        space.users == 0
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
            self.called(tid, call, result, time);
        }
    }

    /// A thread is about to end in the middle of exec. If it has the new program's memory already, which is
    /// not in the trace, this returns the figures of the old one.
    fn replaced_before_end(&mut self, tid: Tid) -> Option<Option<Box<LinuxFigures>>> {
        let State::InExec { figures, stack, .. } = &mut self.tasks.get_mut(&tid)?.state else { return None };
        (Stat::read(tid).start_stack != *stack).then(|| figures.take())
    }

    /// A thread will not return from the call that it is in.
    fn give_up(&mut self, tid: Tid, time: u64) {
        let Some(task) = self.tasks.get_mut(&tid) else { return };
        let (pid, space) = (task.pid, task.space);
        match std::mem::replace(&mut task.state, State::Running) {
            State::InCall(call) => self.merger.cancel(tid, call.start),
            State::InClone { start, .. } => self.merger.cancel(tid, start),
            State::InExec { start, .. } => {
                self.record(tid, (start, time), Rule::KilledExec { pid }, Vec::new());
            }
            State::Running | State::Ignored | State::Held(_) => {}
        }
        self.release(tid, space, time);
    }

    /// A thread has ended.
    pub(super) fn died(&mut self, tid: Tid, status: ExitStatus, time: u64) {
        if tid == self.root {
            self.summary.status = status;
            self.root_ended = Some(time);
        }
        self.takes_place_before_end(tid, time);
        self.give_up(tid, time);
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

    /// Forgets a thread that has ended.
    pub(super) fn remove_task(&mut self, tid: Tid, time: u64) {
        let Some(task) = self.tasks.remove(&tid) else { return };
        self.merger.ended(tid, time);
        self.ended.extend(task.listened.map(|listened| (tid, listened)));
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

    /// Linux's figures of the address space that a stopped thread is in.
    pub(super) fn figures(
        &mut self,
        tid: Tid,
        pid: Tid,
        space: SpaceId,
        cause: FiguresCause,
    ) -> Option<LinuxFigures> {
        let status = Keyed::status(tid);
        // A thread that is on its way out has no address space any more.
        status.word("VmSize")?;
        // Faults are counted for the whole process, whose leader may have ended already; its file remains.
        let stat = Stat::read(pid);
        let process = self.processes.get(&pid)?;
        let (minor_before, major_before) = process.faults_before;
        let space = self.spaces.get(&space)?;
        let (vm_pte, mappings) = (status.bytes("VmPTE"), maps::count(tid));
        let rss_anon = status.bytes("RssAnon");
        self.rotation.iter_mut().for_each(|rotation| rotation.has(rss_anon));
        Some(LinuxFigures {
            cause,
            pid: pid as u32,
            vm_peak: status.bytes("VmPeak"),
            vm_size: status.bytes("VmSize"),
            vm_hwm: status.bytes("VmHWM"),
            vm_rss: status.bytes("VmRSS"),
            rss_anon,
            rss_file: status.bytes("RssFile"),
            rss_shmem: status.bytes("RssShmem"),
            vm_data: status.bytes("VmData"),
            vm_stk: status.bytes("VmStk"),
            vm_pte,
            vm_swap: status.bytes("VmSwap"),
            mappings,
            vm_pte_peak: space.vm_pte_peak.max(vm_pte),
            mappings_peak: space.mappings_peak.max(mappings),
            threads_peak: process.threads_peak,
            minor_faults: stat.minor_faults.saturating_sub(minor_before),
            major_faults: stat.major_faults.saturating_sub(major_before),
            processor_ns: process_cpu(pid).unwrap_or(0).saturating_sub(process.cpu_before),
        })
    }

    /// Notes which threads have made calls without a stop.
    pub(super) fn called_without_stop(&mut self, samples: &[Sample]) {
        let mut last = 0;
        for sample in samples {
            let tid = sample.tid as Tid;
            if tid != last && matches!(sample.what, SampleKind::Return { .. }) {
                last = tid;
                self.called.extend(self.tasks.get(&tid).map(|task| (task.space, tid)));
            }
        }
    }

    /// Counts page tables and mappings where calls were made without a stop.
    pub(super) fn sample_peaks_after_calls(&mut self, time: u64) {
        for (space, tid) in std::mem::take(&mut self.called) {
            self.sample_peaks(tid, space, time);
        }
    }

    /// Counts page tables and mappings from time to time, for their peaks.
    pub(super) fn sample_peaks(&mut self, tid: Tid, space: SpaceId, time: u64) {
        let Some(space) = self.spaces.get_mut(&space) else { return };
        if time < space.next_sample {
            return;
        }
        space.vm_pte_peak = space.vm_pte_peak.max(Keyed::status(tid).bytes("VmPTE"));
        space.mappings_peak = space.mappings_peak.max(maps::count(tid));
        space.next_sample = next_look(time, now(), SAMPLE_SHARE, SAMPLE_EVERY_NS);
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

    #[test]
    fn a_look_takes_a_fiftieth_of_the_time() {
        let next_sample = |before, after| next_look(before, after, SAMPLE_SHARE, SAMPLE_EVERY_NS);
        assert_eq!(next_sample(1_000, 51_000), 51_000 + SAMPLE_EVERY_NS);
        assert_eq!(next_sample(0, 30_000_000), 30_000_000 * 51);
        assert_eq!(next_sample(0, u64::MAX), u64::MAX);
    }
}

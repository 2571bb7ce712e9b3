//! Samples of page faults and calls, and threads from which none come.
//!
//! Threads inherit perf events from their makers. Linux removes them from a thread in exec if the new program
//! is one that only root may look into: setuid and setgid programs, programs of a process whose user or group
//! is not the one that it acts for, and files that cannot be read. So after such an exec the same events are
//! opened for that thread anew. Where that fails, the faults that Linux counts for the process are reported
//! as lost.
//!
//! Where it cannot be found out whether Linux removed them, they are opened anew, too, and what comes from
//! the older ones is left out, also of threads that ended before their last samples were taken out of the
//! ring buffers.

use super::Tracer;
use crate::perf::{Loss, PerfSample, PerfSession, Root, SampleKind};
use crate::proc::status::Stat;
use crate::sys::Tid;
use crate::sys::time::now;
use quire_trace::event::LostCause;
use quire_trace::format::FaultSource;
use std::collections::HashMap;

impl Tracer<'_> {
    /// Hands over all that was recorded; what happens from here on is not in the trace.
    pub(super) fn end_recording(&mut self) {
        let time = now();
        let unheard = self.tasks.iter().filter(|(_, task)| task.event_set.is_none());
        // One thread of each process.
        let unheard: HashMap<Tid, Tid> = unheard.map(|(tid, task)| (task.pid, *tid)).collect();
        for tid in unheard.into_values() {
            self.note_unheard(tid, time);
        }
        self.drain(time);
        self.note_ended_files(time);
        let losses = self.perf.as_mut().map(PerfSession::losses_at_end);
        self.note_losses(losses.unwrap_or_default());
        self.settle(true);
    }

    /// Takes the samples out of the ring buffers.
    pub(super) fn drain(&mut self, time: u64) {
        self.drained = time;
        let mut others = std::mem::take(&mut self.ended);
        let Some(perf) = &mut self.perf else { return };
        let mut samples = std::mem::take(self.merger.samples());
        let old = samples.len();
        let tasks = &self.tasks;
        let is_counted = |tid: Tid, root: Root| {
            let event_set = tasks.get(&tid).and_then(|task| task.event_set);
            // One that is not known yet has all the events of its maker, and each set has all that it
            // does: the first that comes is as good as the others.
            event_set.unwrap_or_else(|| *others.entry(tid).or_insert(root)) == root
        };
        perf.drain(&mut samples, &mut self.accesses, is_counted);
        let losses = perf.take_losses();
        // A thread that is not known yet has the events of its maker, which may have ended.
        if self.early.is_empty() {
            perf.close_unless(|root| tasks.values().any(|task| task.event_set == Some(root)));
        }
        self.summary.samples += (samples.len() - old) as u64;
        let is_page = |sample: &mut PerfSample| matches!(sample.what, SampleKind::Page { .. });
        let pages: Vec<PerfSample> = samples.extract_if(old.., is_page).collect();
        self.note_faulted_in(&samples[old..]);
        self.called_without_stop(&samples[old..]);
        *self.merger.samples() = samples;
        self.note_pages(pages);
        self.note_losses(losses);
    }

    /// The instructions that raised faults can be read for the last time, and under pressure its pages are
    /// told from those of the next program. Else the program need not wait.
    pub(super) fn drain_before_program_ends(&mut self, time: u64) {
        if self.summary.faults == FaultSource::Software || self.rotation.is_some() {
            self.drain(time);
            self.settle(false);
        }
    }

    fn note_losses(&mut self, losses: Vec<Loss>) {
        for Loss { since, count } in losses {
            self.merger.lost(count, LostCause::RingFull, since);
        }
    }

    /// A thread has a new program, and is stopped before its first instruction. If Linux removed its events,
    /// or may have, they are opened anew.
    pub(super) fn reopen_events_after_exec(&mut self, tid: Tid, is_hidden: Option<bool>) {
        let event_set = self.tasks.get(&tid).and_then(|task| task.event_set);
        if is_hidden == Some(false) && event_set.is_some() {
            return;
        }
        // While what comes from the older ones counts.
        self.drain(now());
        let Some(perf) = &mut self.perf else { return };
        let Some(task) = self.tasks.get_mut(&tid) else { return };
        let attached = perf.attach(tid);
        task.event_set = attached.as_ref().ok().copied();
        if let Err(error) = attached {
            if self.summary.unheard_programs == 0 {
                (self.notify)(&format!(
                    "Linux removed the perf events of a program with other privileges, and they cannot be opened anew \
                     ({error}): its page faults are counted, but not recorded"
                ));
            }
            self.summary.unheard_programs += 1;
        }
    }

    /// The new image of a thread was recorded: if it has no events, what follows is missing. How much that is
    /// is known at its end.
    pub(super) fn note_unheard_image(&mut self, tid: Tid) {
        if self.tasks.get(&tid).is_some_and(|task| task.event_set.is_none()) {
            self.merger.lost(0, LostCause::Unheard, now());
        }
    }

    /// A process without events ends, or has another program soon: its page faults are reported as lost.
    pub(super) fn note_unheard(&mut self, tid: Tid, time: u64) {
        let Some(task) = self.tasks.get(&tid).filter(|task| task.event_set.is_none()) else { return };
        let Some(process) = self.processes.get_mut(&task.pid) else { return };
        let stat = Stat::read(task.pid);
        let (minor, major) = process.faults_before;
        let all = (stat.minor_faults + stat.major_faults).saturating_sub(minor + major);
        // An exec that fails is no end: the others are reported already.
        let faults = all.saturating_sub(process.unheard_faults);
        if faults > 0 {
            process.unheard_faults = all;
            self.summary.unheard_faults += faults;
            self.merger.lost(faults, LostCause::Unheard, time);
        }
    }
}

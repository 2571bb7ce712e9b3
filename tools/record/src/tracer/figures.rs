//! Linux's figures of address spaces.

use super::Tracer;
use crate::merge::SpaceId;
use crate::perf::{PerfSample, SampleKind};
use crate::proc::status::Stat;
use crate::proc::{Keyed, maps};
use crate::sys::Tid;
use crate::sys::time::{next_look, now, process_cpu};
use quire_trace::event::{EventKind, FiguresCause, LinuxFigures};

/// Page tables and mappings are counted at most this often: it costs some tens of microseconds.
const SAMPLE_EVERY_NS: u64 = 20_000_000;
/// Reading them takes longer the more mappings there are; the pause before the next time is so many times as
/// long.
const SAMPLE_SHARE: u64 = 50;

impl Tracer<'_> {
    /// A whole process is about to end. Its threads are killed, and a killed thread may end without another
    /// stop, so none of them might be seen as the last.
    pub(super) fn look_before_end(&mut self, tid: Tid) {
        self.look_at_files_before_end();
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
    pub(super) fn note_figures(&mut self, tid: Tid, space: SpaceId, time: u64) {
        let figures = self.spaces.get_mut(&space).and_then(|space| space.figures.take());
        if let Some(figures) = figures {
            self.note(tid, time, vec![EventKind::Figures(figures)]);
        }
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
        self.rotation.iter_mut().for_each(|rotation| rotation.note_anonymous(rss_anon));
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
    pub(super) fn called_without_stop(&mut self, samples: &[PerfSample]) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_takes_a_fiftieth_of_the_time() {
        let next_sample = |before, after| next_look(before, after, SAMPLE_SHARE, SAMPLE_EVERY_NS);
        assert_eq!(next_sample(1_000, 51_000), 51_000 + SAMPLE_EVERY_NS);
        assert_eq!(next_sample(0, 30_000_000), 30_000_000 * 51);
        assert_eq!(next_sample(0, u64::MAX), u64::MAX);
    }
}

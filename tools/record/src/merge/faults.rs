//! Faults whose outcome or place in the order is not known yet.

use super::{PendingFault, SpaceId};
use crate::perf::{PerfSample, SampleKind};
use crate::sys::Tid;
use quire_trace::event::{Denial, Fault, Outcome, TaskId};
use std::collections::{HashMap, VecDeque};

/// A refused fault, known from the signal that it raised.
#[derive(Debug, Clone, Copy)]
struct Refusal {
    tid: Tid,
    time: u64,
    addr: u64,
    denial: Denial,
}

/// Faults in the order of their times.
#[derive(Debug, Default)]
pub(super) struct Faults {
    pending: VecDeque<PendingFault>,
    /// How many faults were ever taken off the front of `pending`.
    taken: u64,
    /// The fault of each thread whose outcome is not known, as its number since the beginning.
    open: HashMap<Tid, u64>,
    refusals: Vec<Refusal>,
    /// When each thread with an open fault was last seen stopped.
    stopped: HashMap<Tid, u64>,
}

impl Faults {
    /// Adds a sample of a fault; samples arrive in the order of their times.
    pub(super) fn sample(&mut self, sample: &PerfSample, task: TaskId, space: SpaceId) {
        let tid = sample.tid as Tid;
        match sample.what {
            SampleKind::Begin { addr, mode, access, inferred } => {
                self.close(tid, Outcome::Unresolved);
                let fault = Fault { addr, access, mode, outcome: Outcome::Unknown, inferred };
                self.open.insert(tid, self.taken + self.pending.len() as u64);
                let (time, cpu) = (sample.time, sample.cpu);
                self.pending.push_back(PendingFault { time, tid, task, space, cpu, fault, open: true });
            }
            SampleKind::End { addr, major } => {
                let opened = self.open.get(&tid).and_then(|number| self.get(*number));
                if opened.is_some_and(|fault| fault.fault.addr == addr) {
                    self.close(tid, if major { Outcome::Major } else { Outcome::Minor });
                }
            }
            SampleKind::Call(_)
            | SampleKind::Return { .. }
            | SampleKind::Lock { .. }
            | SampleKind::Page { .. } => {}
        }
    }

    fn index(&self, number: u64) -> Option<usize> {
        number.checked_sub(self.taken).map(|index| index as usize)
    }

    fn get(&self, number: u64) -> Option<&PendingFault> {
        self.pending.get(self.index(number)?)
    }

    fn close(&mut self, tid: Tid, outcome: Outcome) {
        let Some(number) = self.open.remove(&tid) else { return };
        if let Some(fault) = self.index(number).and_then(|index| self.pending.get_mut(index)) {
            fault.fault.outcome = outcome;
            fault.open = false;
        }
    }

    /// A thread resumes after its last fault.
    pub(super) fn are_over(&mut self, tid: Tid) {
        self.close(tid, Outcome::Unresolved);
    }

    /// A thread was stopped at this time, so every fault that it began before is over.
    pub(super) fn thread_stopped(&mut self, tid: Tid, time: u64) {
        self.stopped.insert(tid, time);
    }

    /// A thread's access to this address was refused, a little before this time.
    pub(super) fn denied(&mut self, tid: Tid, time: u64, addr: u64, denial: Denial) {
        self.refusals.push(Refusal { tid, time, addr, denial });
    }

    /// Closes what is over. Returns the time of the oldest fault that is still open and not older than
    /// `waits_since`. Samples were added up to `horizon`.
    pub(super) fn settle(&mut self, horizon: u64, waits_since: u64) -> u64 {
        let (now, later) = std::mem::take(&mut self.refusals).into_iter().partition(|one| one.time < horizon);
        self.refusals = later;
        for Refusal { tid, time, addr, denial } in Vec::from_iter(now) {
            // Faults are by time, and the thread's last one before the signal is near.
            let before = self.pending.partition_point(|fault| fault.time < time);
            let Some(index) = self.pending.range(..before).rposition(|fault| fault.tid == tid) else {
                continue;
            };
            let fault = &mut self.pending[index];
            if fault.fault.addr != addr {
                continue;
            }
            fault.fault.outcome = Outcome::Denied(denial);
            fault.open = false;
            // The handler may have returned and the thread have faulted again: that fault stays open.
            let number = self.taken + index as u64;
            if self.open.get(&tid) == Some(&number) {
                self.open.remove(&tid);
            }
        }
        let mut oldest = u64::MAX;
        for (tid, number) in self.open.clone() {
            let Some(time) = self.get(number).map(|fault| fault.time) else {
                self.open.remove(&tid);
                continue;
            };
            let stopped = self.stopped.get(&tid).copied().unwrap_or(0);
            if stopped > time && stopped < horizon {
                self.close(tid, Outcome::Unresolved);
            } else if time <= waits_since {
                self.close(tid, Outcome::Unknown);
            } else {
                oldest = oldest.min(time);
            }
        }
        let open = &self.open;
        self.stopped.retain(|tid, time| *time >= horizon || open.contains_key(tid));
        oldest
    }

    /// The faults from `start` to `end`.
    pub(super) fn within_mut(&mut self, start: u64, end: u64) -> &mut [PendingFault] {
        let pending = self.pending.make_contiguous();
        let first = pending.partition_point(|fault| fault.time < start);
        let last = pending.partition_point(|fault| fault.time <= end);
        &mut pending[first..last.max(first)]
    }

    /// Takes the faults before `limit`.
    pub(super) fn take_before(&mut self, limit: u64) -> impl Iterator<Item = PendingFault> {
        let count = self.pending.partition_point(|fault| fault.time < limit);
        self.taken += count as u64;
        self.pending.drain(..count).filter(|fault| !fault.is_dropped())
    }
}

//! Reports of tracees that are not handled yet.
//!
//! Linux reports the newest tracee first. If two new threads stop all the time, an older one would starve. So
//! all pending reports are collected first, and then handled in that order: no thread has two turns before
//! each of the others had one.

use crate::sys::Tid;
use crate::sys::wait::{ChildStatus, Waited};
use std::collections::VecDeque;
use std::io;

/// A report of a thread, and when it was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PendingStatus {
    pub(super) tid: Tid,
    pub(super) status: ChildStatus,
    pub(super) time: u64,
}

/// The reports, the oldest first.
#[derive(Debug, Default)]
pub(super) struct StatusQueue {
    pending: VecDeque<PendingStatus>,
    /// How many were taken out since the queue was last empty.
    taken: usize,
}

impl StatusQueue {
    pub(super) fn push(&mut self, tid: Tid, status: ChildStatus, time: u64) {
        self.pending.push_back(PendingStatus { tid, status, time });
    }

    /// Adds a report, and then all that `poll` finds pending. Returns `false` if nothing is left to wait for.
    pub(super) fn collect(
        &mut self,
        first: Waited,
        now: impl Fn() -> u64,
        mut poll: impl FnMut() -> io::Result<Option<Waited>>,
    ) -> io::Result<bool> {
        let mut waited = first;
        loop {
            match waited {
                Waited::Thread(tid, status) => self.push(tid, status, now()),
                Waited::Interrupted => return Ok(true),
                Waited::NoneLeft => return Ok(!self.is_empty()),
            }
            let Some(more) = poll()? else { return Ok(true) };
            waited = more;
        }
    }

    /// Whether there is a newer report of this thread than the one taken out.
    pub(super) fn has(&self, tid: Tid) -> bool {
        self.pending.iter().any(|pending| pending.tid == tid)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Takes out the oldest. `newer` checks for a newer report of a thread.
    ///
    /// A thread that was killed while it was stopped has continued to its exit stop, so its old stop must
    /// not be handled any more: resuming the thread from it would skip the exit stop. An exec event and
    /// the end of a thread are never skipped.
    pub(super) fn pop(
        &mut self,
        mut newer: impl FnMut(Tid) -> Option<(ChildStatus, u64)>,
    ) -> Option<PendingStatus> {
        loop {
            let Some(oldest) = self.pending.pop_front() else {
                self.taken = 0;
                return None;
            };
            self.taken += 1;
            let ChildStatus::Stopped { event, .. } = oldest.status else { return Some(oldest) };
            // The first report has just been received.
            if self.taken > 1
                && !self.has(oldest.tid)
                && let Some((status, time)) = newer(oldest.tid)
            {
                self.push(oldest.tid, status, time);
            }
            if event == libc::PTRACE_EVENT_EXEC || !self.has(oldest.tid) {
                return Some(oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeSet, HashMap};

    fn stop(event: i32) -> ChildStatus {
        ChildStatus::Stopped { signal: libc::SIGTRAP, event }
    }

    /// Takes out all; `killed` has continued to its exit stop in between.
    fn all(queue: &mut StatusQueue, mut killed: Option<Tid>) -> Vec<(Tid, ChildStatus)> {
        let mut taken = Vec::new();
        while let Some(pending) = queue
            .pop(|tid| killed.take_if(|killed| *killed == tid).map(|_| (stop(libc::PTRACE_EVENT_EXIT), 9)))
        {
            taken.push((pending.tid, pending.status));
        }
        taken
    }

    #[test]
    fn the_oldest_comes_first() {
        let mut queue = StatusQueue::default();
        let call = stop(libc::PTRACE_EVENT_SECCOMP);
        for tid in [7, 5, 6] {
            queue.push(tid, call, 1);
        }
        assert!(queue.has(5) && !queue.has(4));
        assert_eq!(all(&mut queue, None), [(7, call), (5, call), (6, call)]);
        assert!(queue.is_empty());
    }

    /// All stop again as soon as they are resumed, and Linux reports the newest first.
    #[test]
    fn an_old_thread_has_as_many_turns_as_young_ones() {
        const TURNS: usize = 100;
        let newest_first = [9, 8, 7, 6, 5];
        let mut stopped: BTreeSet<Tid> = newest_first.into();
        let mut queue = StatusQueue::default();
        let mut turns: HashMap<Tid, usize> = HashMap::new();
        for _ in 0..TURNS * newest_first.len() {
            if queue.is_empty() {
                let mut report =
                    || stopped.pop_last().map(|tid| Waited::Thread(tid, stop(libc::PTRACE_EVENT_SECCOMP)));
                let first = report().unwrap();
                assert!(queue.collect(first, || 1, || Ok(report())).unwrap());
            }
            let pending = queue.pop(|_| None).unwrap();
            *turns.entry(pending.tid).or_default() += 1;
            stopped.insert(pending.tid);
        }
        assert_eq!(turns, newest_first.map(|tid| (tid, TURNS)).into());
    }

    #[test]
    fn reports_are_collected_until_none_is_left() {
        let mut queue = StatusQueue::default();
        assert!(!queue.collect(Waited::NoneLeft, || 1, || Ok(None)).unwrap());
        assert!(queue.collect(Waited::Interrupted, || 1, || Ok(None)).unwrap());
        let ended = Waited::Thread(7, ChildStatus::Exited(0));
        assert!(queue.collect(ended, || 1, || Ok(Some(Waited::NoneLeft))).unwrap(), "it is to be handled");
        assert_eq!(all(&mut queue, None), [(7, ChildStatus::Exited(0))]);
    }

    #[test]
    fn a_stop_that_a_killed_thread_has_left_is_passed_over() {
        let (call, exec, exit) =
            (stop(libc::PTRACE_EVENT_SECCOMP), stop(libc::PTRACE_EVENT_EXEC), stop(libc::PTRACE_EVENT_EXIT));
        let mut queue = StatusQueue::default();
        for (tid, status) in [(7, call), (5, call), (6, call)] {
            queue.push(tid, status, 1);
        }
        assert_eq!(all(&mut queue, Some(5)), [(7, call), (6, call), (5, exit)]);
        // There were two reports already.
        for (tid, status) in [(7, call), (5, call), (7, ChildStatus::Killed(9))] {
            queue.push(tid, status, 1);
        }
        assert_eq!(all(&mut queue, None), [(5, call), (7, ChildStatus::Killed(9))]);
        // The leader of a process was stopped until another thread executed a program and took its id.
        for (tid, status) in [(7, exit), (7, exec), (7, exit)] {
            queue.push(tid, status, 1);
        }
        assert_eq!(all(&mut queue, None), [(7, exec), (7, exit)]);
        // The id of a thread that has ended belongs to another one.
        for (tid, status) in [(7, ChildStatus::Exited(0)), (7, call)] {
            queue.push(tid, status, 1);
        }
        assert_eq!(all(&mut queue, None), [(7, ChildStatus::Exited(0)), (7, call)]);
    }
}

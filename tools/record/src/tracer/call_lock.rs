//! One memory call at a time in each address space.
//!
//! A thread that reaches a memory call while another thread of its address space is in one stays stopped
//! until that one has returned. So the calls are in the trace in the order in which they took effect.

use super::Tracer;
use super::state::State;
use crate::merge::SpaceId;
use crate::proc::status::Stat;
use crate::sys::Tid;

/// A call that sleeps and keeps others waiting longer than this is overtaken: it may itself wait for one of
/// them.
const STUCK_NS: u64 = 100_000_000;
/// A call that does not sleep is overtaken after this: it is at work, or waits for a CPU or for the recorder.
const STUCK_AWAKE_NS: u64 = 2_000_000_000;

impl Tracer<'_> {
    /// Requests the right to make a memory call; if another thread has it, the caller must leave the thread
    /// stopped.
    pub(super) fn acquire(&mut self, tid: Tid, space: SpaceId, time: u64) -> bool {
        let Some(space) = self.spaces.get_mut(&space) else { return true };
        if space.holder.is_some() {
            space.waiting.push_back(tid);
            return false;
        }
        space.holder = Some((tid, time));
        true
    }

    /// Releases the right and resumes the next thread.
    pub(super) fn release(&mut self, tid: Tid, space: SpaceId, time: u64) {
        let Some(space_now) = self.spaces.get_mut(&space) else { return };
        space_now.waiting.retain(|waiting| *waiting != tid);
        if space_now.holder.is_none_or(|(holder, _)| holder != tid) {
            return;
        }
        space_now.holder = None;
        self.begin_next_waiting(space, time);
    }

    fn begin_next_waiting(&mut self, space: SpaceId, time: u64) {
        while let Some(space_now) = self.spaces.get_mut(&space) {
            let Some(tid) = space_now.waiting.pop_front() else { return };
            let Some(task) = self.tasks.get_mut(&tid) else { continue };
            let State::AwaitsCallLock(entry) = task.state else { continue };
            space_now.holder = Some((tid, time));
            task.state = State::Running;
            self.make_call(tid, entry);
            return;
        }
    }

    /// Lets waiting calls overtake those that have kept them waiting for too long.
    pub(super) fn overtake_stuck_calls(&mut self, time: u64) {
        let passed: Vec<SpaceId> = self
            .spaces
            .iter_mut()
            .filter(|(_, space)| !space.waiting.is_empty())
            .filter(|(_, space)| {
                space.holder.is_some_and(|(holder, since)| {
                    is_stuck(time.saturating_sub(since), || Stat::read(holder).sleeps)
                })
            })
            .map(|(id, space)| {
                space.holder = None;
                *id
            })
            .collect();
        for space in passed {
            self.summary.unordered_calls += 1;
            self.begin_next_waiting(space, time);
        }
    }
}

/// Whether a call that has taken this long is overtaken.
fn is_stuck(taken_ns: u64, sleeps: impl FnOnce() -> bool) -> bool {
    taken_ns > STUCK_NS && (taken_ns > STUCK_AWAKE_NS || sleeps())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_waits_for_a_cpu_is_not_passed_before_one_that_sleeps() {
        const MS: u64 = 1_000_000;
        assert!(!is_stuck(100 * MS, || true));
        assert!(is_stuck(101 * MS, || true));
        assert!(!is_stuck(2000 * MS, || false));
        assert!(is_stuck(2001 * MS, || false));
    }
}

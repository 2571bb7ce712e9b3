//! One memory call at a time in each address space.
//!
//! A thread that reaches a memory call while another thread of its address space is in one stands still until
//! that one is out. So the order in which the trace has the calls is the order in which they took effect.

use super::Tracer;
use super::state::State;
use crate::record::merge::SpaceId;
use crate::record::sys::Tid;

/// A call that keeps others waiting longer than this is passed: it may itself wait for one of them.
const PATIENCE_NS: u64 = 100_000_000;

impl Tracer<'_> {
    /// Asks for the right to make a memory call; if another thread has it, the caller must leave the thread
    /// standing.
    pub(super) fn acquire(&mut self, tid: Tid, space: SpaceId, time: u64) -> bool {
        let Some(space) = self.spaces.get_mut(&space) else { return true };
        if space.holder.is_some() {
            space.waiting.push_back(tid);
            return false;
        }
        space.holder = Some((tid, time));
        true
    }

    /// Gives the right back and lets the next thread go.
    pub(super) fn release(&mut self, tid: Tid, space: SpaceId, time: u64) {
        let Some(space_now) = self.spaces.get_mut(&space) else { return };
        space_now.waiting.retain(|waiting| *waiting != tid);
        if space_now.holder.is_none_or(|(holder, _)| holder != tid) {
            return;
        }
        space_now.holder = None;
        self.next_in_line(space, time);
    }

    fn next_in_line(&mut self, space: SpaceId, time: u64) {
        while let Some(space_now) = self.spaces.get_mut(&space) {
            let Some(tid) = space_now.waiting.pop_front() else { return };
            let Some(task) = self.tasks.get_mut(&tid) else { continue };
            let State::Held(entry) = task.state else { continue };
            space_now.holder = Some((tid, time));
            task.state = State::Running;
            self.make_call(tid, entry);
            return;
        }
    }

    /// Passes calls that have kept others waiting for too long.
    pub(super) fn let_the_patient_go(&mut self, time: u64) {
        let stuck = |(_, since): (Tid, u64)| time.saturating_sub(since) > PATIENCE_NS;
        let spaces = self.spaces.iter_mut();
        let passed: Vec<SpaceId> = spaces
            .filter(|(_, space)| !space.waiting.is_empty() && space.holder.is_some_and(stuck))
            .map(|(id, space)| {
                space.holder = None;
                *id
            })
            .collect();
        for space in passed {
            self.followed.unordered_calls += 1;
            self.next_in_line(space, time);
        }
    }
}

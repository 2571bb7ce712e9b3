//! Trying another order of calls that overlap, before a difference is counted.
//!
//! A call takes effect between its start and its end, and stands at one moment in between. Where the windows
//! of calls of two threads overlap, one of the two may have been first. Linux changes mappings under one
//! lock, so the windows of two calls that change them do not overlap; but a call that only looks at mappings,
//! such as the madvise that drops pages, overlaps with one that changes them. So if a call has another result
//! than Linux gave it, the replay asks in a space of the same mappings whether it would have that result
//! after a change that stands later, or before one that stood earlier.

use super::Run;
use crate::event::{Call, Event, EventKind, TaskId, Window};
use crate::replay::overlap::{LaterCall, Upcoming, changed_by, depends_on, meet};
use crate::replay::trial::{self, Trial};
use quire_mm::space::Mapping;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;

/// Changes that a call is tried with, or without.
const MOST_TRIED: usize = 64;
/// Trials in one replay: each builds a space. A look at so many mappings counts as one.
const MOST_TRIALS: u64 = 1 << 16;
const MAPPINGS_OF_TRIAL: u64 = 256;
/// Mappings that are kept of a change.
const MOST_MAPPINGS: usize = 1 << 10;

/// A change that was made, and what was mapped before.
struct Change {
    task: TaskId,
    space: usize,
    window: Window,
    ranges: Vec<Range<u64>>,
    before: Vec<Mapping>,
}

/// What is known of calls whose order is not.
#[derive(Default)]
pub(super) struct Order {
    /// Windows of calls that are the next event of their thread.
    windows: HashMap<TaskId, Window>,
    /// The last changes that overlapped with others.
    made: VecDeque<Change>,
    /// Numbers of events that were made before their place.
    advanced: HashSet<u64>,
    trials: u64,
}

impl Order {
    /// The next call of `task` has this window.
    pub(super) fn note(&mut self, task: TaskId, window: Window) {
        self.windows.insert(task, window);
    }

    /// The window of a call that is made now, if it overlaps with others.
    pub(super) fn window_of(&mut self, task: TaskId) -> Option<Window> {
        if self.windows.is_empty() { None } else { self.windows.remove(&task) }
    }

    /// Whether the event of this number was made before.
    pub(super) fn was_made(&mut self, number: u64) -> bool {
        !self.advanced.is_empty() && self.advanced.remove(&number)
    }
}

/// In which order a call has its recorded result.
pub(super) enum Found {
    /// After this change, which stands later.
    After(Box<LaterCall>),
    /// Before a change that stands earlier.
    Before,
}

impl Run<'_> {
    /// Looks what is mapped where `call`, which overlaps with others, is about to change it.
    pub(super) fn note_change(&mut self, task: TaskId, call: &Call, window: Window) {
        let ranges = changed_by(call);
        let Some(state) = self.task(task).filter(|_| !ranges.is_empty()) else { return };
        let Some(space) = &state.space else { return };
        let (visited, number) = (space.figures().mappings / MAPPINGS_OF_TRIAL, state.number);
        if self.order.trials + visited > MOST_TRIALS {
            return;
        }
        let (before, space) = (trial::mappings_in(space, &ranges), number);
        self.order.trials += visited;
        if before.len() > MOST_MAPPINGS {
            return;
        }
        let made = &mut self.order.made;
        made.push_back(Change { task, space, window, ranges, before });
        if made.len() > MOST_TRIED {
            made.pop_front();
        }
    }

    /// The order in which `call` has its recorded result, where it has another one as it stands.
    pub(super) fn other_order(
        &mut self,
        task: TaskId,
        call: &Call,
        window: Window,
        upcoming: &mut dyn Upcoming,
    ) -> Option<Found> {
        let range = depends_on(call)?;
        let number = self.task(task)?.number;
        let is_here = |run: &Self, other: TaskId| {
            other != task && run.task(other).is_some_and(|other| other.number == number)
        };
        let later = upcoming.changes().iter().filter(|later| {
            later.window.overlaps(&window)
                && is_here(self, later.task)
                && changed_by(&later.call).iter().any(|changed| meet(changed, &range))
        });
        for later in later.take(MOST_TRIED).cloned().collect::<Vec<_>>() {
            if !self.order.advanced.contains(&later.number) && self.agrees_after(task, call, &range, &later) {
                return Some(Found::After(Box::new(later)));
            }
        }
        let earlier = |change: &&Change| {
            change.window.overlaps(&window)
                && change.task != task
                && change.space == number
                && change.ranges.iter().any(|changed| meet(changed, &range))
        };
        let earlier: Vec<usize> =
            (0..self.order.made.len()).filter(|&n| earlier(&&self.order.made[n])).collect();
        // The last ones first: it may have been before several.
        let found = earlier.into_iter().rev().any(|change| self.agrees_before(task, call, &range, change));
        found.then_some(Found::Before)
    }

    /// Whether `call` as it stands has its recorded result.
    pub(super) fn agrees(&mut self, task: TaskId, call: &Call) -> bool {
        let Some(range) = depends_on(call) else { return true };
        self.tried(task, |run| {
            let space = run.task(task)?.space.as_ref()?;
            let mappings = trial::mappings_in(space, std::slice::from_ref(&range));
            Some(Trial::new(run.machine, space, &mappings)?.agrees(call))
        })
        .unwrap_or(true)
    }

    fn agrees_after(&mut self, task: TaskId, call: &Call, range: &Range<u64>, later: &LaterCall) -> bool {
        self.tried(task, |run| {
            let space = run.task(task)?.space.as_ref()?;
            let mut ranges = changed_by(&later.call);
            ranges.push(range.clone());
            let trial = Trial::new(run.machine, space, &trial::mappings_in(space, &ranges))?;
            trial.change(&later.call);
            Some(trial.agrees(call))
        })
        .unwrap_or(false)
    }

    fn agrees_before(&mut self, task: TaskId, call: &Call, range: &Range<u64>, change: usize) -> bool {
        self.tried(task, |run| {
            let space = run.task(task)?.space.as_ref()?;
            let now = trial::mappings_in(space, std::slice::from_ref(range));
            // What this change and those after it changed is as it was before the first of them.
            let mut mappings = now;
            for change in run
                .order
                .made
                .iter()
                .skip(change)
                .rev()
                .filter(|made| made.space == run.order.made[change].space)
            {
                mappings = trial::outside(mappings, &change.ranges);
                for range in &change.ranges {
                    mappings.extend(trial::inside(&change.before, range));
                }
            }
            Some(Trial::new(run.machine, space, &mappings)?.agrees(call))
        })
        .unwrap_or(false)
    }

    /// A trial on the CPU of `task`, if there may be another.
    fn tried(&mut self, task: TaskId, of: impl FnOnce(&Self) -> Option<bool>) -> Option<bool> {
        self.order.trials += 1;
        if self.order.trials > MOST_TRIALS {
            return None;
        }
        let cpu = self.schedule.cpu_of(task).unwrap_or(0);
        self.vcpus[cpu].run(|| of(self))
    }

    /// Makes a call before its place.
    pub(super) fn advance(&mut self, later: LaterCall, time_ns: u64, upcoming: &mut dyn Upcoming) {
        let LaterCall { number, window, task, cpu, call } = later;
        self.order.advanced.insert(number);
        let event = Event { time_ns, task, cpu, kind: EventKind::Call(call.clone()) };
        self.order.note(task, window);
        self.make(&event, &call, upcoming);
    }
}

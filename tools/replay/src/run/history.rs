//! What was changed lately, and what was found since: the past of calls whose order is not known.

use crate::asked::Asked;
use crate::trial::Actor;
use quire_mm::space::Mapping;
use quire_trace::event::{TaskId, Window};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// Changes that are kept, and changes ahead that a call is tried with.
pub(super) const MOST_CHANGES: usize = 64;
/// Changes that are kept, and what was found among them.
const MOST_KEPT: usize = 1 << 10;

/// A call that was made, and what was mapped before where it changed that. Or what was only found.
pub(super) struct Change {
    pub(super) task: TaskId,
    pub(super) space: usize,
    pub(super) window: Window,
    pub(super) asked: Asked,
    pub(super) by: Actor,
    pub(super) ranges: Vec<Range<u64>>,
    pub(super) before: Vec<Mapping>,
    pub(super) program_break: u64,
    /// Threads that have made calls after it, which were before it by their place.
    pub(super) followed_by: Vec<TaskId>,
}

impl Change {
    /// It only looked, and is here for what it found.
    pub(super) fn looks(&self) -> bool {
        self.ranges.is_empty()
    }
}

/// A change that was made.
pub(super) enum Made {
    Known(Box<Change>),
    /// In this space; what was mapped before it is not known.
    Unknown(usize, TaskId, Window),
}

impl Made {
    /// Whether it only looked.
    pub(super) fn looks(&self) -> bool {
        matches!(self, Self::Known(change) if change.looks())
    }
}

/// The past, as far as something that comes may have been before it.
#[derive(Default)]
pub(super) struct History {
    /// The last changes that overlapped with others, and what other threads found since the first of them.
    made: VecDeque<Change>,
    /// By space and thread the last end of a change that was made, and of which is not known any more what it
    /// changed.
    forgotten: HashMap<usize, HashMap<TaskId, u64>>,
}

impl History {
    /// What is kept, in the order in which it was made.
    pub(super) fn made(&self) -> &VecDeque<Change> {
        &self.made
    }

    /// Whether a change of `space` by another thread than `task` that overlaps with `window` is kept.
    pub(super) fn overlaps(&self, space: usize, task: TaskId, window: &Window) -> bool {
        self.made.iter().any(|change| {
            !change.looks() && change.space == space && change.task != task && change.window.overlaps(window)
        })
    }

    /// Whether a change of `space` by another thread than `task` is not kept that ended after `start_ns`.
    pub(super) fn lacks(&self, space: usize, task: TaskId, start_ns: u64) -> bool {
        let forgotten = self.forgotten.get(&space);
        forgotten.is_some_and(|ends| ends.iter().any(|(&of, &end)| of != task && end >= start_ns))
    }

    /// Keeps what was made.
    pub(super) fn keep(&mut self, made: Made) {
        match made {
            Made::Known(change) => self.made.push_back(*change),
            Made::Unknown(space, task, window) => {
                let (gone, kept): (VecDeque<_>, _) =
                    self.made.drain(..).partition(|other| other.space == space);
                self.made = kept;
                for change in gone.iter().filter(|change| !change.looks()) {
                    self.forget(space, change.task, change.window);
                }
                self.forget(space, task, window);
            }
        }
        let mut changes = self.made.iter().filter(|change| !change.looks()).count();
        // What was found before the first change is of no use.
        while changes > MOST_CHANGES
            || self.made.len() > MOST_KEPT
            || self.made.front().is_some_and(Change::looks)
        {
            let Some(first) = self.made.pop_front() else { break };
            if !first.looks() {
                changes -= 1;
                self.forget(first.space, first.task, first.window);
            }
        }
    }

    /// This change of `space` cannot be undone.
    fn forget(&mut self, space: usize, task: TaskId, window: Window) {
        let end = self.forgotten.entry(space).or_default().entry(task).or_default();
        *end = window.end_ns.max(*end);
    }

    /// A change of `space` that overlaps with none: no call that comes is before it, or before those that
    /// were made until now.
    pub(super) fn fix(&mut self, space: usize) {
        if !self.made.is_empty() {
            self.made.retain(|change| change.space != space);
        }
        self.forgotten.remove(&space);
    }
}

//! Threads of a replay, and their privileges.

use crate::space::HostSpace;
use quire_mm::space::{Limits, Rights};
use quire_trace::event::{CloneFacts, TaskId};
use std::rc::Rc;

/// A thread.
pub(super) struct Task<'m> {
    pub(super) process: usize,
    /// The number of its address space: they are counted from 0 as the trace makes them.
    pub(super) number: usize,
    /// Threads of one process, and a vfork's child, share it. `None` if no space could be created.
    pub(super) space: Option<Rc<HostSpace<'m>>>,
    /// The thread's privileges; another one of its process may have others.
    pub(super) rights: Rights,
}

/// Threads by their number. A file may claim any number, so that there is no slot for each: slots are made
/// for some neighbours at once.
#[derive(Default)]
pub(super) struct Tasks<'m>(Vec<Option<Box<Neighbours<'m>>>>);

type Neighbours<'m> = [Option<Task<'m>>; NEIGHBOURS];

const NEIGHBOURS: usize = 16;
/// The most threads that a recording can have at once is Linux's `PID_MAX_LIMIT`; more in all are not
/// expected.
pub(super) const MOST_TASKS: usize = 1 << 22;

/// Whether a thread can have made this one. A damaged trace can name a thread that is not one, or the maker.
pub(super) fn can_be_made(clone: &CloneFacts, by: TaskId) -> bool {
    (clone.child.0 as usize) < MOST_TASKS && clone.child != by
}

impl<'m> Tasks<'m> {
    /// The slot of this number, if there is one.
    pub(super) fn get(&self, number: usize) -> Option<&Option<Task<'m>>> {
        Some(&self.0.get(number / NEIGHBOURS)?.as_ref()?[number % NEIGHBOURS])
    }

    /// The slot of this number, to be changed.
    pub(super) fn get_mut(&mut self, number: usize) -> Option<&mut Option<Task<'m>>> {
        Some(&mut self.0.get_mut(number / NEIGHBOURS)?.as_mut()?[number % NEIGHBOURS])
    }

    /// The slot of this number, made if there is none. A number that no Linux gives out has none.
    pub(super) fn slot(&mut self, number: usize) -> Option<&mut Option<Task<'m>>> {
        if number >= MOST_TASKS {
            return None;
        }
        let place = number / NEIGHBOURS;
        if place >= self.0.len() {
            self.0.resize_with(place + 1, || None);
        }
        let neighbours = self.0[place].get_or_insert_with(|| Box::new([const { None }; NEIGHBOURS]));
        Some(&mut neighbours[number % NEIGHBOURS])
    }

    /// All threads with their numbers, in the order of these.
    pub(super) fn all(&self) -> impl Iterator<Item = (usize, &Task<'m>)> {
        let slots = self.0.iter().enumerate().filter_map(|(place, slots)| Some((place, slots.as_ref()?)));
        slots.flat_map(|(place, slots)| {
            let numbered = (place * NEIGHBOURS..).zip(slots.iter());
            numbered.filter_map(|(number, task)| Some((number, task.as_ref()?)))
        })
    }
}

/// A thread's own handle of its space.
pub(super) struct Acting<'t, 'm> {
    shared: &'t HostSpace<'m>,
    /// Where the thread's privileges differ from those of the handle that it shares.
    own: Option<HostSpace<'m>>,
}

impl<'m> std::ops::Deref for Acting<'_, 'm> {
    type Target = HostSpace<'m>;

    fn deref(&self) -> &Self::Target {
        self.own.as_ref().unwrap_or(self.shared)
    }
}

impl<'m> Task<'m> {
    /// The space as this thread uses it, whose process has these limits.
    pub(super) fn acting(&self, limits: &Limits) -> Option<Acting<'_, 'm>> {
        let shared = self.space.as_deref()?;
        // A child of vfork uses the space of another process.
        if shared.limits() != *limits {
            shared.set_limits(*limits);
        }
        let own = (shared.rights() != self.rights).then(|| shared.acting_with(self.rights));
        Some(Acting { shared, own })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_only_a_file_claims_takes_few_slots() {
        let mut tasks = Tasks::default();
        let task = |process| Task { process, number: 0, space: None, rights: Rights::empty() };
        for number in [MOST_TASKS - 1, 3, 700] {
            assert!(tasks.slot(number).is_some_and(|slot| slot.replace(task(number)).is_none()));
        }
        assert!(tasks.slot(MOST_TASKS).is_none() && tasks.get(MOST_TASKS).is_none());
        assert_eq!(tasks.0.iter().flatten().count() * NEIGHBOURS, 48);
        let found: Vec<_> = tasks.all().map(|(number, task)| (number, task.process)).collect();
        assert_eq!(found, [3, 700, MOST_TASKS - 1].map(|number| (number, number)));
        assert!(tasks.get(4).is_some_and(Option::is_none) && tasks.get(400).is_none());
    }
}

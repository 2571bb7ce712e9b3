//! Changes of mappings that end so long after they began that a look ahead does not come to them.
//!
//! A large mlock locks when it begins, and stands where it ended. What it refuses other threads meanwhile
//! stands before it, and can be any number of events. So these changes are noted while a recording is looked
//! through.

use super::overlap::changes;
use quire_trace::event::{CallDetail, Event, EventKind, FileChange, TaskId, Window};
use std::collections::{HashMap, VecDeque};
use std::mem::{size_of, size_of_val};

/// Events that are surely near enough for a look ahead, and their bytes.
const NEAR_EVENTS: u64 = 1 << 17;
const NEAR_BYTES: u64 = 32 << 20;
/// Events between two whose time is kept, and their bytes.
const MARK_EVENTS: u64 = 1 << 10;
const MARK_BYTES: u64 = 1 << 20;
/// Changes that are kept, and their bytes.
const MOST_CHANGES: usize = 1 << 10;
const MOST_BYTES: usize = 1 << 20;

/// A change that may be too far away to be seen from where it began.
#[derive(Debug)]
pub(super) struct FarChange {
    /// The number of its call. That of its window is one less.
    pub(super) number: u64,
    pub(super) window: Window,
    /// The events.
    window_event: Event,
    call: Event,
    /// The last event of its thread before it that may not be passed.
    pub(super) follows: Option<u64>,
}

impl FarChange {
    /// The event of this number, if it is one of its two.
    pub(super) fn get(&self, number: u64) -> Option<&Event> {
        match self.number.checked_sub(number)? {
            0 => Some(&self.call),
            1 => Some(&self.window_event),
            _ => None,
        }
    }

    pub(super) fn task(&self) -> TaskId {
        self.call.task
    }
}

/// Those of a recording, by their numbers.
#[derive(Debug, Default)]
pub(super) struct FarChanges {
    found: Vec<FarChange>,
    /// What they take.
    held: usize,
    events: u64,
    bytes: u64,
    /// Numbers and times of some of the last events, and how many bytes came before each.
    marks: VecDeque<(u64, u64, u64)>,
    /// The time of the last event that is not surely near.
    far_until: Option<u64>,
    /// The event before, if it is a window.
    window: Option<(Window, Event)>,
    /// Of each thread the last event that may not be passed.
    last: HashMap<TaskId, u64>,
}

impl FarChanges {
    pub(super) fn found(&self) -> &[FarChange] {
        &self.found
    }

    /// Looks at the next event of the recording.
    pub(super) fn add(&mut self, event: &Event) {
        let number = self.events;
        let is_due = |&(at, _, bytes): &(u64, u64, u64)| {
            number >= at + MARK_EVENTS || self.bytes >= bytes.saturating_add(MARK_BYTES)
        };
        if self.marks.back().is_none_or(is_due) {
            self.marks.push_back((number, event.time_ns, self.bytes));
        }
        while let Some(&(at, time_ns, bytes)) = self.marks.front()
            && (number >= at + NEAR_EVENTS || self.bytes >= bytes.saturating_add(NEAR_BYTES))
        {
            self.far_until = Some(time_ns);
            self.marks.pop_front();
        }
        let given = self.window.take().filter(|(_, given)| given.task == event.task);
        match &event.kind {
            EventKind::Window(window) => self.window = Some((*window, event.clone())),
            EventKind::Call(call) => {
                if let Some((window, window_event)) = given
                    && self.far_until.is_some_and(|until| window.start_ns <= until)
                    && changes(call)
                {
                    self.keep(number, window, window_event, event);
                }
                self.last.insert(event.task, number);
            }
            EventKind::Exit(_) => drop(self.last.remove(&event.task)),
            EventKind::Clone(_) | EventKind::Exec(_) => drop(self.last.insert(event.task, number)),
            // It is passed, or looked at where it is seen.
            _ => {}
        }
        self.events += 1;
        self.bytes = self.bytes.saturating_add(bytes_of(event) as u64);
    }

    fn keep(&mut self, number: u64, window: Window, window_event: Event, call: &Event) {
        let bytes = bytes_of(call);
        if self.found.len() < MOST_CHANGES && self.held + bytes <= MOST_BYTES {
            self.held += bytes;
            let follows = self.last.get(&call.task).copied();
            self.found.push(FarChange { number, window, window_event, call: call.clone(), follows });
        }
    }
}

/// What an event takes in memory. A file is counted for each call that maps it.
pub(super) fn bytes_of(event: &Event) -> usize {
    let more = match &event.kind {
        EventKind::Call(call) => match &call.detail {
            CallDetail::File(file) => size_of_val(&**file) + file.name.len(),
            CallDetail::Ranges(ranges) => size_of_val(&**ranges),
            CallDetail::Name(name) => name.as_ref().map_or(0, |name| name.len()),
            _ => 0,
        },
        EventKind::Exec(image) => {
            let args = image.args.iter().map(|arg| size_of_val(arg) + arg.len());
            let mappings = image
                .mappings
                .iter()
                .map(|mapping| size_of_val(mapping) + mapping.name.len() + size_of_val(&*mapping.resident));
            size_of_val(&**image) + image.program.len() + args.chain(mappings).sum::<usize>()
        }
        EventKind::Figures(figures) => size_of_val(&**figures),
        EventKind::Reuse(reuse) => size_of_val(&*reuse.runs),
        EventKind::Contents(sample) => size_of_val(&**sample) + size_of_val(&*sample.pages),
        EventKind::File(file) => {
            let runs = match &file.change {
                FileChange::Cached(runs) | FileChange::Evicted(runs) => size_of_val(&**runs),
                FileChange::Size { .. } | FileChange::Punched(_) | FileChange::Gone => 0,
            };
            size_of_val(&**file) + runs
        }
        _ => 0,
    };
    size_of::<Event>() + more
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_trace::event::{Call, CallDetail};

    fn call(number: i64) -> EventKind {
        let args = [0x1000, 0x1000, 0, 0, 0, 0];
        EventKind::Call(Call { number: number as u32, args, result: 0, detail: CallDetail::None })
    }

    fn add(all: &mut FarChanges, task: u32, kind: EventKind) {
        let event = Event { time_ns: all.events, task: TaskId(task), cpu: 0, kind };
        all.add(&event);
    }

    fn window(start_ns: u64) -> EventKind {
        EventKind::Window(Window { start_ns, end_ns: u64::MAX })
    }

    #[test]
    fn changes_that_began_long_ago_are_kept_up_to_a_number_of_them() {
        let mut all = FarChanges::default();
        add(&mut all, 0, call(libc::SYS_mlock));
        for _ in 0..2 * NEAR_EVENTS {
            add(&mut all, 1, call(libc::SYS_mincore));
        }
        for (start_ns, number) in
            [(2, libc::SYS_mlock), (2, libc::SYS_mincore), (2 * NEAR_EVENTS, libc::SYS_mlock)]
        {
            add(&mut all, 0, window(start_ns));
            add(&mut all, 0, call(number));
        }
        let found: Vec<_> = all.found().iter().map(|change| (change.number, change.follows)).collect();
        let number = 2 * NEAR_EVENTS + 2;
        assert_eq!(found, [(number, Some(0))]);
        let is_call = |number| Some(matches!(all.found()[0].get(number)?.kind, EventKind::Call(_)));
        assert_eq!(
            [number - 2, number - 1, number, number + 1].map(is_call),
            [None, Some(false), Some(true), None]
        );
        for _ in 0..2 * MOST_CHANGES {
            add(&mut all, 0, window(2));
            add(&mut all, 0, call(libc::SYS_mlock));
        }
        assert_eq!(all.found().len(), MOST_CHANGES);
        assert!(all.marks.len() <= (NEAR_EVENTS / MARK_EVENTS) as usize + 2, "{}", all.marks.len());
    }
}

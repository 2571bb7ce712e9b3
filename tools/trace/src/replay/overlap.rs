//! Calls whose order is not known: which they are, and what they depend on.

use crate::event::{Call, Event, EventKind, TaskId, Window};
use crate::format::TraceError;
use std::borrow::Borrow;
use std::collections::VecDeque;
use std::iter;
use std::ops::Range;

/// Events that are looked at ahead. A call stands where it ended at the latest.
const MOST_AHEAD: usize = 1 << 16;

/// A call that may take effect before an event that stands before it.
#[derive(Clone, Debug)]
pub(super) struct LaterCall {
    /// Its number.
    pub(super) number: u64,
    pub(super) window: Window,
    pub(super) task: TaskId,
    pub(super) cpu: u32,
    pub(super) call: Call,
}

/// What comes after an event.
pub(super) trait Upcoming {
    /// Calls that change mappings and overlap with others, as far as one may look ahead, in their order.
    fn changes(&mut self) -> &VecDeque<LaterCall>;
}

/// Events, with a look ahead where it is asked for.
pub(super) struct Ahead<I: Iterator> {
    events: I,
    buffer: VecDeque<I::Item>,
    /// Events that were taken.
    taken: u64,
    /// The window that the last event of the buffer gives to the next one.
    window: Option<Window>,
    changes: VecDeque<LaterCall>,
}

impl<I: Iterator> Ahead<I> {
    pub(super) fn new(events: I) -> Self {
        Self { events, buffer: VecDeque::new(), taken: 0, window: None, changes: VecDeque::new() }
    }

    /// The next event.
    pub(super) fn take(&mut self) -> Option<I::Item> {
        let event = self.buffer.pop_front().or_else(|| self.events.next())?;
        self.taken += 1;
        while self.changes.front().is_some_and(|change| change.number < self.taken) {
            self.changes.pop_front();
        }
        Some(event)
    }
}

impl<E: Borrow<Event>, I: Iterator<Item = Result<E, TraceError>>> Upcoming for Ahead<I> {
    fn changes(&mut self) -> &VecDeque<LaterCall> {
        while self.buffer.len() < MOST_AHEAD
            && let Some(item) = self.events.next()
        {
            if self.buffer.is_empty() {
                self.window = None;
            }
            let window = self.window.take();
            match item.as_ref().map(Borrow::borrow) {
                Ok(Event { kind: EventKind::Window(window), .. }) => self.window = Some(*window),
                Ok(Event { kind: EventKind::Call(call), task, cpu, .. }) => {
                    if let Some(window) = window.filter(|_| !changed_by(call).is_empty()) {
                        let number = self.taken + self.buffer.len() as u64;
                        let (task, cpu, call) = (*task, *cpu, call.clone());
                        self.changes.push_back(LaterCall { number, window, task, cpu, call });
                    }
                }
                _ => {}
            }
            self.buffer.push_back(item);
        }
        &self.changes
    }
}

fn range(start: u64, len: u64) -> Range<u64> {
    let end = start.saturating_add(len).checked_next_multiple_of(4096).unwrap_or(!4095);
    start & !4095..end.max(start)
}

/// The ranges of which a call that succeeded changes the mappings; none if it changes no mapping, or if these
/// are not known.
pub(super) fn changed_by(call: &Call) -> Vec<Range<u64>> {
    let [first, second, third, ..] = call.args;
    if call.errno().is_some() {
        return Vec::new();
    }
    match i64::from(call.number) {
        libc::SYS_mmap => vec![range(call.result as u64, second)],
        libc::SYS_mremap => vec![range(first, second), range(call.result as u64, third)],
        libc::SYS_munmap
        | libc::SYS_mprotect
        | libc::SYS_mlock
        | libc::SYS_mlock2
        | libc::SYS_munlock
        | libc::SYS_madvise => vec![range(first, second)],
        libc::SYS_mlockall | libc::SYS_munlockall => iter::once(0..!4095).collect(),
        _ => Vec::new(),
    }
}

/// The range on whose mappings alone the result of a call depends, if there is one.
pub(super) fn depends_on(call: &Call) -> Option<Range<u64>> {
    let [first, second, ..] = call.args;
    match i64::from(call.number) {
        libc::SYS_madvise
        | libc::SYS_mincore
        | libc::SYS_msync
        | libc::SYS_munmap
        | libc::SYS_mprotect
        | libc::SYS_mlock
        | libc::SYS_mlock2
        | libc::SYS_munlock => Some(range(first, second)),
        _ => None,
    }
}

/// Whether two ranges have a byte in common.
pub(super) fn meet(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::CallDetail;

    fn event(task: u32, kind: EventKind) -> Result<Event, TraceError> {
        Ok(Event { time_ns: 0, task: TaskId(task), cpu: 0, kind })
    }

    fn call(number: i64) -> EventKind {
        let args = [0x1001, 0x1000, 0, 0, 0, 0];
        EventKind::Call(Call { number: number as u32, args, result: 0, detail: CallDetail::None })
    }

    #[test]
    fn changes_ahead_are_found_until_they_are_reached() {
        let window = || EventKind::Window(Window { start_ns: 1, end_ns: 2 });
        let events = vec![
            event(0, call(libc::SYS_mincore)),
            event(1, call(libc::SYS_mlock)),
            event(0, window()),
            event(0, call(libc::SYS_mlock)),
            event(1, window()),
            event(1, call(libc::SYS_mincore)),
        ];
        let mut ahead = Ahead::new(events.into_iter());
        assert!(ahead.take().is_some());
        let found: Vec<_> = ahead.changes().iter().map(|change| (change.number, change.task)).collect();
        assert_eq!(found, [(3, TaskId(0))]);
        assert!(ahead.take().is_some() && ahead.take().is_some());
        assert_eq!(ahead.changes().len(), 1);
        assert!(ahead.take().is_some());
        assert_eq!(ahead.changes().len(), 0);
        assert_eq!(iter::from_fn(|| ahead.take()).count(), 2);
        assert_eq!(range(0x1001, 0x1000), 0x1000..0x3000);
    }
}

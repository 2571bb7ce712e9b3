//! A look ahead at the events of a recording.

use super::far::{FarChange, bytes_of};
use super::overlap::changes;
use quire_trace::event::{Event, EventKind, TaskId, Window};
use quire_trace::format::TraceError;
use std::borrow::Borrow;
use std::collections::VecDeque;

/// Events that are looked at ahead. A call stands where it ended at the latest.
const MOST_AHEAD: usize = 1 << 18;
/// Their bytes, without those of the last one.
const MOST_BYTES: usize = 64 << 20;

/// A call that may take effect before an event that stands before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaterCall {
    /// Its number.
    pub(super) number: u64,
    pub(super) window: Window,
    pub(super) task: TaskId,
}

/// What comes after an event.
pub(super) trait Upcoming {
    /// Calls that change mappings and overlap with others, as far as one may look ahead, in their order.
    fn changes(&mut self) -> &VecDeque<LaterCall>;

    /// Such calls beyond those, as far as they are known and nothing lies between that their threads did
    /// before, in their order.
    fn far(&self) -> Vec<LaterCall>;

    /// The number of the first event that [`changes`](Self::changes) has not come to.
    fn end(&self) -> u64;

    /// Whether there may be more of them than [`changes`](Self::changes) can have come to.
    fn is_cut(&self) -> bool;

    /// The event of this number, if [`changes`](Self::changes) has come to it, or it is one of a call of
    /// [`far`](Self::far) with its window.
    fn get(&self, number: u64) -> Option<&Event>;

    /// The event of this number, which is one of the next few.
    fn near(&mut self, number: u64) -> Option<&Event>;
}

/// Events, with a look ahead where it is asked for.
pub(super) struct Ahead<'f, E, I> {
    events: I,
    /// Changes that a look ahead may not come to.
    far: &'f [FarChange],
    buffer: VecDeque<Result<E, TraceError>>,
    /// What the events of the buffer take.
    bytes: usize,
    /// Events that were taken.
    taken: u64,
    /// The window that the last event of the buffer gives to the next one.
    window: Option<(TaskId, Window)>,
    changes: VecDeque<LaterCall>,
}

impl<'f, E: Borrow<Event>, I: Iterator<Item = Result<E, TraceError>>> Ahead<'f, E, I> {
    /// Of the events `far` are changes that began long before they stand.
    pub(super) fn new(events: I, far: &'f [FarChange]) -> Self {
        let (buffer, changes) = (VecDeque::new(), VecDeque::new());
        Self { events, far, buffer, bytes: 0, taken: 0, window: None, changes }
    }

    /// The next event.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Result<E, TraceError>> {
        if self.buffer.is_empty() && self.changes.is_empty() {
            self.taken += 1;
            return self.events.next();
        }
        self.take_known()
    }

    /// Looks ahead at so many events, as far as one may.
    fn fill(&mut self, most: usize) {
        while self.buffer.len() < most
            && self.bytes < MOST_BYTES
            && let Some(item) = self.events.next()
        {
            if self.buffer.is_empty() {
                self.window = None;
            }
            let window = self.window.take();
            match item.as_ref().map(Borrow::borrow) {
                Ok(Event { kind: EventKind::Window(window), task, .. }) => {
                    self.window = Some((*task, *window));
                }
                Ok(Event { kind: EventKind::Call(call), task, .. }) => {
                    if let Some((of, window)) = window
                        && of == *task
                        && changes(call)
                    {
                        let number = self.end();
                        self.changes.push_back(LaterCall { number, window, task: of });
                    }
                }
                _ => {}
            }
            self.bytes += bytes_of_item(&item);
            self.buffer.push_back(item);
        }
    }

    fn take_known(&mut self) -> Option<Result<E, TraceError>> {
        let event = match self.buffer.pop_front() {
            Some(event) => {
                self.bytes -= bytes_of_item(&event);
                event
            }
            None => self.events.next()?,
        };
        self.taken += 1;
        while self.changes.front().is_some_and(|change| change.number < self.taken) {
            self.changes.pop_front();
        }
        Some(event)
    }
}

impl<E: Borrow<Event>, I: Iterator<Item = Result<E, TraceError>>> Upcoming for Ahead<'_, E, I> {
    fn changes(&mut self) -> &VecDeque<LaterCall> {
        self.fill(MOST_AHEAD);
        &self.changes
    }

    fn is_cut(&self) -> bool {
        self.buffer.len() >= MOST_AHEAD || self.bytes >= MOST_BYTES
    }

    fn far(&self) -> Vec<LaterCall> {
        let end = self.end();
        // Its window may be the last event of the buffer.
        let first = self.far.partition_point(|change| change.number < end);
        let beyond = self.far[first..].iter().filter(move |change| change.follows.is_none_or(|at| at < end));
        let later = |change: &FarChange| LaterCall {
            number: change.number,
            window: change.window,
            task: change.task(),
        };
        beyond.map(later).collect()
    }

    fn end(&self) -> u64 {
        self.taken + self.buffer.len() as u64
    }

    fn get(&self, number: u64) -> Option<&Event> {
        let place = usize::try_from(number.checked_sub(self.taken)?).ok()?;
        if let Some(event) = self.buffer.get(place) {
            return event.as_ref().ok().map(Borrow::borrow);
        }
        let far = self.far.partition_point(|change| change.number < number);
        self.far.get(far)?.get(number)
    }

    fn near(&mut self, number: u64) -> Option<&Event> {
        let place = usize::try_from(number.checked_sub(self.taken)?).ok()?;
        self.fill(place.saturating_add(1).min(MOST_AHEAD));
        self.buffer.get(place)?.as_ref().ok().map(Borrow::borrow)
    }
}

fn bytes_of_item<E: Borrow<Event>>(item: &Result<E, TraceError>) -> usize {
    item.as_ref().map_or(0, |event| bytes_of(event.borrow()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_trace::event::{Call, CallDetail, Reuse, ReuseAccess, ReuseRun, ReuseSource};
    use std::iter;

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
        let mut ahead = Ahead::new(events.into_iter(), &[]);
        assert!(ahead.take().is_some());
        let found: Vec<_> = ahead.changes().iter().map(|change| (change.number, change.task)).collect();
        assert_eq!(found, [(3, TaskId(0))]);
        assert!(ahead.take().is_some() && ahead.take().is_some());
        assert_eq!(ahead.changes().len(), 1);
        assert!(ahead.take().is_some());
        assert_eq!(ahead.changes().len(), 0);
        assert_eq!(iter::from_fn(|| ahead.take()).count(), 2);
        assert_eq!(ahead.bytes, 0);
    }

    #[test]
    fn a_look_ahead_holds_few_bytes_of_large_events() {
        let run = ReuseRun { start: 0, pages: 1, access: ReuseAccess::Read };
        let runs = vec![run; MOST_BYTES / 8 / size_of::<ReuseRun>()];
        let large =
            || event(0, EventKind::Reuse(Reuse { source: ReuseSource::MappingCounts, runs: runs.clone() }));
        let mut ahead = Ahead::new((0..100).map(|_| large()), &[]);
        assert!(ahead.take().is_some());
        for _ in 0..3 {
            assert!(
                ahead.changes().is_empty() && (8..10).contains(&ahead.buffer.len()),
                "{}",
                ahead.buffer.len()
            );
            assert!(ahead.take().is_some());
        }
    }

    #[test]
    fn an_event_ahead_is_found_by_its_number() {
        let events = (0..5).map(|task| event(task, call(libc::SYS_mlock)));
        let mut ahead = Ahead::new(events, &[]);
        assert!(ahead.take().is_some() && ahead.take().is_some());
        assert!(ahead.get(2).is_none(), "nothing was looked at");
        let _ = ahead.changes();
        let task = |number| ahead.get(number).map(|event| event.task.0);
        assert_eq!([1, 2, 4, 5].map(task), [None, Some(2), Some(4), None]);
    }
}

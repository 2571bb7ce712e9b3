//! Calls whose order is not known: which they are, and what they depend on.

use super::far::FarChange;
use quire_trace::event::{Call, CallDetail, Event, EventKind, Fault, TaskId, Window};
use quire_trace::format::TraceError;
use std::borrow::Borrow;
use std::collections::VecDeque;
use std::iter;
use std::mem::{size_of, size_of_val};
use std::ops::Range;

/// Events that are looked at ahead. A call stands where it ended at the latest.
const MOST_AHEAD: usize = 1 << 18;
/// Their bytes, without those of the last one.
const MOST_BYTES: usize = 64 << 20;
/// Bytes of which `mincore` is asked in a call that is tried: it writes a byte for each page.
const MOST_ASKED: u64 = 1 << 30;
/// Bytes that a call that is tried brings in.
const MOST_POPULATED: u64 = 4 << 20;

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
        while self.buffer.len() < MOST_AHEAD
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
}

fn bytes_of_item<E: Borrow<Event>>(item: &Result<E, TraceError>) -> usize {
    item.as_ref().map_or(0, |event| bytes_of(event.borrow()))
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
        _ => 0,
    };
    size_of::<Event>() + more
}

/// The pages that hold a range of bytes.
pub(super) fn pages_of(start: u64, len: u64) -> Range<u64> {
    let end = start.saturating_add(len).checked_next_multiple_of(4096).unwrap_or(!4095);
    start & !4095..end.max(start)
}

fn everything() -> Range<u64> {
    0..!4095
}

/// Whether a call can have changed mappings. Some that are refused at a mapping have changed those before it.
pub(super) fn changes(call: &Call) -> bool {
    let succeeded = call.errno().is_none();
    let in_part = !matches!(call.errno(), Some(libc::EINVAL | libc::EPERM));
    match i64::from(call.number) {
        libc::SYS_mmap
        | libc::SYS_mremap
        | libc::SYS_munmap
        | libc::SYS_brk
        | libc::SYS_mlockall
        | libc::SYS_munlockall => succeeded,
        libc::SYS_mprotect | libc::SYS_mlock | libc::SYS_mlock2 | libc::SYS_munlock => in_part,
        libc::SYS_madvise => in_part && advice_changes(call),
        _ => false,
    }
}

/// Whether an advice is kept with the mappings.
fn advice_changes(call: &Call) -> bool {
    let advice = call.args[2] as i32;
    matches!(advice, libc::MADV_NORMAL..=libc::MADV_SEQUENTIAL | libc::MADV_DONTFORK..=libc::MADV_KEEPONFORK)
}

/// The ranges of which a call that [`changes`] mappings can have changed them, where the program break was
/// at `program_break`.
pub(super) fn changed_by(call: &Call, program_break: u64) -> Vec<Range<u64>> {
    let [first, second, third, ..] = call.args;
    let result = call.result as u64;
    match i64::from(call.number) {
        libc::SYS_mmap => vec![pages_of(result, second)],
        libc::SYS_mremap => vec![pages_of(first, second), pages_of(result, third)],
        libc::SYS_brk => {
            let start = program_break.min(result);
            vec![pages_of(start, program_break.max(result) - start)]
        }
        libc::SYS_mlockall | libc::SYS_munlockall => iter::once(everything()).collect(),
        _ => vec![pages_of(first, second)],
    }
}

/// What the result of a call depends on.
pub(super) struct Depends {
    /// The range whose mappings it depends on.
    pub(super) range: Range<u64>,
    /// The program's memory that it writes.
    pub(super) writes: Range<u64>,
    /// Whether it depends on limits, too, so that mappings elsewhere matter.
    pub(super) on_limits: bool,
}

/// What the result of a call depends on, if it is known, and no address that Linux chose.
pub(super) fn depends_on(call: &Call) -> Option<Depends> {
    let [first, second, third, flags, ..] = call.args;
    let here = pages_of(first, second);
    let of = |range, on_limits| Some(Depends { range, writes: 0..0, on_limits });
    match i64::from(call.number) {
        _ if does_much(call) => None,
        libc::SYS_madvise => match third as i32 {
            libc::MADV_COLLAPSE => None,
            _ => of(here, advice_changes(call)),
        },
        libc::SYS_mincore => {
            Some(Depends { range: here, writes: pages_of(third, second.div_ceil(4096)), on_limits: false })
        }
        libc::SYS_msync => of(here, false),
        libc::SYS_munmap | libc::SYS_mprotect | libc::SYS_mlock | libc::SYS_mlock2 | libc::SYS_munlock => {
            of(here, true)
        }
        libc::SYS_mmap if flags as i32 & libc::MAP_ANONYMOUS == 0 => None,
        libc::SYS_mmap | libc::SYS_mremap if call.errno().is_some() => of(everything(), true),
        libc::SYS_mlockall => of(everything(), true),
        _ => None,
    }
}

/// What it depends on that a touch is refused: the mapping there, if there is one.
pub(super) fn touch_depends_on(fault: &Fault) -> Depends {
    Depends { range: pages_of(fault.addr, 1), writes: 0..0, on_limits: false }
}

/// Whether a call is not tried because of what it would do.
pub(super) fn does_much(call: &Call) -> bool {
    let [_, len, advice, ..] = call.args;
    match i64::from(call.number) {
        libc::SYS_madvise => populates(advice) && len > MOST_POPULATED,
        libc::SYS_mincore => len > MOST_ASKED,
        _ => false,
    }
}

fn populates(advice: u64) -> bool {
    matches!(advice as i32, libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE)
}

/// What a call that is tried costs beside the mappings that it looks at or changes, in mappings that are
/// made: what it brings in, which may be gone after it, and what it writes.
pub(super) fn work_of(call: &Call) -> u64 {
    /// Pages that `mincore` is asked of for one mapping.
    const ASKED: u64 = 64;
    let [_, len, advice, ..] = call.args;
    match i64::from(call.number) {
        libc::SYS_madvise if populates(advice) => len / 4096,
        libc::SYS_mincore => len / 4096 / ASKED,
        _ => 0,
    }
}

/// Whether two ranges have a byte in common.
pub(super) fn meet(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_trace::event::{Reuse, ReuseAccess, ReuseRun, ReuseSource};

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
        assert_eq!(pages_of(0x1001, 0x1000), 0x1000..0x3000);
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

    #[test]
    fn a_call_costs_what_it_brings_in_and_writes() {
        let cost = |number: i64, len: u64, third: i32| {
            let args = [0, len, third as u64, 0, 0, 0];
            let call = Call { number: number as u32, args, result: 0, detail: CallDetail::None };
            (work_of(&call), does_much(&call), depends_on(&call).is_some())
        };
        let populate = libc::MADV_POPULATE_WRITE;
        assert_eq!(cost(libc::SYS_madvise, MOST_POPULATED, populate), (1 << 10, false, true));
        assert!(cost(libc::SYS_madvise, MOST_POPULATED + 1, populate).1);
        assert_eq!(cost(libc::SYS_madvise, 1 << 40, libc::MADV_DONTNEED), (0, false, true));
        assert_eq!(cost(libc::SYS_mincore, MOST_ASKED, 0), (1 << 12, false, true));
        assert_eq!(cost(libc::SYS_mincore, 1 << 31, 0), (1 << 13, true, false));
    }

    #[test]
    fn advice_that_drops_pages_changes_no_mapping() {
        let advice = |advice, result| Call {
            number: libc::SYS_madvise as u32,
            args: [0, 4096, advice as u64, 0, 0, 0],
            result,
            detail: CallDetail::None,
        };
        assert!(changes(&advice(libc::MADV_DONTFORK, 0)) && changes(&advice(libc::MADV_NORMAL, 0)));
        assert!(changes(&advice(libc::MADV_DONTFORK, -i64::from(libc::ENOMEM))));
        assert!(!changes(&advice(libc::MADV_DONTNEED, 0)) && !changes(&advice(libc::MADV_COLLAPSE, 0)));
    }
}

//! Putting calls and page faults into one order.
//!
//! The tracer reports calls as windows: from when the thread was resumed at the entry to when its exit stop
//! was seen. Each page fault has one time. For a fault of the calling thread it is certain whether it lies
//! before, inside or after the window, as the thread is stopped at both ends. A fault of another thread
//! inside the window may be from before or after the call took effect; its outcome says which (`placement`).
//!
//! Calls that do not stop arrive as samples (`calls`), and are made windows here.
//!
//! What comes after the start of a call waits for its end, but not for long. A call that is open longer gets
//! its place late, and then says in which window it took effect, as do the calls that were passed on before
//! and overlap with it.

mod calls;
mod faults;
mod overlap;
mod placement;
#[cfg(test)]
mod tests;

pub(crate) use placement::Rule;

use super::calls::{Effect, effect};
use super::perf::{BegunCall, PerfSample, SampleKind};
use super::sys::Tid;
use calls::Calls;
use faults::Faults;
use overlap::UnderWay;
use placement::{Key, LEFT_OUT, NO_SPACE, place};
use quire_trace::event::{
    Access, Call, CallDetail, Denial, Event, EventKind, Fault, Lost, LostCause, Mode, Outcome, TaskId, Window,
};
use std::collections::{BTreeSet, HashMap};

/// Samples may reach a ring buffer this long after their timestamp was taken (the kernel may be interrupted
/// in between).
const SAMPLE_DELAY_NS: u64 = 30_000_000;
/// The result of a call whose thread was killed while it waited for the mmap lock: the call had no effect.
const KILLED: i64 = -(libc::EINTR as i64);
/// A call or fault that takes longer than this no longer delays what follows it.
const MOST_DELAY_NS: u64 = 2_000_000_000;

/// The recorder's number of the address space that a thread is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SpaceId(pub(crate) u32);

/// Something that the tracer saw.
#[derive(Debug)]
pub(crate) struct Record {
    /// When it began: `end` if it has no length.
    pub(crate) start: u64,
    /// When it was over.
    pub(crate) end: u64,
    pub(crate) tid: Tid,
    pub(crate) task: TaskId,
    pub(crate) space: SpaceId,
    pub(crate) cpu: u32,
    pub(crate) rule: Rule,
    pub(crate) kinds: Vec<EventKind>,
}

/// A fault that has no place in the order yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PendingFault {
    time: u64,
    tid: Tid,
    task: TaskId,
    space: SpaceId,
    cpu: u32,
    fault: Fault,
    /// Its outcome is not known yet.
    open: bool,
}

/// Which thread a thread id meant, and when.
#[derive(Debug, Clone, Copy)]
struct Identity {
    from: u64,
    until: u64,
    task: TaskId,
    space: SpaceId,
}

/// Puts calls and faults into one order.
#[derive(Debug, Default)]
pub(crate) struct Merger {
    origin: u64,
    samples: Vec<PerfSample>,
    /// After these times samples are missing.
    gaps: Vec<u64>,
    faults: Faults,
    calls: Calls,
    records: Vec<Record>,
    in_flight: BTreeSet<(u64, Tid)>,
    /// Since when each thread that is in exec is there.
    in_exec: HashMap<Tid, u64>,
    identities: HashMap<Tid, Vec<Identity>>,
    last_emitted: u64,
    /// When the first thread became known.
    begun: Option<u64>,
    stray_faults: u64,
}

impl Merger {
    /// Times of events are relative to `origin`.
    pub(crate) fn new(origin: u64) -> Self {
        Self { origin, ..Self::default() }
    }

    /// From this time on the thread id means this thread, in this address space.
    pub(crate) fn identify(&mut self, tid: Tid, from: u64, task: TaskId, space: SpaceId) {
        self.begun.get_or_insert(from);
        let identities = self.identities.entry(tid).or_default();
        let mut identity = Identity { from, until: u64::MAX, task, space };
        if let Some(last) = identities.last_mut() {
            if last.until == u64::MAX {
                last.until = from;
            } else {
                // A reused id: the thread that had it before may have ended after the start of the call that
                // made the new one.
                identity.from = from.max(last.until);
            }
        }
        identities.push(identity);
    }

    /// Faults of this thread from this time on are left out: the address space that they are in is not in the
    /// trace.
    pub(crate) fn leave_out(&mut self, tid: Tid, from: u64, space: SpaceId) {
        self.identify(tid, from, LEFT_OUT, space);
    }

    /// The thread id means nothing from this time on.
    pub(crate) fn ended(&mut self, tid: Tid, time: u64) {
        if let Some(last) = self.identities.get_mut(&tid).and_then(|identities| identities.last_mut()) {
            last.until = last.until.min(time);
        }
        self.faults.thread_stopped(tid, time);
    }

    /// A thread entered the kernel for a call that is recorded when it returns.
    pub(crate) fn begin(&mut self, tid: Tid, start: u64) {
        self.in_flight.insert((start, tid));
    }

    /// A thread entered the kernel for an exec.
    pub(crate) fn begin_exec(&mut self, tid: Tid, start: u64) {
        self.begin(tid, start);
        self.in_exec.insert(tid, start);
    }

    /// It returned, and nothing is to be recorded.
    pub(crate) fn cancel(&mut self, tid: Tid, start: u64) {
        self.returned(tid, start);
        self.calls.is_over(tid, start);
    }

    fn returned(&mut self, tid: Tid, start: u64) {
        self.in_flight.remove(&(start, tid));
        self.in_exec.remove(&tid);
    }

    /// Adds a record. Ends the call that began at its start.
    pub(crate) fn record(&mut self, record: Record) {
        self.returned(record.tid, record.start);
        if let Rule::Exec { pid, switched } = record.rule {
            // The calls of the address probe.
            self.calls.made_to_call(pid, switched, record.end);
        }
        self.records.push(record);
    }

    /// A thread was seen stopped: its last fault is over.
    pub(crate) fn stopped(&mut self, tid: Tid, time: u64) {
        self.faults.thread_stopped(tid, time);
    }

    /// A thread got a signal because of its last fault.
    pub(crate) fn denied(&mut self, tid: Tid, time: u64, addr: u64, denial: Denial) {
        self.faults.denied(tid, time, addr, denial);
    }

    /// A thread is stopped before it maps a file in a call that samples tell of.
    pub(crate) fn will_map(&mut self, tid: Tid, time: u64, file: CallDetail) {
        self.calls.will_map(tid, time, file);
    }

    /// The address space that a thread was in at this time; also of one that has ended, whose last samples are
    /// not in their order yet. None of those that are left out.
    pub(crate) fn space_of(&self, tid: Tid, time: u64) -> Option<SpaceId> {
        let identity = self.identity(tid, time).filter(|identity| identity.task != LEFT_OUT);
        identity.map(|identity| identity.space)
    }

    /// The thread that this id meant at this time; `None` if it is not in the trace.
    pub(crate) fn task_of(&self, tid: Tid, time: u64) -> Option<TaskId> {
        let identity = self.identity(tid, time).filter(|identity| identity.task != LEFT_OUT);
        identity.map(|identity| identity.task)
    }

    /// What is known of a file, from some moment on between two times. It is said to be by `task`.
    pub(crate) fn file(&mut self, (start, end): (u64, u64), task: TaskId, rule: Rule, kinds: Vec<EventKind>) {
        self.records.push(Record { start, end, tid: 0, task, space: NO_SPACE, cpu: 0, rule, kinds });
    }

    /// Which thread this id meant at this time.
    fn identity(&self, tid: Tid, time: u64) -> Option<&Identity> {
        let known = |identity: &&Identity| (identity.from..=identity.until).contains(&time);
        self.identities.get(&tid)?.iter().rev().find(known)
    }

    /// Room for new samples.
    pub(crate) fn samples(&mut self) -> &mut Vec<PerfSample> {
        &mut self.samples
    }

    /// Faults of unknown threads.
    pub(crate) fn stray_faults(&self) -> u64 {
        self.stray_faults
    }

    /// From this time on samples are missing: what follows may have no sense without them.
    pub(crate) fn lost(&mut self, count: u64, cause: LostCause, since: u64) {
        if cause == LostCause::RingFull {
            self.gaps.push(since);
        }
        let kinds = vec![EventKind::Lost(Lost { count, cause })];
        let (start, end, tid, task, space, cpu) = (since, since, 0, TaskId(0), NO_SPACE, 0);
        self.records.push(Record { start, end, tid, task, space, cpu, rule: Rule::AtEnd, kinds });
    }

    /// The events whose order is final. All samples up to `drained` were handed over; with `all`, nothing
    /// more will come.
    pub(crate) fn settle(&mut self, drained: u64, all: bool) -> Vec<Event> {
        let horizon = if all { u64::MAX } else { drained.saturating_sub(SAMPLE_DELAY_NS) };
        self.take_samples(horizon);
        let waits_since = if all { u64::MAX } else { drained.saturating_sub(MOST_DELAY_NS) };
        let mut limit = horizon;
        if !all {
            let oldest_call = self.in_flight.iter().find(|(start, _)| *start > waits_since);
            limit = limit.min(oldest_call.map_or(u64::MAX, |(start, _)| *start));
        }
        limit = limit.min(self.faults.settle(horizon, waits_since));
        // A record that reaches beyond the limit waits, and so does everything since its start.
        loop {
            let open = self.records.iter().filter(|record| record.end >= limit && record.start < limit);
            match open.map(|record| record.start).min() {
                Some(start) => limit = start,
                None => break,
            }
        }
        if all {
            limit = u64::MAX;
        }
        self.identities.retain(|_, identities| {
            identities.retain(|identity| identity.until >= limit);
            !identities.is_empty()
        });
        self.calls.retain_threads(|tid| self.identities.contains_key(&tid));
        let events = self.emit(limit);
        self.calls.forget_before(limit, self.in_flight.iter().copied());
        events
    }

    fn take_samples(&mut self, horizon: u64) {
        // Samples of one CPU are in order, those of several are not. Stable: equal times keep their order.
        self.samples.sort_by_key(|sample| sample.time);
        let ready = self.samples.partition_point(|sample| sample.time < horizon);
        let rest = self.samples.split_off(ready);
        for sample in std::mem::replace(&mut self.samples, rest) {
            let old = self.gaps.len();
            self.gaps.retain(|since| *since >= sample.time);
            if self.gaps.len() < old {
                // The next end of a call may be that of a later one.
                for (start, tid) in Vec::from_iter(self.calls.forget_begun()) {
                    self.in_flight.remove(&(start, tid));
                    self.calls.is_over(tid, start);
                }
            }
            self.take_sample(sample);
        }
    }

    fn take_sample(&mut self, sample: PerfSample) {
        let (tid, time) = (sample.tid as Tid, sample.time);
        if let SampleKind::Lock { mm } = sample.what {
            return self.calls.locked(tid, time, mm);
        }
        let is_fault = matches!(sample.what, SampleKind::Begin { .. } | SampleKind::End { .. });
        // An exec that takes long delays nothing, so its record may come too late for these.
        if self.in_exec.get(&tid).is_some_and(|start| time >= *start) && writes_in_kernel(&sample) {
            return;
        }
        let Some(&Identity { task, space, .. }) = self.identity(tid, time) else {
            // Before its program began, the child is not the program.
            self.stray_faults += u64::from(is_fault && self.begun.is_some_and(|begun| time >= begun));
            return;
        };
        match sample.what {
            SampleKind::Call(call) if !self.calls.was_made_to_call(tid, time) => {
                if let Some(lost) = self.calls.begins(tid, time, call) {
                    self.in_flight.remove(&(lost, tid));
                    self.calls.is_over(tid, lost);
                }
                self.in_flight.insert((time, tid));
                self.faults.are_over(tid);
            }
            SampleKind::Return { number, result } => {
                let Some((start, call, detail)) = self.calls.ends(tid, number) else { return };
                self.in_flight.remove(&(start, tid));
                if task != LEFT_OUT && result != KILLED {
                    let rule = Rule::Call(effect_of(&call, result));
                    let (number, args) = (call.number as u32, call.args);
                    let kinds = vec![EventKind::Call(Call { number, args, result, detail })];
                    let cpu = sample.cpu;
                    let mut record = Record { start, end: time, tid, task, space, cpu, rule, kinds };
                    (record.start, record.end) = self.calls.window(&record);
                    self.calls.has_window_from(tid, start, record.start);
                    self.records.push(record);
                } else {
                    self.calls.is_over(tid, start);
                }
            }
            _ => self.faults.sample(&sample, task, space),
        }
    }

    fn emit(&mut self, limit: u64) -> Vec<Event> {
        let mut ready: Vec<(Key, Event)> = Vec::new();
        let waits = self.records.iter().position(|record| record.end >= limit);
        // Most often all or none wait; the order among those that stay must not change.
        let (settled, waiting): (Vec<_>, Vec<_>) = match waits {
            None => (std::mem::take(&mut self.records), Vec::new()),
            Some(_) => std::mem::take(&mut self.records).into_iter().partition(|record| record.end < limit),
        };
        self.records = waiting;
        let mut settled = settled;
        let mut long = Vec::with_capacity(settled.len());
        for record in &mut settled {
            let (tid, start) = (record.tid, record.start);
            (record.start, record.end) = self.calls.window(record);
            long.push(self.calls.is_over(tid, start));
        }
        let overlapping = overlap::find(&settled, &long, &self.under_way(limit));
        for (record, overlaps) in settled.into_iter().zip(overlapping) {
            let key = place(&record, self.faults.within_mut(record.start, record.end));
            let since = |time: u64| time.saturating_sub(self.origin);
            let window = Window { start_ns: since(record.start), end_ns: since(record.end) };
            let window = overlaps.then_some(EventKind::Window(window));
            for kind in window.into_iter().chain(record.kinds) {
                ready.push((key, event(key.time, record.task, record.cpu, kind)));
            }
        }
        for fault in self.faults.take_before(limit) {
            let kind = EventKind::Fault(fault.fault);
            ready.push((Key::fault(fault.time), event(fault.time, fault.task, fault.cpu, kind)));
        }
        // Stable: records with one key keep the order in which the tracer saw them.
        ready.sort_by_key(|(key, _)| *key);
        let mut events = Vec::with_capacity(ready.len());
        for (_, mut event) in ready {
            event.time_ns = event.time_ns.saturating_sub(self.origin).max(self.last_emitted);
            self.last_emitted = event.time_ns;
            events.push(event);
        }
        events
    }

    /// Calls that began before `limit` and have not ended, with their windows as far as they are known: they
    /// get their places after what has its place now.
    fn under_way(&self, limit: u64) -> Vec<UnderWay> {
        let calls = self.in_flight.iter().take_while(|(start, _)| *start < limit);
        let calls = calls.filter(|(start, tid)| self.in_exec.get(tid) != Some(start));
        let with_space = calls.filter_map(|&(start, tid)| {
            let space = self.identities.get(&tid)?.last()?.space;
            let (start, end) = self.calls.window_so_far(tid, start, limit);
            Some(UnderWay { tid, space, start, end })
        });
        with_space.collect()
    }
}

/// What a call without a stop did.
fn effect_of(call: &BegunCall, result: i64) -> Effect {
    match call.number as i64 {
        // Whether it grew is not known. Its window is so short that only a simultaneous access would show it.
        libc::SYS_brk => Effect::Neutral,
        _ => effect(call.number, &call.args, result),
    }
}

fn writes_in_kernel(sample: &PerfSample) -> bool {
    matches!(sample.what, SampleKind::Begin { mode: Mode::Kernel, access: Access::Write, .. })
}

fn event(time_ns: u64, task: TaskId, cpu: u32, kind: EventKind) -> Event {
    Event { time_ns, task, cpu, kind }
}

impl PendingFault {
    fn was_denied(&self) -> bool {
        matches!(self.fault.outcome, Outcome::Denied(_))
    }
}

//! Calls that tracepoints report, and the mmap lock under which each call took effect.
//!
//! A thread that does not stop is not held before a call either, so calls of threads that share memory
//! overlap. Linux changes an address space under one lock, and a tracepoint reports when a thread has got it
//! for writing. So a call took effect after its thread got the lock and before another thread got it: that is
//! its window, and the windows of two calls that change one address space do not overlap.

use super::{Record, Rule};
use crate::perf::BegunCall;
use crate::sys::Tid;
use quire_trace::event::CallDetail;
use std::collections::{HashMap, VecDeque};

/// A thread got the mmap lock of an address space for writing.
#[derive(Debug, Clone, Copy)]
struct Lock {
    time: u64,
    tid: Tid,
    /// The kernel's number of the address space.
    mm: u64,
}

/// Calls that threads are in, and which thread had which lock when.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// Since when, and which.
    begun: HashMap<Tid, (u64, Box<BegunCall>, CallDetail)>,
    /// Files that threads were about to map at these times.
    to_map: HashMap<Tid, VecDeque<(u64, CallDetail)>>,
    /// By time.
    locks: VecDeque<Lock>,
    /// Threads into which the recorder injected calls, and from when to when.
    made_to_call: Vec<(Tid, u64, u64)>,
    /// Calls that are open for so long that what came after their start was passed on, by start and thread.
    long: HashMap<(u64, Tid), LongCall>,
}

/// The locks that the window of a long call depends on. All others of its time are forgotten.
#[derive(Debug, Default)]
struct LongCall {
    /// The first lock that its thread got, and the last one.
    first: Option<KeptLock>,
    last: Option<KeptLock>,
}

#[derive(Debug, Clone, Copy)]
struct KeptLock {
    lock: Lock,
    /// When another thread got the same lock, if one did.
    other_got_it: Option<u64>,
}

impl KeptLock {
    fn passes_to(kept: &mut Option<Self>, other: Lock) {
        if let Some(kept) = kept.as_mut().filter(|kept| kept.lock.mm == other.mm) {
            kept.other_got_it.get_or_insert(other.time);
        }
    }
}

impl LongCall {
    /// A lock that `tid` or another thread got.
    fn note(&mut self, tid: Tid, lock: Lock) {
        if lock.tid == tid {
            let kept = KeptLock { lock, other_got_it: None };
            self.first.get_or_insert(kept);
            self.last = Some(kept);
        } else {
            KeptLock::passes_to(&mut self.first, lock);
            KeptLock::passes_to(&mut self.last, lock);
        }
    }
}

impl Calls {
    /// A thread got a lock; locks come in the order of their times.
    pub(super) fn locked(&mut self, tid: Tid, time: u64, mm: u64) {
        self.locks.push_back(Lock { time, tid, mm });
    }

    /// A thread began a call. If the end of its previous call was lost, returns when that one
    /// began.
    pub(super) fn begins(&mut self, tid: Tid, time: u64, call: Box<BegunCall>) -> Option<u64> {
        let detail = match call.number as i64 {
            libc::SYS_mmap if call.args[3] as i32 & libc::MAP_ANONYMOUS == 0 => self.file_of(tid, time),
            libc::SYS_mmap => CallDetail::Site { instruction: call.instruction, on_stack: call.on_stack },
            _ => CallDetail::None,
        };
        self.begun.insert(tid, (time, call, detail)).map(|(start, ..)| start)
    }

    /// A thread is stopped before it maps this file.
    pub(super) fn will_map(&mut self, tid: Tid, time: u64, file: CallDetail) {
        self.to_map.entry(tid).or_default().push_back((time, file));
    }

    /// The file that a thread maps in the call that it began at this time. Of earlier calls the samples are
    /// lost.
    fn file_of(&mut self, tid: Tid, time: u64) -> CallDetail {
        let Some(files) = self.to_map.get_mut(&tid) else { return CallDetail::None };
        let before = files.partition_point(|(at, _)| *at <= time);
        files.drain(..before).next_back().map_or(CallDetail::None, |(_, file)| file)
    }

    /// No samples of other threads come any more.
    pub(super) fn retain_threads(&mut self, lives: impl Fn(Tid) -> bool) {
        self.to_map.retain(|tid, _| lives(*tid));
    }

    /// A call of this number ended. `None` if it stopped, or its beginning was lost.
    pub(super) fn ends(&mut self, tid: Tid, number: u64) -> Option<(u64, Box<BegunCall>, CallDetail)> {
        self.begun.get(&tid).filter(|(_, call, _)| call.number == number)?;
        self.begun.remove(&tid)
    }

    /// Samples are missing from here on: whether calls in progress ended is not known. Returns when they began
    /// and whose they are.
    pub(super) fn forget_begun(&mut self) -> impl Iterator<Item = (u64, Tid)> {
        self.begun.drain().map(|(tid, (start, ..))| (start, tid))
    }

    /// The recorder injected calls into a thread from then to then.
    pub(super) fn made_to_call(&mut self, tid: Tid, from: u64, until: u64) {
        self.made_to_call.push((tid, from, until));
    }

    /// Whether the recorder injected calls into a thread at that time.
    pub(super) fn was_made_to_call(&self, tid: Tid, time: u64) -> bool {
        self.made_to_call.iter().any(|(of, from, until)| *of == tid && (*from..=*until).contains(&time))
    }

    /// When a record took effect: its window, as narrow as the locks allow.
    pub(super) fn window(&self, record: &Record) -> (u64, u64) {
        let (start, end) = (record.start, record.end);
        match record.rule {
            Rule::Call(_) => self.window_of_call(record.tid, start, end),
            // It locks what it copies, then the copy.
            Rule::Clone { .. } => {
                let kept = self.long.get(&(start, record.tid)).and_then(|long| long.first);
                let first = kept.or_else(|| self.own_locks(record.tid, start, end).next());
                (start, first.map_or(end, |lock| self.until_another_has(lock, end)))
            }
            Rule::AtEnd | Rule::Exec { .. } | Rule::KilledExec { .. } | Rule::Resized { .. } => (start, end),
        }
    }

    /// The window of a call that took from `start` to `end`.
    fn window_of_call(&self, tid: Tid, start: u64, end: u64) -> (u64, u64) {
        let kept = self.long.get(&(start, tid)).and_then(|long| long.last);
        let last = self.own_locks(tid, start, end).last().or(kept);
        last.map_or((start, end), |own| (own.lock.time, self.until_another_has(own, end)))
    }

    /// The window of a call under way, as far as it is known from the locks before `until`. Its end is at
    /// least `until` if no other thread got its lock.
    pub(super) fn window_so_far(&self, tid: Tid, start: u64, until: u64) -> (u64, u64) {
        let before = until.saturating_sub(1).max(start);
        let (from, end) = self.window_of_call(tid, start, before);
        (from, if end == before { u64::MAX } else { end })
    }

    /// The locks that a thread got from one time to another, as far as they were not forgotten.
    fn own_locks(&self, tid: Tid, start: u64, end: u64) -> impl Iterator<Item = KeptLock> {
        let own = self.within(start, end).filter(move |lock| lock.tid == tid);
        own.map(|lock| KeptLock { lock, other_got_it: None })
    }

    /// The locks that threads got from one time to another.
    fn within(&self, start: u64, end: u64) -> impl Iterator<Item = Lock> {
        let first = self.locks.partition_point(|lock| lock.time < start);
        self.locks.range(first..).copied().take_while(move |lock| lock.time <= end)
    }

    /// The time before which no other thread got this lock, `end` at most.
    fn until_another_has(&self, own: KeptLock, end: u64) -> u64 {
        let KeptLock { lock: own, other_got_it } = own;
        let is_next = |lock: &Lock| lock.mm == own.mm && lock.tid != own.tid;
        let next =
            other_got_it.or_else(|| self.within(own.time + 1, end).find(is_next).map(|next| next.time));
        next.map_or(end, |next| end.min(next - 1))
    }

    /// Nothing that is reported from now on began before this time, except the calls under way, which
    /// `in_flight` gives by start and thread: of the locks since their start a few are kept.
    pub(super) fn forget_before(&mut self, time: u64, in_flight: impl Iterator<Item = (u64, Tid)>) {
        for call in in_flight.take_while(|(start, _)| *start < time) {
            self.long.entry(call).or_default();
        }
        let gone = self.locks.partition_point(|lock| lock.time < time);
        for lock in self.locks.drain(..gone) {
            for ((_, tid), long) in self.long.iter_mut().filter(|((start, _), _)| *start <= lock.time) {
                long.note(*tid, lock);
            }
        }
        self.made_to_call.retain(|(.., until)| *until >= time);
    }

    /// A call has its place, or none. Whether it was a long one.
    pub(super) fn is_over(&mut self, tid: Tid, start: u64) -> bool {
        self.long.remove(&(start, tid)).is_some()
    }

    /// A long call is looked for by the start of its window from now on.
    pub(super) fn has_window_from(&mut self, tid: Tid, start: u64, window: u64) {
        if self.is_over(tid, start) {
            // What its window depends on was looked at.
            self.long.insert((window, tid), LongCall::default());
        }
    }

    /// How many locks are known.
    #[cfg(test)]
    pub(super) fn locks_kept(&self) -> usize {
        self.locks.len()
    }
}

//! Calls that tracepoints report, and the mmap lock under which each call took effect.
//!
//! A thread that does not stop is not held before a call either, so calls of threads that share memory
//! overlap. Linux changes an address space under one lock, and a tracepoint reports when a thread has got it
//! for writing. So a call took effect after its thread got the lock and before another thread got it: that is
//! its window, and the windows of two calls that change one address space do not overlap.

use super::{Record, Rule};
use crate::event::CallDetail;
use crate::record::perf::BegunCall;
use crate::record::sys::Tid;
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
        let (tid, start, end) = (record.tid, record.start, record.end);
        let own = |lock: &Lock| lock.tid == tid;
        match record.rule {
            Rule::Call(_) => {
                let last = self.within(start, end).filter(own).last();
                last.map_or((start, end), |lock| (lock.time, self.until_another_has(lock, end)))
            }
            // It locks what it copies, then the copy.
            Rule::Clone { .. } => {
                let first = self.within(start, end).find(own);
                (start, first.map_or(end, |lock| self.until_another_has(lock, end)))
            }
            Rule::AtEnd | Rule::Exec { .. } | Rule::KilledExec { .. } => (start, end),
        }
    }

    /// The locks that threads got from one time to another.
    fn within(&self, start: u64, end: u64) -> impl Iterator<Item = Lock> {
        let first = self.locks.partition_point(|lock| lock.time < start);
        self.locks.range(first..).copied().take_while(move |lock| lock.time <= end)
    }

    /// The time before which no other thread got this lock, `end` at most.
    fn until_another_has(&self, own: Lock, end: u64) -> u64 {
        let next = self.within(own.time + 1, end).find(|lock| lock.mm == own.mm && lock.tid != own.tid);
        next.map_or(end, |next| next.time - 1)
    }

    /// Nothing that is reported from now on began before this time, except calls in progress.
    pub(super) fn forget_before(&mut self, time: u64) {
        let oldest = self.begun.values().map(|(start, ..)| *start).min().unwrap_or(u64::MAX);
        let gone = self.locks.partition_point(|lock| lock.time < time.min(oldest));
        self.locks.drain(..gone);
        self.made_to_call.retain(|(.., until)| *until >= time);
    }
}

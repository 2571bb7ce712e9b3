//! Running on the CPU of the thread that stops repeatedly.
//!
//! A stop is two context switches between the program and the recorder. If both run on one CPU, each is a
//! switch of that CPU; if they run on two, each wakes an idle CPU, which takes several times as long, most of
//! all in a virtual machine. The scheduler prefers the idle CPU. So the recorder binds itself to one CPU
//! while one thread alone stops often, and moves that thread there: while it is woken, or while it is in a
//! call that stops at its end, the thread may run on this CPU only. Directly afterwards its affinity is
//! restored.
//!
//! The thread cannot see the narrow affinity unless it runs before the recorder has restored its own, and
//! makes no call that stops. Calls that read, change or inherit the affinity stop, and a thread enters such a
//! call with its own affinity.

use crate::sys::Tid;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::fmt;

/// So many stops of one thread in a row bind the recorder, if they come within [`STREAK_NS`].
const STREAK: u32 = 16;
const STREAK_NS: u64 = 50_000_000;
/// After so many more stops the recorder is free until the next streak, so that the scheduler can choose
/// another CPU.
const BOUND_STOPS: u32 = 4096;

/// How a thread is resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// It runs in user mode; whether it stops again is not known.
    Unknown,
    /// It stops at the end of the call that it is in, before it is in user mode.
    EndOfCall,
    /// It is in a call that reads, changes or inherits the CPUs on which it may run.
    UsesCpus,
}

/// The CPU to which the recorder is bound.
#[derive(Clone, Copy)]
struct Bound {
    cpu: usize,
    only: CpuSet,
    /// The CPUs of the thread that is bound to the same one just now.
    narrowed: Option<CpuSet>,
}

/// The CPU that the recorder shares with a thread.
pub(super) struct SameCpu {
    /// The CPUs that the recorder may run on. `None` if it has no choice.
    own: Option<CpuSet>,
    /// The thread that stopped last, how often in a row, and since when.
    last: Tid,
    streak: u32,
    since: u64,
    bound: Option<Bound>,
}

impl fmt::Debug for SameCpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpu = self.bound.map(|bound| bound.cpu);
        f.debug_struct("SameCpu").field("last", &self.last).field("cpu", &cpu).finish_non_exhaustive()
    }
}

impl SameCpu {
    pub(super) fn new() -> Self {
        let own = sched_getaffinity(None).ok().filter(|set| set.count() > 1);
        Self { own, last: 0, streak: 0, since: 0, bound: None }
    }

    /// A thread stopped.
    pub(super) fn stopped(&mut self, tid: Tid, time: u64) {
        if tid != self.last {
            self.free();
            (self.last, self.streak, self.since) = (tid, 1, time);
            return;
        }
        self.streak += 1;
        if self.bound.is_some() {
            if self.streak > BOUND_STOPS {
                self.free();
                (self.streak, self.since) = (0, time);
            }
        } else if self.streak >= STREAK {
            if time.saturating_sub(self.since) <= STREAK_NS {
                self.bind();
            }
            (self.streak, self.since) = (0, time);
        }
    }

    /// The CPU to which the thread was moved when it was resumed, if it was. The scheduler may have moved
    /// it since, which is rare.
    pub(super) fn cpu(&self, tid: Tid) -> Option<u32> {
        self.bound.filter(|_| tid == self.last).map(|bound| bound.cpu as u32)
    }

    /// Calls `resume`, which resumes a stopped thread; if it is the one that stops repeatedly, on this
    /// CPU.
    pub(super) fn resume(&mut self, tid: Tid, until: Until, resume: impl FnOnce()) {
        if tid == self.last && until != Until::UsesCpus {
            self.narrow();
        } else if tid == self.last {
            self.widen();
        }
        resume();
        if tid == self.last && until == Until::Unknown {
            self.widen();
        }
    }

    /// Binds the thread to the CPU of the recorder.
    fn narrow(&mut self) {
        let Some(bound) = &mut self.bound else { return };
        if bound.narrowed.is_some() {
            return;
        }
        // It fails only if the thread is gone.
        let Ok(own) = sched_getaffinity(Pid::from_raw(self.last)) else { return };
        if own.is_set(bound.cpu)
            && own.count() > 1
            && sched_setaffinity(Pid::from_raw(self.last), &bound.only).is_ok()
        {
            bound.narrowed = Some(own);
        }
    }

    /// Restores the affinity of the thread.
    fn widen(&mut self) {
        let narrowed = self.bound.as_mut().and_then(|bound| bound.narrowed.take());
        if let Some(own) = narrowed {
            // It fails only if the thread is gone.
            let _ = sched_setaffinity(Pid::from_raw(self.last), &own);
        }
    }

    fn bind(&mut self) {
        if self.own.is_none() {
            return;
        }
        let cpu = sched_getcpu();
        let mut only = CpuSet::new();
        only.set(cpu);
        if sched_setaffinity(None, &only).is_ok() {
            self.bound = Some(Bound { cpu, only, narrowed: None });
        }
    }

    fn free(&mut self) {
        self.widen();
        if let (Some(own), Some(_)) = (self.own, self.bound.take()) {
            // The set was the recorder's before; if a CPU of it is gone, it stays where it is.
            let _ = sched_setaffinity(None, &own);
        }
    }
}

impl Drop for SameCpu {
    fn drop(&mut self) {
        self.free();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::time::now;

    /// Calls `with` with the id of another thread, which does nothing.
    fn with_thread(with: impl FnOnce(Tid)) {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_pid()).unwrap();
            // It gets nothing: the test drops the other end.
            assert!(ended.recv().is_err());
        });
        with(told.recv().unwrap());
        drop(end);
        thread.join().unwrap();
    }

    fn cpus(tid: Tid) -> u32 {
        sched_getaffinity(Pid::from_raw(tid)).unwrap().count()
    }

    #[test]
    fn a_thread_is_brought_to_the_recorder_and_keeps_its_cpus() {
        let own = cpus(0);
        with_thread(|tid| {
            let mut same = SameCpu::new();
            for _ in 1..STREAK {
                same.stopped(tid, 0);
                same.resume(tid, Until::Unknown, || assert_eq!(cpus(tid), own, "too few stops"));
            }
            same.stopped(tid, 0);
            assert_eq!(cpus(0), 1);
            same.resume(tid, Until::Unknown, || assert_eq!(cpus(tid), 1));
            assert_eq!(cpus(tid), own);
            same.resume(tid, Until::EndOfCall, || assert_eq!(cpus(tid), 1));
            assert_eq!(cpus(tid), 1, "until the call has ended");
            same.resume(tid, Until::UsesCpus, || assert_eq!(cpus(tid), own));
            assert_eq!(cpus(tid), own);
            same.resume(tid, Until::EndOfCall, || {});
            same.stopped(tid + 1, now());
            assert_eq!((cpus(tid), cpus(0)), (own, own), "another thread stops");
            for _ in 0..STREAK {
                same.stopped(tid, 0);
            }
            same.resume(tid, Until::EndOfCall, || {});
            drop(same);
            assert_eq!((cpus(tid), cpus(0)), (own, own), "the end");
        });
    }

    #[test]
    fn rare_stops_do_not_bind() {
        let own = cpus(0);
        let mut same = SameCpu::new();
        for stop in 0..10 * u64::from(STREAK) {
            same.stopped(1, stop * STREAK_NS / 8);
            assert_eq!(cpus(0), own);
        }
    }

    #[test]
    fn the_recorder_is_free_now_and_then() {
        let own = cpus(0);
        let mut same = SameCpu::new();
        let mut free = 0;
        for _ in 0..3 * (BOUND_STOPS + STREAK) {
            same.stopped(1, 0);
            free += u32::from(cpus(0) == own);
        }
        assert!(own == 1 || (3 * (STREAK - 1)..=4 * (STREAK + 1)).contains(&free), "{free}");
    }
}

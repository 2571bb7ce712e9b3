//! Threads that start at the same moment, each on a CPU of its own.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crossbeam_queue::ArrayQueue;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::thread;

/// Attempts before a waiting thread yields: there may be fewer CPUs than threads.
const SPINS: u32 = 256;

/// Waits a little, longer as `attempt` grows.
#[inline]
pub(crate) fn pause(attempt: u32) {
    if attempt < SPINS {
        spin_loop();
    } else {
        thread::yield_now();
    }
}

/// Waits for what another thread does soon.
pub(crate) fn wait_until(happened: impl Fn() -> bool) {
    let mut attempt = 0;
    while !happened() {
        pause(attempt);
        attempt += 1;
    }
}

/// A barrier. Spins, since waking a sleeping thread takes longer than a short round.
#[derive(Debug)]
pub(crate) struct StartLine {
    threads: usize,
    arrived: AtomicUsize,
    /// A thread has panicked, or was not started: it does not come.
    broken: AtomicBool,
}

impl StartLine {
    pub(crate) fn new(threads: usize) -> Self {
        Self { threads, arrived: AtomicUsize::new(0), broken: AtomicBool::new(false) }
    }

    /// Waits until every thread has come here as often as this one. None may leave it out, even when its work
    /// failed.
    ///
    /// # Panics
    ///
    /// When another thread does not come.
    pub(crate) fn wait(&self) {
        // Work that a thread did before is seen after: this addition and this load are the release and the
        // acquire. No thread comes again before all have come.
        let all = (self.arrived.fetch_add(1, Ordering::AcqRel) / self.threads + 1) * self.threads;
        let have_come = || self.arrived.load(Ordering::Acquire) >= all;
        wait_until(|| have_come() || self.broken.load(Ordering::Relaxed));
        assert!(have_come(), "another thread does not come");
    }
}

/// Where a thread panics while it has this, the others wait for it no longer.
struct Expected<'l>(&'l StartLine);

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.broken.store(true, Ordering::Relaxed);
        }
    }
}

/// A queue from one thread to another, which holds a bounded number of things.
#[derive(Debug)]
pub(crate) struct Ring<T> {
    queue: ArrayQueue<T>,
    /// Nothing follows. Set after the last thing was sent.
    done: AtomicBool,
}

impl<T> Ring<T> {
    pub(crate) fn new(places: usize) -> Self {
        Self { queue: ArrayQueue::new(places), done: AtomicBool::new(false) }
    }

    pub(crate) fn send(&self, mut thing: T) {
        let mut attempt = 0;
        while let Err(back) = self.queue.push(thing) {
            thing = back;
            pause(attempt);
            attempt += 1;
        }
    }

    /// The next thing, or `None` after the last.
    pub(crate) fn receive(&self) -> Option<T> {
        let mut attempt = 0;
        loop {
            // Read before the queue is: what was sent before `done` was set is found then. Pairs with
            // `finish`.
            let done = self.done.load(Ordering::Acquire);
            let thing = self.queue.pop();
            if done || thing.is_some() {
                return thing;
            }
            pause(attempt);
            attempt += 1;
        }
    }

    pub(crate) fn finish(&self) {
        self.done.store(true, Ordering::Release);
    }
}

/// Calls `work` on `threads` threads at once with their numbers, and collects the results.
///
/// Several threads are bound to host CPUs, one each, where there are enough: otherwise the host's scheduler
/// may take longer to separate two new threads than a round lasts. A single thread is left to the scheduler,
/// which knows the idler CPU.
///
/// # Panics
///
/// When a thread panics, or cannot be started.
pub(crate) fn on_threads<R: Send>(threads: usize, work: impl Fn(usize, &StartLine) -> R + Sync) -> Vec<R> {
    let usable = sched_getaffinity(None).unwrap_or_default();
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| usable.is_set(cpu)).collect();
    let (line, work, cpus) = (&StartLine::new(threads), &work, &cpus);
    let run = move |number: usize| {
        if (2..=cpus.len()).contains(&threads) {
            let mut own = CpuSet::new();
            own.set(cpus[number]);
            // If the host does not allow it, the thread runs anywhere, at some cost in precision.
            let _ = sched_setaffinity(None, &own);
        }
        let _expected = Expected(line);
        work(number, line)
    };
    thread::scope(|scope| {
        let _expected = Expected(line);
        let running: Vec<_> = (0..threads).map(|number| scope.spawn(move || run(number))).collect();
        let ended = running.into_iter().map(thread::ScopedJoinHandle::join);
        ended.map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// Gives the calling thread priority over other programs (`SCHED_RR`), if the host allows it: otherwise the
/// longest of a thousand waits is a wait for an unrelated program.
pub(crate) fn go_first() {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the structure is the caller's own. Zero is the calling thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const lowest) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_thread_passes_the_line_before_all_have_come() {
        let (before, after) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let seen = on_threads(3, |number, line| {
            before.fetch_add(1, Ordering::Relaxed);
            line.wait();
            let seen = before.load(Ordering::Relaxed);
            after.fetch_add(1, Ordering::Relaxed);
            line.wait();
            (number, seen, after.load(Ordering::Relaxed))
        });
        assert_eq!(seen, [(0, 3, 3), (1, 3, 3), (2, 3, 3)]);
    }

    /// Hazard: the others wait at the line for ever, and the panic ends nothing.
    #[test]
    #[should_panic(expected = "the first one")]
    fn a_thread_that_panics_is_not_waited_for() {
        on_threads(2, |number, line| {
            assert!(number > 0, "the first one");
            line.wait();
        });
    }
}

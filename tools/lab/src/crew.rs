//! Threads that start at the same moment, each on a CPU of its own.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicUsize, Ordering};
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

/// A barrier. Spins, since waking a sleeping thread takes longer than a short round.
#[derive(Debug)]
pub(crate) struct StartLine {
    threads: usize,
    arrived: AtomicUsize,
}

impl StartLine {
    pub(crate) fn new(threads: usize) -> Self {
        Self { threads, arrived: AtomicUsize::new(0) }
    }

    /// Waits until every thread has come here `times` times. Each thread passes 1, 2, 3, ... and skips none,
    /// even when its work failed.
    pub(crate) fn wait(&self, times: usize) {
        // Work that a thread did before is seen after: this addition and this load are the release and the
        // acquire.
        self.arrived.fetch_add(1, Ordering::AcqRel);
        let mut attempt = 0;
        while self.arrived.load(Ordering::Acquire) < self.threads * times {
            pause(attempt);
            attempt += 1;
        }
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
/// When a thread panics.
pub(crate) fn on_threads<R: Send>(threads: usize, work: impl Fn(usize, &StartLine) -> R + Sync) -> Vec<R> {
    let line = StartLine::new(threads);
    let cpus = if threads > 1 { usable_cpus() } else { Vec::new() };
    let (line, work) = (&line, &work);
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|number| {
                let cpu = if threads <= cpus.len() { Some(cpus[number]) } else { None };
                scope.spawn(move || {
                    bind(cpu);
                    work(number, line)
                })
            })
            .collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

fn usable_cpus() -> Vec<usize> {
    sched_getaffinity(None)
        .map(|set| (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
        .unwrap_or_default()
}

/// Binds the calling thread. If the host does not allow it, the thread runs anywhere, at some cost in
/// precision.
fn bind(cpu: Option<usize>) {
    if let Some(cpu) = cpu {
        let mut set = CpuSet::new();
        set.set(cpu);
        let _ = sched_setaffinity(None, &set);
    }
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
            line.wait(1);
            let seen = before.load(Ordering::Relaxed);
            after.fetch_add(1, Ordering::Relaxed);
            line.wait(2);
            (number, seen, after.load(Ordering::Relaxed))
        });
        assert_eq!(seen, [(0, 3, 3), (1, 3, 3), (2, 3, 3)]);
    }
}

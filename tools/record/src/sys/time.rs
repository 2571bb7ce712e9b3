//! Clocks, and the tick that keeps the recorder from waiting too long.

use super::Tid;
use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use rustix::thread::gettid;
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::time::Duration;

/// Nanoseconds of CLOCK_MONOTONIC, which the kernel also uses for the times of page faults.
pub(crate) fn now() -> u64 {
    clock(ClockId::Monotonic)
}

/// When to scan next after a scan that took from `before` to `after`: after `share` times as long, and
/// `least` nanoseconds.
pub(crate) fn next_look(before: u64, after: u64, share: u64, least: u64) -> u64 {
    after.saturating_add(after.saturating_sub(before).saturating_mul(share).max(least))
}

/// CPU time of the calling thread, in nanoseconds.
pub(crate) fn thread_cpu() -> u64 {
    clock(ClockId::ThreadCPUTime)
}

/// CPU time of all threads of a process, in nanoseconds; `None` if it is gone.
pub(crate) fn process_cpu(pid: Tid) -> Option<u64> {
    let clock = clock_getcpuclockid(Pid::from_raw(pid)).ok()?;
    Some(Duration::from(clock.now().ok()?).as_nanos() as u64)
}

fn clock(id: ClockId) -> u64 {
    let time = clock_gettime(id);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sends the calling thread a signal that does nothing, again and again, so that a wait returns in time.
#[derive(Debug)]
pub(crate) struct Tick(#[expect(dead_code, reason = "the ticks end with the timer")] Timer);

impl Tick {
    /// Starts the tick. `signal` must have a handler.
    pub(crate) fn start(every: Duration, signal: Signal) -> io::Result<Self> {
        let thread_id = gettid().as_raw_pid();
        let notify = SigevNotify::SigevThreadId { signal, thread_id, si_value: 0 };
        let mut timer = Timer::new(nix::time::ClockId::CLOCK_MONOTONIC, SigEvent::new(notify))?;
        timer.set(Expiration::Interval(every.into()), TimerSetTimeFlags::empty())?;
        Ok(Self(timer))
    }
}

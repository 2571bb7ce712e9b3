//! Clocks, and the tick that keeps the recorder from waiting too long.

use super::check;
use rustix::thread::gettid;
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// Nanoseconds of CLOCK_MONOTONIC: the clock that the kernel stamps page faults with, too.
pub(crate) fn now() -> u64 {
    clock(ClockId::Monotonic)
}

/// CPU time of the calling thread, in nanoseconds.
pub(crate) fn thread_cpu() -> u64 {
    clock(ClockId::ThreadCPUTime)
}

fn clock(id: ClockId) -> u64 {
    let time = clock_gettime(id);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sends the calling thread a signal that does nothing, again and again, so that a wait returns in time.
#[derive(Debug)]
pub(crate) struct Tick(libc::timer_t);

impl Tick {
    /// Starts the tick. `signal` must have a handler.
    pub(crate) fn start(every: Duration, signal: i32) -> io::Result<Self> {
        let mut event = MaybeUninit::<libc::sigevent>::zeroed();
        // SAFETY: a zeroed sigevent is a valid one; its fields are numbers and a union of pointers.
        let event = unsafe { event.assume_init_mut() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_notify_thread_id = gettid().as_raw_pid();
        let mut timer: libc::timer_t = std::ptr::null_mut();
        let event: *mut libc::sigevent = &raw mut *event;
        // SAFETY: both pointers are to live locals.
        check(i64::from(unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, event, &raw mut timer) }))?;
        let tick = Self(timer);
        let every =
            libc::timespec { tv_sec: every.as_secs() as i64, tv_nsec: i64::from(every.subsec_nanos()) };
        let setting = libc::itimerspec { it_interval: every, it_value: every };
        // SAFETY: the timer was just made, the setting is a live local, no old setting is asked for.
        let set = unsafe { libc::timer_settime(timer, 0, &raw const setting, std::ptr::null_mut()) };
        check(i64::from(set))?;
        Ok(tick)
    }
}

impl Drop for Tick {
    fn drop(&mut self) {
        // SAFETY: the timer was made by `start` and is deleted once.
        unsafe { libc::timer_delete(self.0) };
    }
}

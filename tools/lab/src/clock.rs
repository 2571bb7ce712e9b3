//! Clocks of the host.

use rustix::time::{ClockId, clock_gettime};

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds on the clock that all processes share.
pub(crate) fn now() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// How long something took, in nanoseconds: on the clock, and on the CPU.
pub(crate) fn timed<R>(work: impl FnOnce() -> R) -> (R, [f64; 2]) {
    let clocks = || [now(), nanoseconds(ClockId::ThreadCPUTime)];
    let start = clocks();
    let result = work();
    let end = clocks();
    (result, [0, 1].map(|nth| (end[nth] - start[nth]) as f64))
}

//! The replay of recordings.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod charge;
mod forks;
mod hostile;
mod life;
mod limits;
mod order;
mod order_limits;
mod replay;
mod reuse;
mod shared;
mod sizes;

use quire_trace::format::{CallSource, FaultSource, Pressure, TraceHeader, UseSource};

/// Of a recording that was made up.
fn header() -> TraceHeader {
    TraceHeader {
        cpus: 2,
        page_size: 4096,
        ram: 1 << 34,
        faults: FaultSource::Software,
        calls: CallSource::Seccomp,
        uses: UseSource::Sampled { interval_ms: 100 },
        pressure: Some(Pressure::of_sample(3 << 20, 8, 5).in_small_blocks()),
        ..TraceHeader::default()
    }
}

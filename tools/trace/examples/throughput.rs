//! Measures how fast a synthetic trace is written and read: `throughput [EVENTS]`.

use quire_trace::event::{Access, Call, CallDetail, Event, EventKind, Fault, Mode, Outcome, TaskId};
use quire_trace::format::{FaultSource, TraceError, TraceHeader, TraceReader, TraceWriter};
use std::time::Instant;

fn main() -> Result<(), TraceError> {
    let count = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(5_000_000);
    let events: Vec<Event> = (0..count).map(event).collect();
    let header = TraceHeader { cpus: 2, faults: FaultSource::Tracepoint, ..TraceHeader::default() };
    let begin = Instant::now();
    let mut writer = TraceWriter::new(Vec::new(), &header, TraceWriter::<Vec<u8>>::DEFAULT_LEVEL)?;
    for event in &events {
        writer.push(event)?;
    }
    let (file, _) = writer.finish(0, 0)?;
    report("write", count, begin);
    println!("{:.2} bytes an event", file.len() as f64 / count as f64);
    for _ in 0..3 {
        let begin = Instant::now();
        let mut sum = 0;
        for event in TraceReader::new(&file[..])? {
            sum += event?.time_ns;
        }
        report("read", count, begin);
        assert_ne!(sum, 0);
    }
    Ok(())
}

fn report(what: &str, count: u64, begin: Instant) {
    let seconds = begin.elapsed().as_secs_f64();
    println!("{what}: {:.1} M events/s", count as f64 / seconds / 1e6);
}

/// One call for each 16 faults, on two threads; addresses go upward with jumps, times are uneven.
fn event(n: u64) -> Event {
    let noise = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let kind = if n.is_multiple_of(17) {
        let args = [0, 4096 * (1 + noise % 64), 3, 34, u64::MAX, 0];
        EventKind::Call(Call {
            number: 9,
            args,
            result: (0x7f00_0000_0000 - n * 4096) as i64,
            detail: CallDetail::None,
        })
    } else {
        let addr = 0x7f00_0000_0000 + n * 4096 + noise % 4096;
        let access = if noise.is_multiple_of(4) { Access::Read } else { Access::Write };
        EventKind::Fault(Fault { addr, access, mode: Mode::User, outcome: Outcome::Minor, inferred: false })
    };
    Event {
        time_ns: n * 800 + noise % 700,
        task: TaskId((n / 100 % 2) as u32),
        cpu: (n / 50 % 2) as u32,
        kind,
    }
}

//! Trace files from bytes.
//!
//! The first byte says how the rest becomes a file: as it is; as frames that get right checksums, so that the
//! code behind the check is reached; or as events that a writer writes. Whatever the file is, reading it
//! ends, with an error whose place is in the file or with a trailer; salvaging it reads no less; and what can
//! be read can be replayed, after which the auditor finds nothing.

mod events;
mod sealed;

use crate::bytes::Bytes;
use quire_mm::thp::HugePolicy;
use quire_trace::event::{Event, EventKind};
use quire_trace::format::{TraceError, TraceReader, TraceWriter};
use quire_trace::replay::{Replay, ReplayError, ReplayOptions};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

/// RAM of the machine that replays: little, so that no event takes long.
const RAM: u64 = 1 << 20;
/// Events of a trace that is replayed. Each can fill the memory.
const MOST_REPLAYED: u64 = 64;

/// Runs an input.
pub(crate) fn run(bytes: &[u8], show: bool) {
    let mut bytes = Bytes::new(bytes);
    let file = match bytes.byte() % 4 {
        0 => bytes.take(usize::MAX).to_vec(),
        1 => sealed::file(&mut bytes),
        _ => {
            let events = events::events(&mut bytes);
            let file = write(&events);
            assert_same(&file, &events);
            file
        }
    };
    let whole = read(&file, show);
    let salvaged = salvage(&file);
    if let Ok(events) = whole {
        assert_eq!(salvaged, Some(events), "a whole trace is salvaged otherwise");
    }
    if salvaged.is_some_and(|events| events <= MOST_REPLAYED) {
        replay(&file, whole.is_err(), show);
    }
}

fn write(events: &[Event]) -> Vec<u8> {
    let mut writer = TraceWriter::new(Vec::new(), &events::header(), 1).expect("memory takes everything");
    for (number, event) in events.iter().enumerate() {
        writer.push(event).expect("an event is small");
        if number % 8 == 7 {
            writer.flush().expect("memory takes everything");
        }
    }
    writer.finish(1, 1).expect("memory takes everything").0
}

/// What was written is read.
fn assert_same(file: &[u8], events: &[Event]) {
    let mut reader = TraceReader::new(file).expect("a header");
    assert_eq!(*reader.header(), events::header());
    for event in events {
        assert_eq!(reader.next().expect("an event").as_ref().expect("a sound one"), event);
    }
    assert!(reader.next().is_none());
    let trailer = reader.trailer().expect("the end was reached");
    assert_eq!(trailer.events, events.len() as u64);
    assert_eq!(trailer.kinds.iter().sum::<u64>(), trailer.events);
}

/// Reads the whole file and returns how many events it has.
fn read(file: &[u8], show: bool) -> Result<u64, TraceError> {
    let wrong = |error: TraceError| {
        assert!(error.offset() <= file.len() as u64, "{error} lies behind the end, at {}", file.len());
        if show {
            eprintln!("{error}");
        }
        error
    };
    let mut reader = TraceReader::new(file).map_err(wrong)?;
    let mut events = 0;
    while let Some(event) = reader.next() {
        match event {
            Ok(event) => {
                events += 1;
                if show {
                    eprintln!("{event:x?}");
                }
            }
            Err(error) => {
                assert!(reader.next().is_none(), "it goes on after {error}");
                return Err(wrong(error));
            }
        }
    }
    assert_eq!(reader.offset(), file.len() as u64);
    assert_eq!(reader.trailer().expect("a whole trace has one").events, events);
    Ok(events)
}

/// Salvages the file and returns how many events that gives, those included that mark gaps. `None` if not
/// even the header can be read.
fn salvage(file: &[u8]) -> Option<u64> {
    let mut reader = TraceReader::new(file).ok()?.salvaging();
    let (mut events, mut lost) = (0, 0);
    for event in &mut reader {
        let event = event.unwrap_or_else(|error| panic!("salvaging ends with {error}"));
        events += 1;
        lost += u64::from(matches!(event.kind, EventKind::Lost(_)));
    }
    assert!(reader.offset() <= file.len() as u64);
    if let Some(damage) = reader.damage() {
        assert!(damage.bytes() <= file.len() as u64, "{damage}");
        assert!(damage.offset().is_none_or(|offset| offset <= file.len() as u64), "{damage}");
        assert!(damage.events() == 0 || lost > 0, "{damage}, but no event says so");
    } else {
        assert!(reader.trailer().is_some());
    }
    Some(events)
}

fn replay(file: &[u8], salvage: bool, show: bool) {
    let (_kept, path) = in_memory(file);
    let options = ReplayOptions {
        memory: Some(RAM),
        paranoid: true,
        salvage,
        contents: true,
        ..ReplayOptions::default()
    };
    let replay = match Replay::open(&path, options) {
        // Salvaging found nothing: there is nothing to replay.
        Err(ReplayError::NothingSalvaged(..)) if salvage => return,
        replay => replay.expect("it was read before"),
    };
    // Whatever it claims, the result is a number.
    let _ = replay.needs().ram(HugePolicy::default());
    let report = replay.run(&mut |_, _| {}).expect("it was read before, and so much RAM is enough to start");
    assert!(report.events == replay.needs().events() || report.does_not_fit.is_some());
    for process in &report.processes {
        assert!(process.audit.is_empty(), "{:#?}", process.audit);
    }
    if show {
        eprintln!("{report:#?}");
    }
}

/// The bytes as a file that has a name for as long as it is open.
fn in_memory(bytes: &[u8]) -> (File, PathBuf) {
    let file = memfd_create("quire-fuzz", MemfdFlags::CLOEXEC).expect("the host has files in memory");
    let mut file = File::from(file);
    file.write_all(bytes).expect("the host has memory");
    let path = format!("/proc/self/fd/{}", file.as_raw_fd()).into();
    (file, path)
}

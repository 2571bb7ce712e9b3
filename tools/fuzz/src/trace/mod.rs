//! Trace files from bytes.
//!
//! The first byte says how the rest becomes a file: as it is; as frames that get right checksums, so that the
//! code behind the check is reached; as a file whose checksums are set right and whose events are written
//! again, so that a recording can be mutated; or as events that a writer writes. Whatever the file is, reading
//! it ends, with an error whose place is in the file or with a trailer; salvaging it reads no less. That is
//! one target. What can be read can be replayed, after which the auditor finds nothing: with the RAM that it
//! gets by itself, and with too little. These are two more, since they take a hundred times as long.

mod events;
mod sealed;

use crate::bytes::Bytes;
use quire_mm::thp::{HugeConfig, HugeEnabled, HugePolicy};
use quire_replay::{Audits, Claims, Mismatch, Replay, ReplayError, ReplayOptions, ReplayReport};
use quire_trace::event::{Event, EventKind};
use quire_trace::format::{TraceError, TraceReader, TraceWriter};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// RAM of the machine that replays with too little memory: so little that no event takes long.
const RAM: u64 = 1 << 20;
/// Events of a trace that is replayed with that. Each can fill the memory.
const MOST_REPLAYED: u64 = 64;
/// RAM of the machine that a trace gets, where it is not more, and events of such a trace.
const MOST_RAM: u64 = 128 << 20;
const MOST_REPLAYED_IN_FULL: u64 = 512;

/// Reads an input as a trace.
pub(crate) fn read(bytes: &[u8], show: bool) {
    let mut bytes = Bytes::new(bytes);
    let (file, events) = file(&mut bytes);
    if let Some(events) = events {
        assert_same(&file, &events);
    }
    let whole = read_whole(&file, show);
    let salvaged = salvage(&file);
    match (whole, salvaged) {
        (Ok(events), salvaged) => {
            assert_eq!(salvaged, Some((events, false)), "a whole trace is salvaged otherwise");
        }
        (Err(error), Some((_, damaged))) => assert!(damaged, "salvaging calls it whole: {error}"),
        (Err(_), None) => {}
    }
}

/// Replays an input with the RAM that it gets by itself.
pub(crate) fn replay(bytes: &[u8], show: bool) {
    replay_by(replay_in_full, MOST_REPLAYED_IN_FULL, bytes, show);
}

/// Replays an input with too little RAM.
pub(crate) fn replay_short(bytes: &[u8], show: bool) {
    replay_by(replay_in_little, MOST_REPLAYED, bytes, show);
}

/// Replays an input in one way, if it has few events.
fn replay_by(replay: fn(&[u8], bool, bool), most: u64, bytes: &[u8], show: bool) {
    let (file, events) = file(&mut Bytes::new(bytes));
    if show {
        let _ = read_whole(&file, show);
    }
    let damaged = match events {
        // It was just written.
        Some(events) => (events.len() as u64 <= most).then_some(false),
        None => few_events(&file, most),
    };
    if let Some(damaged) = damaged {
        replay(&file, damaged, show);
    }
}

/// Whether a file that has at most so many events is damaged. `None` if it has more, or cannot be read: no
/// more of it is read than that takes.
fn few_events(file: &[u8], most: u64) -> Option<bool> {
    let mut reader = TraceReader::new(file).ok()?.salvaging();
    let events = reader.by_ref().take(most as usize + 1).count() as u64;
    (events <= most).then(|| reader.damage().is_some())
}

/// The file that the bytes are, and its events, if it was written of some.
fn file(bytes: &mut Bytes<'_>) -> (Vec<u8>, Option<Vec<Event>>) {
    let what = bytes.byte();
    let events = match what % 4 {
        0 if what == 0 => return (bytes.take(usize::MAX).to_vec(), None),
        0 => sealed::events(bytes.take(usize::MAX)),
        1 => return (sealed::file(bytes), None),
        _ => events::events(bytes),
    };
    (write(&events), Some(events))
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
fn read_whole(file: &[u8], show: bool) -> Result<u64, TraceError> {
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

/// Salvages the file and returns how many events that gives, those included that mark gaps, and whether it is
/// damaged. `None` if not even the header can be read.
fn salvage(file: &[u8]) -> Option<(u64, bool)> {
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
    Some((events, reader.damage().is_some()))
}

/// Opens a trace that was read before. `None` if salvaging finds nothing.
fn open(path: &Path, options: ReplayOptions) -> Option<Replay> {
    let salvage = options.salvage;
    match Replay::open(path, options) {
        Err(ReplayError::NothingSalvaged(..)) if salvage => None,
        Err(ReplayError::Impossible(..)) => None,
        replay => Some(replay.expect("it was read before")),
    }
}

/// Replays with the RAM that the trace gets by itself, and large folios where the trace wants them.
fn replay_in_full(file: &[u8], salvage: bool, show: bool) {
    let (_kept, path) = in_memory(file);
    let huge = HugeConfig {
        policy: HugePolicy::default().with_enabled(HugeEnabled::Always),
        ..HugeConfig::default()
    };
    let audits = Audits::Never;
    let claims = Claims::Few;
    let options = ReplayOptions { salvage, huge, audits, claims, life: true, ..ReplayOptions::default() };
    let Some(replay) = open(&path, options.clone()) else { return };
    let needed = replay.needs().ram(huge.policy);
    assert!(needed >= replay.needs().ram(HugePolicy::MADVISE));
    if needed > MOST_RAM {
        return;
    }
    let in_proportion = replay.needs().too_much_at().is_none();
    let again = replay.with(options);
    let replay = replay.load().expect("it was read before");
    let machine = replay.machine().expect("so much RAM is enough to start");
    let report = replay.run_on(&machine).expect("its CPUs are free");
    let audit = machine.audit();
    assert!(audit.is_empty(), "{audit:#?}");
    if show {
        eprintln!("{report:#?}");
    }
    assert!(report.ram <= needed);
    // It is out of proportion only if that was found before. What it needs is enough.
    let unexpected = |report: &ReplayReport| {
        let finding = report.does_not_fit.clone();
        finding.filter(|finding| in_proportion || !finding.out_of_proportion)
    };
    let Some(finding) = unexpected(&report) else { return };
    // Unless results differ from the recorded ones, which the plan follows: then it gets more.
    let is_before = |found: &Mismatch| found.event < finding.event;
    let differs = report.processes.iter().any(|process| process.first_mismatches.iter().any(is_before));
    assert!(differs && !finding.out_of_proportion, "{finding:?}");
    drop(machine);
    let report = again.run(&mut |_, _| {}).expect("it was read before");
    assert!(unexpected(&report).is_none() || report.host_is_short, "{:?}", report.does_not_fit);
}

/// Replays with too little RAM for most, up to where the events claim too much.
fn replay_in_little(file: &[u8], salvage: bool, show: bool) {
    let (_kept, path) = in_memory(file);
    let options = ReplayOptions {
        memory: Some(RAM),
        paranoid: true,
        salvage,
        contents: true,
        claims: Claims::Few,
        ..ReplayOptions::default()
    };
    let Some(replay) = open(&path, options.clone()) else { return };
    let stop_at = replay.needs().too_much_at();
    let replay = replay.with(ReplayOptions { stop_at, ..options });
    // Whatever it claims, the result is a number.
    let _ = replay.needs().ram(HugePolicy::default());
    let report = replay.run(&mut |_, _| {}).expect("it was read before, and so much RAM is enough to start");
    let end = stop_at.unwrap_or(replay.needs().events());
    assert!(report.events == end || report.does_not_fit.is_some());
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

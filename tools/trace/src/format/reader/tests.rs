//! What salvaging hostile files costs.

use super::*;
use crate::event::{Event, EventKind, ExitStatus, TaskId};
use crate::format::{FaultSource, TraceWriter};

fn header() -> TraceHeader {
    TraceHeader { faults: FaultSource::Tracepoint, ..TraceHeader::default() }
}

/// A file that holds nothing but heads after its header, each with these fields.
fn heads(count: usize, of: impl Fn(usize) -> FrameHead) -> Vec<u8> {
    let mut file = Vec::new();
    drop(TraceWriter::new(&mut file, &header(), 1).expect("memory takes everything"));
    for number in 0..count {
        file.extend_from_slice(&of(number).to_bytes());
    }
    file
}

/// Each head claims that all of the next half mebibyte are its contents, and none has their checksum.
#[test]
fn salvage_checks_bytes_that_many_frames_claim_once() {
    const LEN: u32 = 512 << 10;
    let (kind, codec) = (FrameKind::Block, Codec::Plain);
    let file = heads(30_000, |number| FrameHead {
        kind,
        codec,
        raw_len: LEN,
        stored_len: LEN,
        first_event: 0,
        events: 1,
        stored_crc: number as u32,
    });
    let mut reader = TraceReader::new(&file[..]).expect("a header").salvaging();
    assert_eq!((&mut reader).count(), 0);
    assert!(reader.damage().is_some_and(|damage| damage.bytes() > 1 << 20));
    let checked = reader.input.checked();
    assert!(checked < 20 * file.len() as u64, "{checked} bytes of {} were checked", file.len());
}

/// Frames within the contents of another one, which is whole but makes no sense: it is left out as a whole.
#[test]
fn salvage_looks_for_no_frames_in_one_that_is_whole() {
    let (kind, codec) = (FrameKind::Block, Codec::Zstd);
    let inner = FrameHead {
        kind,
        codec: Codec::Plain,
        raw_len: 0,
        stored_len: 0,
        first_event: 0,
        events: 0,
        stored_crc: 0,
    };
    let contents = inner.to_bytes().repeat(100);
    let len = contents.len() as u32;
    let outer = FrameHead {
        kind,
        codec,
        raw_len: 1 << 20,
        stored_len: len,
        first_event: 0,
        events: 1,
        stored_crc: crate::format::crc::crc32(&contents),
    };
    let mut file = heads(1, |_| outer);
    file.extend_from_slice(&contents);
    let mut reader = TraceReader::new(&file[..]).expect("a header").salvaging();
    assert_eq!((&mut reader).count(), 0);
    assert_eq!(reader.damage().map(Damage::places), Some(1));
}

/// A recording of one event.
fn whole(code: u8) -> Vec<u8> {
    let mut writer = TraceWriter::new(Vec::new(), &header(), 1).expect("memory takes everything");
    let kind = EventKind::Exit(ExitStatus::Code(code));
    writer.push(&Event { time_ns: 0, task: TaskId(0), cpu: 0, kind }).expect("memory takes everything");
    writer.finish(1, 0).expect("memory takes everything").0
}

/// What a reader refuses, a salvaging one does not call whole.
#[test]
fn salvage_tells_of_what_follows_the_end_and_of_wrong_totals() {
    let [one, other] = [whole(0), whole(7)];
    let end = |file: &[u8]| file.windows(4).rposition(|marker| marker == b"QEND").expect("a trailer");
    let longer = [&one[..], &other[..]].concat();
    let mixed = [&one[..end(&one)], &other[end(&other)..]].concat();
    for (file, bytes, offset) in [(longer, other.len(), one.len()), (mixed, 0, end(&one))] {
        assert!(TraceReader::new(&file[..]).expect("a header").any(|event| event.is_err()));
        let mut reader = TraceReader::new(&file[..]).expect("a header").salvaging();
        assert_eq!((&mut reader).filter(Result::is_ok).count(), 1);
        let damage = reader.damage().expect("a reader refuses it");
        assert_eq!((damage.bytes(), damage.offset()), (bytes as u64, Some(offset as u64)));
        assert_eq!((damage.places(), damage.events(), damage.cut_short()), (1, 0, false));
    }
    let mut reader = TraceReader::new(&one[..]).expect("a header").salvaging();
    assert!((&mut reader).count() == 1 && reader.damage().is_none());
}

/// A hole in a file is larger than what the reader keeps: what is whole behind it is read.
#[test]
fn salvage_reads_what_is_behind_a_large_hole() {
    let mut writer = TraceWriter::new(Vec::new(), &header(), 1).expect("memory takes everything");
    let begin = writer.bytes() as usize;
    let kind = EventKind::Exit(ExitStatus::Code(0));
    writer.push(&Event { time_ns: 0, task: TaskId(0), cpu: 0, kind }).expect("memory takes everything");
    let (whole, _) = writer.finish(1, 0).expect("memory takes everything");
    for hole in (0..40).map(|number| number * 50_021 + 1) {
        let file = [&whole[..begin], &vec![0; hole], &whole[begin..]].concat();
        let mut reader = TraceReader::new(&file[..]).expect("a header").salvaging();
        assert_eq!((&mut reader).count(), 1, "behind {hole} bytes");
        assert_eq!(reader.damage().map(Damage::bytes), Some(hole as u64));
    }
}

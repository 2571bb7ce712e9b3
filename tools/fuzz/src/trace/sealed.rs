//! Files with correct checksums and arbitrary contents: `docs/trace-format.md`, "Bytes".

use super::events;
use crate::bytes::Bytes;
use quire_trace::event::{Event, EventKind, LostCause};
use quire_trace::format::{TraceReader, TraceWriter};

const MAGIC: &[u8] = b"\x89QTR\r\n\x1a\n\x02\0\0\0";
const MARKERS: [&[u8; 4]; 4] = [b"QBLK", b"QBLK", b"QEND", b"QHDR"];
/// Bytes of a frame's head, and where it has the length of what follows and the checksums of that and its own.
const HEAD: usize = 36;
const LENGTH_AT: usize = 12;
const CONTENTS_CRC_AT: usize = 28;
const HEAD_CRC_AT: usize = 32;

/// A file of the frames that the bytes describe, each by a byte with its kind and what is odd about it, a
/// byte with the number of its events, and a byte with the length of its contents, which follow.
pub(super) fn file(bytes: &mut Bytes<'_>) -> Vec<u8> {
    let mut file;
    let mut first_event = 0u64;
    let mut chain = Vec::new();
    if bytes.byte() & 1 == 0 {
        file = a_header();
    } else {
        file = MAGIC.to_vec();
        let len = bytes.byte().into();
        frame(&mut file, Frame { marker: b"QHDR", contents: bytes.take(len), ..Frame::default() });
    }
    while let Some(how) = bytes.next() {
        let (events, len) = (bytes.byte(), usize::from(bytes.byte()));
        let odd = how & 0x30 == 0x30;
        let skew = if odd { bytes.number() } else { 0 };
        let marker = MARKERS[usize::from(how & 3)];
        let rest = bytes.take(len);
        let contents = if marker == b"QEND" && !odd {
            // A trailer that fits.
            trailer(first_event, chain.len() as u64 / 4, crc32fast::hash(&chain), rest)
        } else {
            rest.to_vec()
        };
        let compressed = how & 0x0c == 0x0c;
        // Contents that are compressed claim to be longer than they are.
        let raw_len = if compressed { 16 << (how >> 6) } else { contents.len() as u32 };
        let first = first_event.wrapping_add(skew);
        let events = u32::from(events);
        let crc = frame(&mut file, Frame { marker, compressed, raw_len, first, events, contents: &contents });
        if marker == b"QBLK" {
            chain.extend_from_slice(&crc.to_le_bytes());
            first_event = first.wrapping_add(events.into());
        }
    }
    file
}

/// The events of a file once its checksums are right, as many as one input has: of the blocks that can be
/// decoded then.
pub(super) fn events(file: &[u8]) -> Vec<Event> {
    let file = resealed(file);
    let Ok(reader) = TraceReader::new(&file[..]) else { return Vec::new() };
    // That something is missing only a reader says.
    let is_found =
        |event: &Event| matches!(&event.kind, EventKind::Lost(lost) if lost.cause == LostCause::Damage);
    let events = reader.salvaging().map_while(Result::ok).filter(|event| !is_found(event));
    events.take(events::MOST_EVENTS).collect()
}

/// The file with right checksums in all frames that lie one after the other.
fn resealed(file: &[u8]) -> Vec<u8> {
    let mut file = file.to_vec();
    let mut at = MAGIC.len();
    while let Some((head, rest)) = file.get_mut(at..).and_then(|rest| rest.split_at_mut_checked(HEAD)) {
        let [a, b, c, d] = std::array::from_fn(|byte| head[LENGTH_AT + byte]);
        let Some(contents) = rest.get(..u32::from_le_bytes([a, b, c, d]) as usize) else { break };
        head[CONTENTS_CRC_AT..HEAD_CRC_AT].copy_from_slice(&crc32fast::hash(contents).to_le_bytes());
        let seal = crc32fast::hash(&head[..HEAD_CRC_AT]);
        head[HEAD_CRC_AT..].copy_from_slice(&seal.to_le_bytes());
        at += HEAD + contents.len();
    }
    file
}

/// A whole trace without events, without its trailer.
fn a_header() -> Vec<u8> {
    let mut sink = Vec::new();
    let writer = TraceWriter::new(&mut sink, &events::header(), 1);
    writer.map(drop).expect("memory takes everything");
    sink
}

#[derive(Clone, Copy, Default)]
struct Frame<'c> {
    marker: &'c [u8],
    compressed: bool,
    raw_len: u32,
    first: u64,
    events: u32,
    contents: &'c [u8],
}

/// Appends a frame and returns the checksum of its contents.
fn frame(file: &mut Vec<u8>, frame: Frame<'_>) -> u32 {
    let stored_len = frame.contents.len() as u32;
    let raw_len = if frame.compressed { frame.raw_len } else { stored_len };
    let crc = crc32fast::hash(frame.contents);
    let mut head = Vec::with_capacity(HEAD);
    head.extend_from_slice(frame.marker);
    head.extend_from_slice(&[u8::from(frame.compressed), 0, 0, 0]);
    head.extend_from_slice(&raw_len.to_le_bytes());
    head.extend_from_slice(&stored_len.to_le_bytes());
    head.extend_from_slice(&frame.first.to_le_bytes());
    head.extend_from_slice(&frame.events.to_le_bytes());
    head.extend_from_slice(&crc.to_le_bytes());
    let seal = crc32fast::hash(&head);
    head.extend_from_slice(&seal.to_le_bytes());
    file.extend_from_slice(&head);
    file.extend_from_slice(frame.contents);
    crc
}

/// The contents of a trailer: the totals as they are, then the counts of each kind, one byte each.
fn trailer(events: u64, blocks: u64, chain: u32, kinds: &[u8]) -> Vec<u8> {
    const KINDS: usize = EventKind::COUNT;
    let mut out = Vec::new();
    put(&mut out, events);
    put(&mut out, blocks);
    put(&mut out, KINDS as u64);
    for kind in 0..KINDS {
        put(&mut out, kinds.get(kind).copied().unwrap_or(0).into());
    }
    for number in [0, 0, 0, u64::from(chain)] {
        put(&mut out, number);
    }
    out
}

/// A varint.
fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_trace::event::{ExitStatus, TaskId};

    #[test]
    fn a_recording_whose_bytes_were_changed_still_has_its_events() {
        let mut writer = TraceWriter::new(Vec::new(), &events::header(), 1).expect("memory takes everything");
        for code in 0..8 {
            let kind = EventKind::Exit(ExitStatus::Code(code));
            writer.push(&Event { time_ns: 7, task: TaskId(0), cpu: 0, kind }).expect("an event is small");
            writer.flush().expect("memory takes everything");
        }
        let file = writer.finish(1, 0).expect("memory takes everything").0;
        let before = events(&file);
        assert_eq!(before.len(), 8);
        // The last byte of the third block is a part of its event.
        let blocks: Vec<usize> = (0..file.len()).filter(|&at| file[at..].starts_with(b"QBLK")).collect();
        let mut changed = file.clone();
        changed[blocks[3] - 1] ^= 1;
        assert!(TraceReader::new(&changed[..]).expect("a header").any(|event| event.is_err()));
        let after = events(&changed);
        let differ: Vec<usize> = (0..8).filter(|&number| before[number] != after[number]).collect();
        assert_eq!((after.len(), differ), (8, vec![2]));
    }
}

//! Traces in Perfetto's format (`perfetto.protos.Trace`): counters and slices over time, on tracks of
//! processes and threads.

mod messages;

use messages::{Message, annotation, counter, packet, process, thread, track_descriptor, track_event};
use prost::encoding::WireType;

/// The byte that a trace begins with: the key of its first packet.
pub(crate) const FIRST_BYTE: u8 = (PACKET << 3 | WireType::LengthDelimited as u32) as u8;
/// The field of a trace in which its packets are.
const PACKET: u32 = 1;
/// All packets are of one sequence.
const SEQUENCE: u64 = 1;
/// The sequence refers to nothing before (`SEQ_INCREMENTAL_STATE_CLEARED`).
const STATE_CLEARED: u64 = 1;

// What an event is (`TrackEvent.Type`).
const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const INSTANT: u64 = 3;
const COUNTER: u64 = 4;

/// Where events are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Track(u64);

/// What a counter counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// Bytes.
    Bytes,
    /// Things.
    Things,
}

/// An annotation of an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Detail {
    /// A number.
    Number(u64),
    /// An address.
    Address(u64),
    /// Words.
    Text(String),
}

/// A trace in progress. Times are in nanoseconds.
#[derive(Debug, Default)]
pub struct Trace {
    tracks: Vec<Message>,
    events: Vec<(u64, Message)>,
}

impl Trace {
    fn add(&mut self, track: Message) -> Track {
        let uuid = self.tracks.len() as u64 + 1;
        self.tracks.push(track.number(track_descriptor::UUID, uuid));
        Track(uuid)
    }

    /// A track of a process.
    pub fn process(&mut self, pid: u32, name: &str) -> Track {
        let process = Message::default().int32(process::PID, pid as i32).text(process::NAME, name);
        self.add(Message::default().message(track_descriptor::PROCESS, &process))
    }

    /// A track of a thread of process `pid`.
    pub fn thread(&mut self, pid: u32, tid: u32, name: &str) -> Track {
        let thread = Message::default().int32(thread::PID, pid as i32).int32(thread::TID, tid as i32);
        self.add(Message::default().message(track_descriptor::THREAD, &thread.text(thread::NAME, name)))
    }

    /// A track of a counter, below another track if that is given.
    pub fn counter(&mut self, name: &str, counted: Counted, parent: Option<Track>) -> Track {
        let unit = match counted {
            Counted::Bytes => counter::SIZE_BYTES,
            Counted::Things => counter::COUNT,
        };
        let mut track = Message::default().text(track_descriptor::NAME, name);
        if let Some(Track(uuid)) = parent {
            track = track.number(track_descriptor::PARENT_UUID, uuid);
        }
        self.add(track.message(track_descriptor::COUNTER, &Message::default().number(counter::UNIT, unit)))
    }

    /// The counter of `track` is `value` from `time_ns` on.
    pub fn count(&mut self, track: Track, time_ns: u64, value: u64) {
        let value = value.min(i64::MAX as u64);
        self.push(time_ns, track, Message::default().number(track_event::COUNTER_VALUE, value), COUNTER);
    }

    /// Something happened at `time_ns`.
    pub fn instant(
        &mut self,
        track: Track,
        time_ns: u64,
        name: &str,
        category: &str,
        details: &[(&str, Detail)],
    ) {
        self.push(time_ns, track, event(name, category, details), INSTANT);
    }

    /// Something went on from the first time to the last.
    pub fn slice(
        &mut self,
        track: Track,
        (from_ns, to_ns): (u64, u64),
        name: &str,
        category: &str,
        details: &[(&str, Detail)],
    ) {
        self.push(from_ns, track, event(name, category, details), SLICE_BEGIN);
        self.push(to_ns.max(from_ns), track, Message::default(), SLICE_END);
    }

    fn push(&mut self, time_ns: u64, Track(uuid): Track, event: Message, kind: u64) {
        let event = event.number(track_event::TYPE, kind).number(track_event::TRACK_UUID, uuid);
        self.events.push((time_ns, event));
    }

    /// The bytes of the file: tracks first, then events in the order of their times.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.events.sort_by_key(|&(time_ns, _)| time_ns);
        let in_sequence = || Message::default().number(packet::SEQUENCE_ID, SEQUENCE);
        let mut trace = Message::default();
        for (place, track) in self.tracks.iter().enumerate() {
            let mut packet = in_sequence();
            if place == 0 {
                packet = packet.number(packet::SEQUENCE_FLAGS, STATE_CLEARED);
            }
            trace = trace.message(PACKET, &packet.message(packet::TRACK_DESCRIPTOR, track));
        }
        for (time_ns, event) in &self.events {
            let packet = in_sequence().number(packet::TIMESTAMP, *time_ns);
            trace = trace.message(PACKET, &packet.message(packet::TRACK_EVENT, event));
        }
        trace.into_bytes()
    }
}

fn event(name: &str, category: &str, details: &[(&str, Detail)]) -> Message {
    let event = Message::default().text(track_event::NAME, name).text(track_event::CATEGORIES, category);
    details.iter().fold(event, |event, (name, detail)| {
        let annotation = Message::default().text(annotation::NAME, name);
        let annotation = match detail {
            Detail::Number(number) => annotation.number(annotation::UINT, *number),
            Detail::Address(address) => annotation.number(annotation::POINTER, *address),
            Detail::Text(text) => annotation.text(annotation::TEXT, text),
        };
        event.message(track_event::DEBUG_ANNOTATIONS, &annotation)
    })
}

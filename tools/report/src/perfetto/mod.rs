//! Traces in Perfetto's format (`perfetto.protos.Trace`): counters and slices over time, on tracks of
//! processes and threads.

mod messages;

use messages::{
    AnnotationValue, CounterDescriptor, CounterUnit, DebugAnnotation, EventType, ProcessDescriptor,
    ThreadDescriptor, TracePacket, TrackDescriptor, TrackEvent,
};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

/// The byte that a trace begins with: the key of its first packet.
pub(crate) const FIRST_BYTE: u8 = (PACKET << 3 | WireType::LengthDelimited as u32) as u8;
/// The field of a trace in which its packets are.
const PACKET: u32 = 1;
/// All packets are of one sequence.
const SEQUENCE: u32 = 1;
/// The sequence refers to nothing before (`SEQ_INCREMENTAL_STATE_CLEARED`).
const STATE_CLEARED: u32 = 1;

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
    tracks: Vec<TrackDescriptor>,
    events: Vec<(u64, TrackEvent)>,
}

impl Trace {
    fn add(&mut self, track: TrackDescriptor) -> Track {
        let uuid = self.tracks.len() as u64 + 1;
        self.tracks.push(TrackDescriptor { uuid: Some(uuid), ..track });
        Track(uuid)
    }

    /// A track of a process.
    pub fn process(&mut self, pid: u32, name: &str) -> Track {
        let process = ProcessDescriptor { pid: Some(pid as i32), process_name: Some(name.to_owned()) };
        self.add(TrackDescriptor { process: Some(process), ..TrackDescriptor::default() })
    }

    /// A track of a thread of process `pid`.
    pub fn thread(&mut self, pid: u32, tid: u32, name: &str) -> Track {
        let thread = ThreadDescriptor {
            pid: Some(pid as i32),
            tid: Some(tid as i32),
            thread_name: Some(name.to_owned()),
        };
        self.add(TrackDescriptor { thread: Some(thread), ..TrackDescriptor::default() })
    }

    /// A track of a counter, below another track if that is given.
    pub fn counter(&mut self, name: &str, counted: Counted, parent: Option<Track>) -> Track {
        let unit = match counted {
            Counted::Bytes => CounterUnit::SizeBytes,
            Counted::Things => CounterUnit::Count,
        };
        self.add(TrackDescriptor {
            name: Some(name.to_owned()),
            parent_uuid: parent.map(|Track(uuid)| uuid),
            counter: Some(CounterDescriptor { unit: Some(unit as i32) }),
            ..TrackDescriptor::default()
        })
    }

    /// The counter of `track` is `value` from `time_ns` on.
    pub fn count(&mut self, track: Track, time_ns: u64, value: u64) {
        let counter_value = Some(i64::try_from(value).unwrap_or(i64::MAX));
        self.push(time_ns, track, EventType::Counter, TrackEvent { counter_value, ..TrackEvent::default() });
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
        self.push(time_ns, track, EventType::Instant, event(name, category, details));
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
        self.push(from_ns, track, EventType::SliceBegin, event(name, category, details));
        self.push(to_ns.max(from_ns), track, EventType::SliceEnd, TrackEvent::default());
    }

    fn push(&mut self, time_ns: u64, Track(uuid): Track, kind: EventType, event: TrackEvent) {
        self.events
            .push((time_ns, TrackEvent { r#type: Some(kind as i32), track_uuid: Some(uuid), ..event }));
    }

    /// The bytes of the file: tracks first, then events in the order of their times.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.events.sort_by_key(|&(time_ns, _)| time_ns);
        let tracks = self.tracks.into_iter().enumerate().map(|(place, track)| TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            sequence_flags: (place == 0).then_some(STATE_CLEARED),
            track_descriptor: Some(track),
            ..TracePacket::default()
        });
        let events = self.events.into_iter().map(|(time_ns, event)| TracePacket {
            timestamp: Some(time_ns),
            trusted_packet_sequence_id: Some(SEQUENCE),
            track_event: Some(event),
            ..TracePacket::default()
        });
        let mut out = Vec::new();
        for packet in tracks.chain(events) {
            encode_key(PACKET, WireType::LengthDelimited, &mut out);
            encode_varint(packet.encoded_len() as u64, &mut out);
            packet.encode_raw(&mut out);
        }
        out
    }
}

fn event(name: &str, category: &str, details: &[(&str, Detail)]) -> TrackEvent {
    let annotation = |(name, detail): &(&str, Detail)| DebugAnnotation {
        name: Some((*name).to_owned()),
        value: Some(match detail {
            Detail::Number(number) => AnnotationValue::Uint(*number),
            Detail::Address(address) => AnnotationValue::Pointer(*address),
            Detail::Text(text) => AnnotationValue::Text(text.clone()),
        }),
    };
    TrackEvent {
        name: Some(name.to_owned()),
        categories: vec![category.to_owned()],
        debug_annotations: details.iter().map(annotation).collect(),
        ..TrackEvent::default()
    }
}

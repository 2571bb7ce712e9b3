//! The messages of Perfetto's schema (`protos/perfetto/trace`) that are written here: their field numbers,
//! and their bytes.

use prost::encoding::{self, WireType, encode_key, encode_varint};

/// The bytes of a message, made of one field after the other.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    /// With a number: each type of unsigned integers and of enumerations, and int64.
    pub(super) fn number(mut self, field: u32, value: u64) -> Self {
        encoding::uint64::encode(field, &value, &mut self.0);
        self
    }

    pub(super) fn int32(mut self, field: u32, value: i32) -> Self {
        encoding::int32::encode(field, &value, &mut self.0);
        self
    }

    pub(super) fn text(self, field: u32, text: &str) -> Self {
        self.delimited(field, text.as_bytes())
    }

    pub(super) fn message(self, field: u32, message: &Self) -> Self {
        self.delimited(field, &message.0)
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn delimited(mut self, field: u32, bytes: &[u8]) -> Self {
        encode_key(field, WireType::LengthDelimited, &mut self.0);
        encode_varint(bytes.len() as u64, &mut self.0);
        self.0.extend_from_slice(bytes);
        self
    }
}

/// `TracePacket`: a step of a trace.
pub(super) mod packet {
    pub(in super::super) const TIMESTAMP: u32 = 8;
    pub(in super::super) const SEQUENCE_ID: u32 = 10;
    pub(in super::super) const TRACK_EVENT: u32 = 11;
    pub(in super::super) const SEQUENCE_FLAGS: u32 = 13;
    pub(in super::super) const TRACK_DESCRIPTOR: u32 = 60;
}

/// `TrackDescriptor`.
pub(super) mod track_descriptor {
    pub(in super::super) const UUID: u32 = 1;
    pub(in super::super) const NAME: u32 = 2;
    pub(in super::super) const PROCESS: u32 = 3;
    pub(in super::super) const THREAD: u32 = 4;
    pub(in super::super) const PARENT_UUID: u32 = 5;
    pub(in super::super) const COUNTER: u32 = 8;
}

/// `ProcessDescriptor`.
pub(super) mod process {
    pub(in super::super) const PID: u32 = 1;
    pub(in super::super) const NAME: u32 = 6;
}

/// `ThreadDescriptor`.
pub(super) mod thread {
    pub(in super::super) const PID: u32 = 1;
    pub(in super::super) const TID: u32 = 2;
    pub(in super::super) const NAME: u32 = 5;
}

/// `CounterDescriptor`, with the units that a counter can have.
pub(super) mod counter {
    pub(in super::super) const UNIT: u32 = 3;
    pub(in super::super) const COUNT: u64 = 2;
    pub(in super::super) const SIZE_BYTES: u64 = 3;
}

/// `TrackEvent`.
pub(super) mod track_event {
    pub(in super::super) const DEBUG_ANNOTATIONS: u32 = 4;
    pub(in super::super) const TYPE: u32 = 9;
    pub(in super::super) const TRACK_UUID: u32 = 11;
    pub(in super::super) const CATEGORIES: u32 = 22;
    pub(in super::super) const NAME: u32 = 23;
    pub(in super::super) const COUNTER_VALUE: u32 = 30;
}

/// `DebugAnnotation`.
pub(super) mod annotation {
    pub(in super::super) const UINT: u32 = 3;
    pub(in super::super) const TEXT: u32 = 6;
    pub(in super::super) const POINTER: u32 = 7;
    pub(in super::super) const NAME: u32 = 10;
}

//! Frames, which contain all parts of the file.
//!
//! The head has a checksum of its own, so that a reader can trust the lengths before it allocates, and can
//! find the next frame after damage.

use super::crc::crc32;
use super::{BLOCK_LIMIT, FACTS_LIMIT};

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameKind {
    Header,
    Block,
    Trailer,
}

impl FrameKind {
    const ALL: [Self; 3] = [Self::Header, Self::Block, Self::Trailer];

    fn marker(self) -> [u8; 4] {
        match self {
            Self::Header => *b"QHDR",
            Self::Block => *b"QBLK",
            Self::Trailer => *b"QEND",
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Header => "the header",
            Self::Block => "a block of events",
            Self::Trailer => "the trailer",
        }
    }

    pub(crate) fn limit(self) -> usize {
        match self {
            Self::Block => BLOCK_LIMIT,
            Self::Header | Self::Trailer => FACTS_LIMIT,
        }
    }
}

/// How the bytes of a frame are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codec {
    Plain,
    Zstd,
}

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHead {
    pub(crate) kind: FrameKind,
    pub(crate) codec: Codec,
    /// Length of the contents once decompressed.
    pub(crate) raw_len: u32,
    /// Length of the contents as they lie in the file.
    pub(crate) stored_len: u32,
    /// The number of the first event inside, counted from 0 over the whole trace.
    pub(crate) first_event: u64,
    /// How many events are inside.
    pub(crate) events: u32,
    /// Checksum of the contents as they lie in the file.
    pub(crate) stored_crc: u32,
}

/// Bytes of a head.
pub(crate) const HEAD_LEN: usize = 36;

/// Why bytes are not a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadHead {
    Checksum,
    Fields(&'static str),
    TooLarge { kind: FrameKind, found: u32 },
}

impl FrameHead {
    pub(crate) fn to_bytes(self) -> [u8; HEAD_LEN] {
        let mut bytes = [0; HEAD_LEN];
        bytes[0..4].copy_from_slice(&self.kind.marker());
        bytes[4] = match self.codec {
            Codec::Plain => 0,
            Codec::Zstd => 1,
        };
        bytes[8..12].copy_from_slice(&self.raw_len.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.stored_len.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.first_event.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.events.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.stored_crc.to_le_bytes());
        let crc = crc32(&bytes[..32]);
        bytes[32..36].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; HEAD_LEN]) -> Result<Self, BadHead> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if crc32(&bytes[..32]) != word(32) {
            return Err(BadHead::Checksum);
        }
        let kind = FrameKind::ALL.into_iter().find(|kind| kind.marker() == bytes[..4]);
        let kind = kind.ok_or(BadHead::Fields("unknown kind of frame"))?;
        let codec = match bytes[4] {
            0 => Codec::Plain,
            1 => Codec::Zstd,
            _ => return Err(BadHead::Fields("unknown compression")),
        };
        if bytes[5..8] != [0; 3] {
            return Err(BadHead::Fields("reserved bytes are in use"));
        }
        let head = Self {
            kind,
            codec,
            raw_len: word(8),
            stored_len: word(12),
            first_event: u64::from(word(16)) | u64::from(word(20)) << 32,
            events: word(24),
            stored_crc: word(28),
        };
        let largest = head.raw_len.max(head.stored_len);
        if largest as usize > kind.limit() {
            return Err(BadHead::TooLarge { kind, found: largest });
        }
        if codec == Codec::Plain && head.raw_len != head.stored_len {
            return Err(BadHead::Fields("two lengths of plain contents differ"));
        }
        // An event takes at least one byte.
        if head.events > head.raw_len || head.first_event.checked_add(u64::from(head.events)).is_none() {
            return Err(BadHead::Fields("more events than bytes"));
        }
        Ok(head)
    }

    /// Whether these bytes could begin a head: cheap enough to try at every offset.
    pub(crate) fn is_marker(bytes: &[u8]) -> bool {
        FrameKind::ALL.into_iter().any(|kind| bytes.starts_with(&kind.marker()))
    }
}

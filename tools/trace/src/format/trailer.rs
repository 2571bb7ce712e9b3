//! The trailer: totals that tell a whole trace from one that was cut short.

use super::Version;
use super::varint::{Cursor, Malformed, put_u64};
use crate::event::EventKind;

/// Totals at the end of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Trailer {
    /// How many events the trace has.
    pub events: u64,
    /// In how many blocks.
    pub blocks: u64,
    /// How many of each kind, by [`EventKind::index`].
    pub kinds: [u64; EventKind::COUNT],
    /// Page faults, and calls without a stop, that are missing: all of the events that say so.
    pub lost_samples: u64,
    /// How long the recording took.
    pub wall_ns: u64,
    /// How long threads were stopped for the recorder, in total.
    pub stopped_ns: u64,
    /// The recorder was told to end before the programs did, and detached from them.
    pub ended_early: bool,
    /// Checksum over the checksums of all blocks.
    pub(crate) chain: u32,
}

impl Trailer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let head = [self.events, self.blocks, EventKind::COUNT as u64];
        let tail = [self.lost_samples, self.wall_ns, self.stopped_ns, u64::from(self.chain)];
        for number in head.into_iter().chain(self.kinds).chain(tail) {
            put_u64(&mut out, number);
        }
        out.push(u8::from(self.ended_early));
        out
    }

    /// Decodes the trailer of a file of this version.
    pub(crate) fn decode(bytes: &[u8], version: Version) -> Result<Self, Malformed> {
        let count = version.kinds();
        let mut cursor = Cursor::new(bytes, 0, version);
        let (events, blocks) = (cursor.u64()?, cursor.u64()?);
        if cursor.u64()? != count as u64 {
            return Err(Malformed("it counts other kinds of events"));
        }
        let mut kinds = [0; EventKind::COUNT];
        for kind in kinds.iter_mut().take(count) {
            *kind = cursor.u64()?;
        }
        let (lost_samples, wall_ns, stopped_ns) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
        let chain = cursor.u32()?;
        let ended_early = match version >= Version::THREE {
            true => match cursor.u8()? {
                0 => false,
                1 => true,
                _ => return Err(Malformed("it ends in an unknown way")),
            },
            false => false,
        };
        if !cursor.is_at_end() {
            return Err(Malformed("it is longer than it should be"));
        }
        Ok(Self { events, blocks, kinds, lost_samples, wall_ns, stopped_ns, ended_early, chain })
    }
}

//! Reading a trace, block by block.
//!
//! Nothing in the file is used before its checksum matched, and no length before it was compared with its
//! limit: a hostile file can waste at most a few times [`BLOCK_LIMIT`](super::BLOCK_LIMIT) of memory.

mod damage;
mod input;
mod sums;
#[cfg(test)]
mod tests;

pub use damage::Damage;

use super::codec::BlockDecoder;
use super::crc::Chain;
use super::error::{TraceError, TraceErrorKind};
use super::frame::{BadHead, Codec, FrameHead, FrameKind, HEAD_LEN};
use super::varint::Malformed;
use super::{FORMAT_VERSION, MAGIC, OLDEST_VERSION, PREAMBLE_LEN, TraceHeader, Trailer, Version};
use crate::event::{Event, EventKind, Lost, LostCause, TaskId};
use input::Input;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use zstd::bulk::Decompressor;

/// Reads a trace: an iterator over its events.
///
/// A valid trace ends with `None` and has a [`trailer`](TraceReader::trailer). A damaged one gives one error
/// and then `None`; with [`salvaging`](TraceReader::salvaging) it gives the events of all intact blocks
/// instead, with an [`EventKind::Lost`] where some are missing, and reports the
/// [`damage`](TraceReader::damage) at the end.
pub struct TraceReader<R: Read> {
    input: Input<R>,
    file: Option<PathBuf>,
    header: TraceHeader,
    decompressor: Decompressor<'static>,
    decoder: BlockDecoder,
    version: Version,
    /// The decoded bytes of the current block.
    block: Vec<u8>,
    block_offset: u64,
    /// Events that the current block still holds.
    left: u32,
    /// What was read so far, to compare with the trailer.
    seen: Trailer,
    chain: Chain,
    last_time: u64,
    trailer: Option<Trailer>,
    salvage: Option<Damage>,
    /// The frame that the input stands at, if that is known to be whole.
    whole: Option<FrameHead>,
    done: bool,
}

impl<R: Read> std::fmt::Debug for TraceReader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TraceReader")
            .field("file", &self.file)
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}

/// What comes after the frame that was read.
enum Next {
    Block,
    End,
    /// Only when salvaging: this many events are missing here.
    Gap(u64),
}

impl TraceReader<File> {
    /// Opens a trace by name. Errors carry the name.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        let path = path.as_ref();
        let named = |error: TraceError| error.in_file(Some(path));
        let file = File::open(path).map_err(|error| named(TraceError::new(0, TraceErrorKind::Io(error))))?;
        let mut reader = Self::new(file).map_err(named)?;
        reader.file = Some(path.to_path_buf());
        Ok(reader)
    }
}

impl<R: Read> TraceReader<R> {
    /// Begins to read a trace: reads its header.
    pub fn new(source: R) -> Result<Self, TraceError> {
        let mut input = Input::new(source);
        let preamble = input.peek(PREAMBLE_LEN)?;
        let wrong = |kind| Err(TraceError::new(0, kind));
        if preamble.is_empty() || !MAGIC.starts_with(&preamble[..preamble.len().min(MAGIC.len())]) {
            return wrong(TraceErrorKind::NotATrace);
        }
        let Some(preamble) = preamble.first_chunk::<PREAMBLE_LEN>() else {
            return wrong(TraceErrorKind::Truncated { within: "its first bytes" });
        };
        let found = u16::from_le_bytes([preamble[8], preamble[9]]);
        let Some(version) = Version::new(found) else {
            let kind = TraceErrorKind::Version { found, oldest: OLDEST_VERSION, newest: FORMAT_VERSION };
            return Err(TraceError::new(8, kind));
        };
        if preamble[10..] != [0, 0] {
            let kind =
                TraceErrorKind::Malformed { part: "the preamble", reason: "reserved bytes are in use" };
            return Err(TraceError::new(10, kind));
        }
        input.consume(PREAMBLE_LEN);
        let header = Self::read_header(&mut input, version)?;
        let decompressor =
            Decompressor::new().map_err(|error| TraceError::new(0, TraceErrorKind::Io(error)))?;
        Ok(Self {
            input,
            file: None,
            header,
            decompressor,
            decoder: BlockDecoder::new(version),
            version,
            block: Vec::new(),
            block_offset: 0,
            left: 0,
            seen: Trailer::default(),
            chain: Chain::default(),
            last_time: 0,
            trailer: None,
            salvage: None,
            whole: None,
            done: false,
        })
    }

    /// Uses the intact parts of a damaged trace, instead of stopping with an error.
    #[must_use]
    pub fn salvaging(mut self) -> Self {
        self.salvage = Some(Damage::default());
        self
    }

    /// Where, when and how the trace was recorded.
    #[must_use]
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// The totals, once the end was reached. A trace that was cut short has none.
    #[must_use]
    pub fn trailer(&self) -> Option<&Trailer> {
        self.trailer.as_ref()
    }

    /// What a salvaging reader left out, once the end was reached; `None` if the trace is whole.
    #[must_use]
    pub fn damage(&self) -> Option<&Damage> {
        self.salvage.as_ref().filter(|damage| damage.is_any())
    }

    /// Bytes read so far.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.input.offset()
    }

    fn read_header(input: &mut Input<R>, version: Version) -> Result<TraceHeader, TraceError> {
        let offset = input.offset();
        let head = Self::read_frame(input)?;
        if head.kind != FrameKind::Header {
            let kind =
                TraceErrorKind::Malformed { part: "the header", reason: "another frame is in its place" };
            return Err(TraceError::new(offset, kind));
        }
        let header = TraceHeader::decode(Self::contents(input, head)?, version);
        let header = header.map_err(|wrong| malformed(offset, "the header", wrong))?;
        input.consume(frame_len(head));
        Ok(header)
    }

    /// Reads the next frame into the input's buffer and checks it; it is not consumed.
    fn read_frame(input: &mut Input<R>) -> Result<FrameHead, TraceError> {
        let offset = input.offset();
        let wrong = |kind| Err(TraceError::new(offset, kind));
        let bytes = input.peek(HEAD_LEN)?;
        if bytes.is_empty() {
            return wrong(TraceErrorKind::NoTrailer);
        }
        let Some(bytes) = bytes.first_chunk::<HEAD_LEN>() else {
            return wrong(TraceErrorKind::Truncated { within: "the head of a frame" });
        };
        let head = match FrameHead::from_bytes(bytes) {
            Ok(head) => head,
            Err(BadHead::Checksum) => return wrong(TraceErrorKind::Checksum { part: "the head of a frame" }),
            Err(BadHead::Fields(reason)) => {
                return wrong(TraceErrorKind::Malformed { part: "the head of a frame", reason });
            }
            Err(BadHead::TooLarge { kind, found }) => {
                let (found, limit) = (u64::from(found), kind.limit() as u64);
                return wrong(TraceErrorKind::TooLarge { part: kind.name(), found, limit });
            }
        };
        let contents = Self::contents(input, head)?;
        if contents.len() < head.stored_len as usize {
            return wrong(TraceErrorKind::Truncated { within: head.kind.name() });
        }
        if input.checksum(HEAD_LEN, frame_len(head)) != head.stored_crc {
            return wrong(TraceErrorKind::Checksum { part: head.kind.name() });
        }
        Ok(head)
    }

    /// The contents of the frame that the input stands at, as stored.
    fn contents(input: &mut Input<R>, head: FrameHead) -> Result<&[u8], TraceError> {
        let bytes = input.peek(frame_len(head))?;
        Ok(bytes.get(HEAD_LEN..).unwrap_or_default())
    }

    /// Moves on to the next frame.
    fn next_frame(&mut self) -> Result<Next, TraceError> {
        let offset = self.input.offset();
        let head = match self.whole.take() {
            // It was read before, to report a gap.
            Some(head) => head,
            None => Self::read_frame(&mut self.input)?,
        };
        self.whole = Some(head);
        let next = self.take_frame(head, offset)?;
        if !matches!(next, Next::Gap(_)) {
            self.whole = None;
        }
        Ok(next)
    }

    /// Takes a frame that is whole.
    fn take_frame(&mut self, head: FrameHead, offset: u64) -> Result<Next, TraceError> {
        let expected = self.seen.events;
        match head.kind {
            FrameKind::Header => Err(TraceError::new(
                offset,
                TraceErrorKind::Malformed { part: "the trace", reason: "it has two headers" },
            )),
            FrameKind::Block if head.first_event != expected => {
                if self.salvage.is_some() && head.first_event > expected {
                    // Not consumed: the block is read again after the gap was reported.
                    self.seen.events = head.first_event;
                    return Ok(Next::Gap(head.first_event - expected));
                }
                let kind = TraceErrorKind::Order { found: head.first_event, expected };
                Err(TraceError::new(offset, kind))
            }
            FrameKind::Block => {
                self.unpack(head, offset)?;
                self.input.consume(frame_len(head));
                self.chain.add(head.stored_crc);
                self.seen.blocks += 1;
                self.seen.events += u64::from(head.events);
                self.left = head.events;
                self.block_offset = offset;
                self.decoder.reset();
                Ok(Next::Block)
            }
            FrameKind::Trailer => self.end(head, offset),
        }
    }

    fn unpack(&mut self, head: FrameHead, offset: u64) -> Result<(), TraceError> {
        self.block.clear();
        let stored = Self::contents(&mut self.input, head)?;
        match head.codec {
            Codec::Plain => self.block.extend_from_slice(stored),
            Codec::Zstd => {
                self.block.reserve(head.raw_len as usize);
                let result = self.decompressor.decompress_to_buffer(stored, &mut self.block);
                if result.is_err() || self.block.len() != head.raw_len as usize {
                    self.block.clear();
                    let wrong = Malformed("it does not decompress to its length");
                    return Err(malformed(offset, head.kind.name(), wrong));
                }
            }
        }
        Ok(())
    }

    fn end(&mut self, head: FrameHead, offset: u64) -> Result<Next, TraceError> {
        let trailer = Trailer::decode(Self::contents(&mut self.input, head)?, self.version);
        let trailer = trailer.map_err(|wrong| malformed(offset, head.kind.name(), wrong))?;
        let expected = self.seen.events;
        if self.salvage.is_some() && trailer.events > expected {
            self.seen.events = trailer.events;
            return Ok(Next::Gap(trailer.events - expected));
        }
        let wrong = if trailer.events != expected {
            Some(TraceErrorKind::Order { found: trailer.events, expected })
        } else if trailer.blocks != self.seen.blocks
            || trailer.kinds != self.seen.kinds
            || trailer.chain != self.chain.value()
        {
            Some(TraceErrorKind::Checksum { part: "the trace as a whole" })
        } else {
            None
        };
        match (&mut self.salvage, wrong.map(|kind| TraceError::new(offset, kind))) {
            (None, Some(error)) => return Err(error),
            // Where something is left out, no total is right.
            (Some(damage), Some(error)) if !damage.is_any() => damage.add(error, 0, true),
            _ => {}
        }
        self.input.consume(frame_len(head));
        self.trailer = Some(trailer);
        self.done = true;
        let rest = self.input.offset();
        if self.input.peek(1)?.is_empty() {
            return Ok(Next::End);
        }
        let error = TraceError::new(rest, TraceErrorKind::TrailingBytes);
        let Some(damage) = &mut self.salvage else { return Err(error) };
        damage.add(error, self.input.skip_rest()?, true);
        Ok(Next::End)
    }

    fn decode(&mut self) -> Result<Event, TraceError> {
        let wrong = |wrong| malformed(self.block_offset, FrameKind::Block.name(), wrong);
        let event = self.decoder.event(&self.block).map_err(wrong)?;
        if let EventKind::Lost(Lost { cause: LostCause::Damage, .. }) = event.kind {
            return Err(wrong(Malformed("it claims damage that only a reader can know of")));
        }
        self.left -= 1;
        if self.left == 0 && !self.decoder.is_at_end(&self.block) {
            return Err(wrong(Malformed("bytes follow its last event")));
        }
        self.seen.kinds[event.kind.index()] += 1;
        self.last_time = event.time_ns;
        Ok(event)
    }

    /// Skips damage up to the next valid frame; `false` at the end of the file.
    fn skip(&mut self, error: TraceError) -> Result<bool, TraceError> {
        if matches!(error.kind(), TraceErrorKind::Io(_)) {
            return Err(error);
        }
        let from = self.input.offset();
        self.input.expect_overlaps();
        let missing_end = matches!(error.kind(), TraceErrorKind::NoTrailer);
        let found = match self.whole.take() {
            // Its checksum matches, so the next frame begins where it ends.
            Some(head) => {
                self.input.consume(frame_len(head));
                !self.input.peek(1)?.is_empty()
            }
            None => !missing_end && self.seek_frame()?,
        };
        let bytes = self.input.offset() - from;
        if let Some(damage) = &mut self.salvage {
            damage.add(error, bytes, found);
        }
        Ok(found)
    }

    /// Moves forward by at least one byte to the next valid head.
    fn seek_frame(&mut self) -> Result<bool, TraceError> {
        self.input.consume(1);
        loop {
            let bytes = self.input.peek(HEAD_LEN)?;
            let Some(head) = bytes.first_chunk::<HEAD_LEN>() else {
                let rest = bytes.len();
                self.input.consume(rest);
                return Ok(false);
            };
            if FrameHead::is_marker(head) && FrameHead::from_bytes(head).is_ok() {
                return Ok(true);
            }
            self.input.consume(1);
        }
    }

    fn lost(&mut self, count: u64) -> Event {
        if let Some(damage) = &mut self.salvage {
            damage.add_events(count);
        }
        let kind = EventKind::Lost(Lost { count, cause: LostCause::Damage });
        Event { time_ns: self.last_time, task: TaskId(0), cpu: 0, kind }
    }

    fn fail(&mut self, error: TraceError) -> Option<Result<Event, TraceError>> {
        self.done = true;
        // The rest of an invalid block is not usable either.
        self.left = 0;
        Some(Err(error.in_file(self.file.as_deref())))
    }
}

impl<R: Read> Iterator for TraceReader<R> {
    type Item = Result<Event, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.left > 0 {
                match self.decode() {
                    Ok(event) => return Some(Ok(event)),
                    Err(error) if self.salvage.is_none() => return self.fail(error),
                    Err(error) => {
                        // The block's checksum matches, so the next frame begins where it ends.
                        let lost = u64::from(std::mem::take(&mut self.left));
                        if let Some(damage) = &mut self.salvage {
                            damage.add(error, 0, true);
                        }
                        return Some(Ok(self.lost(lost)));
                    }
                }
            }
            if self.done {
                return None;
            }
            match self.next_frame() {
                Ok(Next::Block | Next::End) => {}
                Ok(Next::Gap(count)) => return Some(Ok(self.lost(count))),
                Err(error) if self.salvage.is_none() => return self.fail(error),
                Err(error) => match self.skip(error) {
                    Ok(true) => {}
                    Ok(false) => self.done = true,
                    Err(error) => return self.fail(error),
                },
            }
        }
    }
}

fn frame_len(head: FrameHead) -> usize {
    HEAD_LEN + head.stored_len as usize
}

fn malformed(offset: u64, part: &'static str, wrong: Malformed) -> TraceError {
    TraceError::new(offset, TraceErrorKind::Malformed { part, reason: wrong.0 })
}

//! Writing a trace, block by block.

use super::codec::BlockEncoder;
use super::crc::{Chain, crc32};
use super::error::{TraceError, TraceErrorKind};
use super::frame::{Codec, FrameHead, FrameKind};
use super::{
    BLOCK_LIMIT, BLOCK_TARGET, FIRST_BLOCK_TARGET, FORMAT_VERSION, MAGIC, PREAMBLE_LEN, TraceHeader, Trailer,
};
use crate::event::{Event, EventKind, LostCause, Reuse};
use std::io::Write;
use zstd::bulk::Compressor;

/// Writes a trace to any sink. Every block is handed to the sink as soon as it is full;
/// [`TraceWriter::finish`] writes the trailer, without which a reader takes the trace for cut short.
pub struct TraceWriter<W: Write> {
    sink: W,
    offset: u64,
    encoder: BlockEncoder,
    compressor: Compressor<'static>,
    /// Events in the open block.
    pending: u32,
    /// Bytes of the events in all blocks before it.
    encoded: usize,
    totals: Trailer,
    chain: Chain,
}

impl<W: Write> std::fmt::Debug for TraceWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TraceWriter").field("offset", &self.offset).field("totals", &self.totals).finish()
    }
}

impl<W: Write> TraceWriter<W> {
    /// The compression level that recording uses: the best that does not slow a recording down.
    pub const DEFAULT_LEVEL: i32 = 6;

    /// Begins a trace. `level` is zstd's, 1 to 19.
    pub fn new(sink: W, header: &TraceHeader, level: i32) -> Result<Self, TraceError> {
        let compressor = Compressor::new(level.clamp(1, 19)).map_err(|error| io_error(0, error))?;
        let mut writer = Self {
            sink,
            offset: 0,
            encoder: BlockEncoder::new(),
            compressor,
            pending: 0,
            encoded: 0,
            totals: Trailer::default(),
            chain: Chain::default(),
        };
        let mut preamble = [0; PREAMBLE_LEN];
        preamble[..8].copy_from_slice(&MAGIC);
        preamble[8..10].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        writer.put(&preamble)?;
        let mut header = header.clone();
        header.limit_command();
        writer.frame(FrameKind::Header, Codec::Plain, &header.encode(), None)?;
        Ok(writer)
    }

    /// Appends one event.
    pub fn push(&mut self, event: &Event) -> Result<(), TraceError> {
        if matches!(&event.kind, EventKind::Reuse(reuse) if reuse.pages() > Reuse::MOST_PAGES) {
            let reason = "it names more pages than a reader takes";
            let kind = TraceErrorKind::Malformed { part: "one event", reason };
            return Err(TraceError::new(self.offset, kind));
        }
        if let EventKind::File(file) = &event.kind
            && let Err(wrong) = file.change.check()
        {
            let kind = TraceErrorKind::Malformed { part: "one event", reason: wrong.reason() };
            return Err(TraceError::new(self.offset, kind));
        }
        let before = self.encoder.bytes().len();
        self.encoder.event(event);
        let size = (self.encoder.bytes().len() - before) as u64;
        if size > BLOCK_LIMIT as u64 - BLOCK_TARGET as u64 {
            let kind = TraceErrorKind::TooLarge { part: "one event", found: size, limit: BLOCK_LIMIT as u64 };
            return Err(TraceError::new(self.offset, kind));
        }
        self.pending += 1;
        self.totals.kinds[event.kind.index()] += 1;
        if let EventKind::Lost(lost) = event.kind
            && lost.cause != LostCause::Damage
        {
            self.totals.lost_samples = self.totals.lost_samples.saturating_add(lost.count);
        }
        if self.encoder.bytes().len() >= (self.encoded / 4).clamp(FIRST_BLOCK_TARGET, BLOCK_TARGET) {
            self.end_block()?;
        }
        Ok(())
    }

    /// Writes what was pushed so far, so that it survives a failure of the recorder.
    pub fn flush(&mut self) -> Result<(), TraceError> {
        self.end_block()?;
        self.sink.flush().map_err(|error| io_error(self.offset, error))
    }

    /// Bytes written so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.offset
    }

    /// Notes that the recording ends before the programs do.
    pub fn end_early(&mut self) {
        self.totals.ended_early = true;
    }

    /// Ends the trace: writes the trailer, and returns the sink with the totals.
    pub fn finish(mut self, wall_ns: u64, stopped_ns: u64) -> Result<(W, Trailer), TraceError> {
        self.end_block()?;
        self.totals.wall_ns = wall_ns;
        self.totals.stopped_ns = stopped_ns;
        self.totals.chain = self.chain.value();
        let trailer = self.totals.encode();
        self.frame(FrameKind::Trailer, Codec::Plain, &trailer, None)?;
        self.sink.flush().map_err(|error| io_error(self.offset, error))?;
        Ok((self.sink, self.totals))
    }

    fn end_block(&mut self) -> Result<(), TraceError> {
        if self.pending == 0 {
            return Ok(());
        }
        let raw_len = self.encoder.bytes().len() as u32;
        self.encoded = self.encoded.saturating_add(raw_len as usize);
        let stored = self.compressor.compress(self.encoder.bytes());
        let stored = stored.map_err(|error| io_error(self.offset, error))?;
        // Contents that compression makes larger (they can only be tiny) are stored plainly.
        if stored.len() < raw_len as usize {
            self.frame(FrameKind::Block, Codec::Zstd, &stored, Some(raw_len))?;
        } else {
            let plain = self.encoder.bytes().to_vec();
            self.frame(FrameKind::Block, Codec::Plain, &plain, None)?;
        }
        self.totals.events += u64::from(self.pending);
        self.totals.blocks += 1;
        self.pending = 0;
        self.encoder.reset();
        Ok(())
    }

    fn frame(
        &mut self,
        kind: FrameKind,
        codec: Codec,
        stored: &[u8],
        raw: Option<u32>,
    ) -> Result<(), TraceError> {
        let stored_len = stored.len() as u32;
        let stored_crc = crc32(stored);
        let head = FrameHead {
            kind,
            codec,
            raw_len: raw.unwrap_or(stored_len),
            stored_len,
            first_event: self.totals.events,
            events: if kind == FrameKind::Block { self.pending } else { 0 },
            stored_crc,
        };
        if kind == FrameKind::Block {
            self.chain.add(stored_crc);
        }
        self.put(&head.to_bytes())?;
        self.put(stored)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), TraceError> {
        self.sink.write_all(bytes).map_err(|error| io_error(self.offset, error))?;
        self.offset += bytes.len() as u64;
        Ok(())
    }
}

fn io_error(offset: u64, error: std::io::Error) -> TraceError {
    TraceError::new(offset, TraceErrorKind::Io(error))
}

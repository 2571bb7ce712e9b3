//! Bytes of the source, with lookahead.

use super::sums::{STEP, Sums};
use crate::format::crc::crc32;
use crate::format::error::{TraceError, TraceErrorKind};
use std::io::{ErrorKind, Read};

/// The source is read in pieces of this size, so that memory grows with the actual size, not with a
/// claimed one.
const PIECE: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct Input<R> {
    source: R,
    buffer: Vec<u8>,
    /// Bytes at the front of the buffer that were consumed.
    used: usize,
    /// Offset in the file of the first byte that was not consumed.
    offset: u64,
    /// Once there was damage: checksums from there on, since frames may overlap then.
    sums: Option<Sums>,
    /// Bytes that were checked.
    checked: u64,
}

impl<R: Read> Input<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source, buffer: Vec::new(), used: 0, offset: 0, sums: None, checked: 0 }
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The next `len` bytes, or fewer at the end of the source.
    pub(super) fn peek(&mut self, len: usize) -> Result<&[u8], TraceError> {
        while self.buffer.len() - self.used < len {
            if self.used >= PIECE.max(self.buffer.len() / 2) {
                // Sums are asked for from the step before on.
                self.buffer.drain(..self.used - STEP as usize);
                self.used = STEP as usize;
            }
            let filled = self.buffer.len();
            self.buffer.resize(filled + PIECE, 0);
            let read = self.source.read(&mut self.buffer[filled..]);
            self.buffer.truncate(filled + read.as_ref().map_or(0, |read| *read));
            match read {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(TraceError::new(self.offset, TraceErrorKind::Io(error))),
            }
        }
        let rest = &self.buffer[self.used..];
        Ok(&rest[..rest.len().min(len)])
    }

    /// From here on no byte is checked more than a few times, even if frames overlap.
    pub(super) fn expect_overlaps(&mut self) {
        self.sums.get_or_insert_with(|| Sums::new(self.offset));
    }

    /// The checksum of the bytes from place `from` to before place `to` of what comes next, which were
    /// peeked.
    pub(super) fn checksum(&mut self, from: usize, to: usize) -> u32 {
        let (crc, checked) = match &mut self.sums {
            Some(sums) => {
                let range = self.offset + from as u64..self.offset + to as u64;
                sums.of(&self.buffer, self.offset - self.used as u64, range)
            }
            None => (crc32(&self.buffer[self.used..][from..to]), to - from),
        };
        self.checked += checked as u64;
        crc
    }

    /// Bytes that were checked.
    #[cfg(test)]
    pub(super) fn checked(&self) -> u64 {
        self.checked
    }

    /// Moves to the end of the source; returns how many bytes that are.
    pub(super) fn skip_rest(&mut self) -> Result<u64, TraceError> {
        let from = self.offset;
        loop {
            let len = self.peek(PIECE)?.len();
            if len == 0 {
                return Ok(self.offset - from);
            }
            self.consume(len);
        }
    }

    /// Moves on; never beyond what was peeked.
    pub(super) fn consume(&mut self, len: usize) {
        let len = len.min(self.buffer.len() - self.used);
        self.used += len;
        self.offset += len as u64;
    }
}

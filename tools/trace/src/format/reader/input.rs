//! Bytes of the source, with lookahead.

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
}

impl<R: Read> Input<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source, buffer: Vec::new(), used: 0, offset: 0 }
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The next `len` bytes, or fewer at the end of the source.
    pub(super) fn peek(&mut self, len: usize) -> Result<&[u8], TraceError> {
        while self.buffer.len() - self.used < len {
            if self.used >= PIECE {
                self.buffer.drain(..self.used);
                self.used = 0;
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

    /// Moves on; never beyond what was peeked.
    pub(super) fn consume(&mut self, len: usize) {
        let len = len.min(self.buffer.len() - self.used);
        self.used += len;
        self.offset += len as u64;
    }
}

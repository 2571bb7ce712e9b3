//! What can be wrong with a trace, and where.

use std::path::{Path, PathBuf};
use std::{fmt, io};
use thiserror::Error;

/// A trace that cannot be read or written: what is wrong, and where. Displays as one line.
#[derive(Debug)]
pub struct TraceError(Box<Inner>);

#[derive(Debug)]
struct Inner {
    file: Option<PathBuf>,
    offset: u64,
    kind: TraceErrorKind,
}

/// What is wrong with a trace.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TraceErrorKind {
    /// The file could not be opened, read or written.
    #[error("{0}")]
    Io(#[source] io::Error),
    /// It does not begin like a trace.
    #[error("this is not a Quire trace; record one with `quire record -o FILE -- COMMAND`")]
    NotATrace,
    /// It is a trace of another version.
    #[error(
        "the trace has format version {found}, this program reads versions {oldest} to {newest}; \
         record it again, or use the program that wrote it"
    )]
    Version {
        /// The version of the file.
        found: u16,
        /// The oldest version that this crate reads.
        oldest: u16,
        /// The newest one.
        newest: u16,
    },
    /// It ends in the middle.
    #[error("the trace ends in the middle of {within}; it was cut short, `--salvage` uses what is whole")]
    Truncated {
        /// What was being read.
        within: &'static str,
    },
    /// It ends after a whole block, without a trailer.
    #[error("the trace ends without a trailer; it was cut short, `--salvage` uses what is whole")]
    NoTrailer,
    /// A checksum does not match.
    #[error("{part} is damaged (its checksum does not match); copy the file again or use `--salvage`")]
    Checksum {
        /// Which part.
        part: &'static str,
    },
    /// The checksums match but the contents are invalid.
    #[error("{part} cannot be decoded: {reason}; `--salvage` uses what is whole")]
    Malformed {
        /// Which part.
        part: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A block is missing, doubled or out of order.
    #[error(
        "the block here begins with event {found}, expected event {expected}; `--salvage` uses what is whole"
    )]
    Order {
        /// The number of the first event in the block.
        found: u64,
        /// The number that comes next.
        expected: u64,
    },
    /// Something would take more memory than any valid trace needs.
    #[error("{part} claims {found} bytes, the limit is {limit}; the file is damaged or was made to do harm")]
    TooLarge {
        /// Which part.
        part: &'static str,
        /// How long it claims to be.
        found: u64,
        /// How long it may be.
        limit: u64,
    },
    /// Bytes follow the trailer.
    #[error("more bytes follow the end of the trace; cut the file here")]
    TrailingBytes,
}

impl TraceError {
    pub(crate) fn new(offset: u64, kind: TraceErrorKind) -> Self {
        Self(Box::new(Inner { file: None, offset, kind }))
    }

    pub(crate) fn in_file(mut self, file: Option<&Path>) -> Self {
        self.0.file = file.map(Path::to_path_buf);
        self
    }

    /// What is wrong.
    #[must_use]
    pub fn kind(&self) -> &TraceErrorKind {
        &self.0.kind
    }

    /// Where in the file: the byte offset of the part that is wrong.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.0.offset
    }

    /// The file's name, if it was opened by name.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.0.file.as_deref()
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.0.file {
            write!(f, "{}: ", file.display())?;
        }
        // Nothing was read of a file that is no trace, or that could not be opened.
        let nothing_read =
            self.0.offset == 0 && matches!(self.0.kind, TraceErrorKind::Io(_) | TraceErrorKind::NotATrace);
        if !nothing_read {
            write!(f, "offset {}: ", self.0.offset)?;
        }
        write!(f, "{}", self.0.kind)
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.kind {
            TraceErrorKind::Io(error) => Some(error),
            _ => None,
        }
    }
}

//! The file format: a header, blocks of events and a trailer, each in a checked frame.
//!
//! `docs/trace-format.md` describes it byte by byte.

mod codec;
mod crc;
mod error;
mod file;
mod frame;
mod header;
mod host;
mod reader;
mod trailer;
mod varint;
mod version;
mod wire;
mod writer;

pub use error::{TraceError, TraceErrorKind};
pub use file::recording_file;
pub use header::{CallSource, FaultSource, Pressure, TraceHeader, UseSource};
pub use host::HostSettings;
pub use reader::{Damage, TraceReader};
pub use trailer::Trailer;
pub(crate) use version::Version;
pub use writer::TraceWriter;

/// The version of the format that this crate writes, and the newest that it reads.
pub const FORMAT_VERSION: u16 = 13;
/// The oldest version that it reads.
pub const OLDEST_VERSION: u16 = 1;

/// The usual extension of a trace file.
pub const EXTENSION: &str = "qtr";

/// The first bytes of every trace. The first is no ASCII and the rest holds both line ends, so that a
/// transfer that treats the file as text is detected at once.
pub(crate) const MAGIC: [u8; 8] = *b"\x89QTR\r\n\x1a\n";
/// Bytes of the magic, the version and a reserved word.
pub(crate) const PREAMBLE_LEN: usize = 12;

/// A block is closed when its events take a quarter of the bytes of all events before it, between these
/// numbers of bytes. A file that is cut short loses its last block; so most of even a short file can be
/// salvaged.
pub(crate) const FIRST_BLOCK_TARGET: usize = 2 << 10;
/// The longest that a block becomes before it is closed.
pub(crate) const BLOCK_TARGET: usize = 128 << 10;
/// No block, decoded or stored, is longer; a reader never allocates more for one.
pub(crate) const BLOCK_LIMIT: usize = 16 << 20;
/// No header or trailer is longer.
pub(crate) const FACTS_LIMIT: usize = 1 << 20;

//! What a salvaging reader left out.

use crate::format::error::TraceError;
use std::fmt;

/// What a salvaging reader left out of a damaged trace.
#[derive(Debug, Default)]
pub struct Damage {
    first: Option<TraceError>,
    places: u64,
    bytes: u64,
    events: u64,
    cut_short: bool,
}

impl Damage {
    pub(super) fn add(&mut self, error: TraceError, bytes: u64, more_follows: bool) {
        self.first.get_or_insert(error);
        self.places += 1;
        self.bytes += bytes;
        self.cut_short |= !more_follows;
    }

    pub(super) fn add_events(&mut self, events: u64) {
        self.events += events;
    }

    pub(super) fn is_any(&self) -> bool {
        self.places > 0 || self.events > 0
    }

    /// Where the first damage lies in the file.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.first.as_ref().map(TraceError::offset)
    }

    /// What was wrong first.
    #[must_use]
    pub fn first(&self) -> Option<&TraceError> {
        self.first.as_ref()
    }

    /// In how many places something was wrong.
    #[must_use]
    pub fn places(&self) -> u64 {
        self.places
    }

    /// How many bytes were skipped.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many events are known to be missing before the last whole block.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The end of the trace is missing: how many events it had is not known.
    #[must_use]
    pub fn cut_short(&self) -> bool {
        self.cut_short
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.offset() {
            Some(offset) => write!(f, "damage from offset {offset} on")?,
            None => write!(f, "no damage")?,
        }
        write!(f, ": {} bytes and {} events left out", self.bytes, self.events)?;
        if self.cut_short {
            write!(f, ", and the end is missing (how many events it had is not known)")?;
        }
        Ok(())
    }
}

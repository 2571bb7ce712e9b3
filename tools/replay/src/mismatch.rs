//! A difference between a replay and its recording.

use std::fmt;

/// Something that came out otherwise than on Linux.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// Number of the event in the trace, from 0.
    pub event: u64,
    /// What was done.
    pub what: String,
    /// What Linux did.
    pub expected: String,
    /// What Quire did.
    pub found: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event {}: {}: Linux {}, Quire {}", self.event, self.what, self.expected, self.found)
    }
}

/// A call or a form of one that Quire cannot do yet.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Gap(pub String);

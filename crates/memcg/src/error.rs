//! What can go wrong, each cause apart.

use crate::id::MemcgId;
use core::fmt;
use quire_frame::AllocError;

/// Why something could not be done with a memcg. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemcgError {
    /// No such memcg, or it was removed.
    NoMemcg,
    /// The name is empty or too long, or has bytes that no name has.
    BadName,
    /// The parent has a memcg of that name.
    Exists,
    /// There are as many memcgs as there can be.
    TooMany,
    /// The parent is as deep in the tree as a memcg can be.
    TooDeep,
    /// No memory for another memcg.
    NoMemory(AllocError),
    /// The memcg has children, or spaces belong to it.
    Busy,
    /// The root stays, and has no limits.
    Root,
    /// A memcg has no such file.
    NoFile,
    /// The file can only be written.
    WriteOnly,
    /// The file can only be read.
    ReadOnly,
    /// What was written is no such value.
    BadValue,
    /// Where the text went to has refused it.
    Output,
}

impl fmt::Display for MemcgError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoMemcg => "no such memcg",
            Self::BadName => "not a name for a memcg",
            Self::Exists => "there is a memcg of that name",
            Self::TooMany => "there are too many memcgs",
            Self::TooDeep => "the tree of memcgs is too deep",
            Self::NoMemory(error) => return write!(f, "no memory for a memcg: {error}"),
            Self::Busy => "the memcg has children or spaces",
            Self::Root => "the root of the memcgs stays as it is",
            Self::NoFile => "no such file",
            Self::WriteOnly => "the file can only be written",
            Self::ReadOnly => "the file can only be read",
            Self::BadValue => "not a value of the file",
            Self::Output => "the text could not be put out",
        })
    }
}

impl core::error::Error for MemcgError {}

impl From<AllocError> for MemcgError {
    fn from(error: AllocError) -> Self {
        Self::NoMemory(error)
    }
}

impl From<fmt::Error> for MemcgError {
    fn from(_: fmt::Error) -> Self {
        Self::Output
    }
}

/// A memcg that is over its `memory.high`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OverHigh {
    /// Which.
    pub memcg: MemcgId,
    /// By how many pages.
    pub pages: u64,
}

/// A charge that would have gone past a limit. Nothing was charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OverLimit {
    /// Whose limit: the memcg that was to be charged, or one above it. What is reclaimed there makes room.
    pub memcg: MemcgId,
}

impl fmt::Display for OverLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memcg {} is at its limit", self.memcg)
    }
}

impl core::error::Error for OverLimit {}

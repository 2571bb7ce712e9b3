//! What can go wrong, each cause apart.

use crate::id::MemcgId;
use core::fmt;
use quire_frame::AllocError;

/// Why something could not be done with a memcg. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MemcgError {
    /// No such memcg, or it was removed.
    #[error("no such memcg")]
    NoMemcg,
    /// The name is empty or too long, or has bytes that no name has.
    #[error("not a name for a memcg")]
    BadName,
    /// The parent has a memcg of that name.
    #[error("there is a memcg of that name")]
    Exists,
    /// There are as many memcgs as there can be.
    #[error("there are too many memcgs")]
    TooMany,
    /// The parent is as deep in the tree as a memcg can be.
    #[error("the tree of memcgs is too deep")]
    TooDeep,
    /// No memory for another memcg.
    #[error("no memory for a memcg: {0}")]
    NoMemory(AllocError),
    /// The memcg has children, or spaces belong to it.
    #[error("the memcg has children or spaces")]
    Busy,
    /// The root stays, and has no limits.
    #[error("the root of the memcgs stays as it is")]
    Root,
    /// A memcg has no such file.
    #[error("no such file")]
    NoFile,
    /// The file can only be written.
    #[error("the file can only be written")]
    WriteOnly,
    /// The file can only be read.
    #[error("the file can only be read")]
    ReadOnly,
    /// What was written is no such value.
    #[error("not a value of the file")]
    BadValue,
    /// Where the text went to has refused it.
    #[error("the text could not be put out")]
    Output,
}

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
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("memcg {memcg} is at its limit")]
pub struct OverLimit {
    /// Whose limit: the memcg that was to be charged, or one above it. What is reclaimed there makes room.
    pub memcg: MemcgId,
}

//! Errors, one for each cause.

use crate::id::MemcgId;
use core::fmt;
use quire_frame::AllocError;

/// Why something could not be done with a memcg. Nothing was changed, except as [`MemcgError::Again`] says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MemcgError {
    /// No such memcg, or it was removed.
    #[error("no such memcg")]
    NoMemcg,
    /// The name is empty or too long, or has bytes that no name has.
    #[error("not a name for a memcg")]
    BadName,
    /// The parent already has a child of that name.
    #[error("there is a memcg of that name")]
    Exists,
    /// The maximum number of memcgs is reached.
    #[error("there are too many memcgs")]
    TooMany,
    /// The parent is at the maximum depth of the tree.
    #[error("the tree of memcgs is too deep")]
    TooDeep,
    /// No memory for another memcg.
    #[error("no memory for a memcg: {0}")]
    NoMemory(AllocError),
    /// The memcg has children or spaces.
    #[error("the memcg has children or spaces")]
    Busy,
    /// The root cannot be removed, and has no limits.
    #[error("the root memcg cannot be limited or removed")]
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
    /// Less was reclaimed than `memory.reclaim` was asked for; what was reclaimed stays so (Linux: `EAGAIN`).
    #[error("less was reclaimed than asked for")]
    Again,
    /// The value written is invalid.
    #[error("invalid value")]
    BadValue,
    /// The number written is too large for what holds it (Linux: `ERANGE`).
    #[error("number out of range")]
    OutOfRange,
    /// The text could not be written to its output.
    #[error("the text could not be written")]
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

/// A charge that would have exceeded a limit. Nothing was charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("memcg {memcg} is at its limit")]
pub struct OverLimit {
    /// Whose limit: that of the memcg to be charged, or of an ancestor. Reclaim there makes room.
    pub memcg: MemcgId,
    /// Which one of those that had this number: another one may have it later ([`MemcgTree::keep`]).
    ///
    /// [`MemcgTree::keep`]: crate::MemcgTree::keep
    pub life: u32,
}

//! What can go wrong, each cause apart.

use crate::id::GroupId;
use core::fmt;
use quire_frame::AllocError;

/// Why something could not be done with a group. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupError {
    /// No such group, or it was removed.
    NoGroup,
    /// The name is empty or too long, or has bytes that no name has.
    BadName,
    /// The parent has a group of that name.
    Exists,
    /// There are as many groups as there can be.
    TooMany,
    /// The parent is as deep in the tree as a group can be.
    TooDeep,
    /// No memory for another group.
    NoMemory(AllocError),
    /// The group has children, or spaces belong to it.
    Busy,
    /// The root stays, and has no limits.
    Root,
    /// A group has no such file.
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

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoGroup => "no such memory group",
            Self::BadName => "not a name for a memory group",
            Self::Exists => "there is a memory group of that name",
            Self::TooMany => "there are too many memory groups",
            Self::TooDeep => "the tree of memory groups is too deep",
            Self::NoMemory(error) => return write!(f, "no memory for a memory group: {error}"),
            Self::Busy => "the memory group has children or spaces",
            Self::Root => "the root of the memory groups stays as it is",
            Self::NoFile => "no such file",
            Self::WriteOnly => "the file can only be written",
            Self::ReadOnly => "the file can only be read",
            Self::BadValue => "not a value of the file",
            Self::Output => "the text could not be put out",
        })
    }
}

impl core::error::Error for GroupError {}

impl From<AllocError> for GroupError {
    fn from(error: AllocError) -> Self {
        Self::NoMemory(error)
    }
}

impl From<fmt::Error> for GroupError {
    fn from(_: fmt::Error) -> Self {
        Self::Output
    }
}

/// A group that is over its `memory.high`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OverHigh {
    /// Which.
    pub group: GroupId,
    /// By how many pages.
    pub pages: u64,
}

/// A charge that would have gone past a limit. Nothing was charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OverLimit {
    /// Whose limit: the group that was to be charged, or one above it. What is reclaimed there makes room.
    pub group: GroupId,
}

impl fmt::Display for OverLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory group {} is at its limit", self.group)
    }
}

impl core::error::Error for OverLimit {}

//! The history of a run: each operation with its two timestamps and its outcome.

use super::program::{Op, Word};
use core::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why an access was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// SIGSEGV with `SEGV_MAPERR`.
    NotMapped,
    /// SIGSEGV with `SEGV_ACCERR`.
    Denied,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotMapped => "MAPERR",
            Self::Denied => "ACCERR",
        })
    }
}

/// An access that passed, or was refused.
pub(super) type Access<T> = Result<T, Refusal>;

/// A page of a child, right after the fork.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChildPage {
    /// What it read.
    pub read: Result<Word, Refusal>,
    /// Whether it could write, after that.
    pub write: Result<(), Refusal>,
}

/// The outcome of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// A read found this.
    Word(Word),
    /// A write, or a call, succeeded.
    Done,
    /// An access was refused.
    Refused(Refusal),
    /// A call failed with this error number.
    Failed(i64),
    /// What a child's pages held.
    Child(Vec<ChildPage>),
    /// Something that must never happen.
    Strange(String),
}

impl Outcome {
    /// The outcome of a call, by what it returned and what it returns when it succeeds.
    pub(super) fn of_call(returned: i64, success: u64) -> Self {
        match returned {
            _ if returned as u64 == success => Self::Done,
            -4095..0 => Self::Failed(-returned),
            _ => Self::Strange(format!("{returned:#x} was returned")),
        }
    }

    /// The outcome of an access that passed, was refused, or ended in something strange.
    pub(super) fn of_access<T>(access: Result<Access<T>, String>, passed: impl FnOnce(T) -> Self) -> Self {
        match access {
            Ok(Ok(value)) => passed(value),
            Ok(Err(refusal)) => Self::Refused(refusal),
            Err(strange) => Self::Strange(strange),
        }
    }

    /// The outcome of a fork, by what the child found in each page.
    pub(super) fn of_child(pages: impl Iterator<Item = Result<ChildPage, String>>) -> Self {
        pages.collect::<Result<_, _>>().map_or_else(Self::Strange, Self::Child)
    }

    /// A short name for counts.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Word(Word::Zero) => "zero",
            Self::Word(Word::Written(_)) => "value",
            Self::Word(Word::Foreign(_)) | Self::Strange(_) => "strange",
            Self::Done | Self::Child(_) => "done",
            Self::Refused(Refusal::NotMapped) => "maperr",
            Self::Refused(Refusal::Denied) => "accerr",
            Self::Failed(12) => "ENOMEM",
            Self::Failed(14) => "EFAULT",
            Self::Failed(22) => "EINVAL",
            Self::Failed(_) => "other error",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => word.fmt(f),
            Self::Done => f.write_str("done"),
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Failed(errno) => write!(f, "error {errno} ({})", self.name()),
            Self::Child(pages) => {
                for (number, page) in pages.iter().enumerate() {
                    write!(f, "{}{number}: ", if number > 0 { ", " } else { "" })?;
                    match (page.read, page.write) {
                        (Ok(word), Ok(())) => write!(f, "{word}")?,
                        (Ok(word), Err(refusal)) => write!(f, "{word} (write {refusal})")?,
                        (Err(refusal), _) => refusal.fmt(f)?,
                    }
                }
                Ok(())
            }
            Self::Strange(what) => f.write_str(what),
        }
    }
}

/// An operation that was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The thread.
    pub thread: u8,
    /// The operation.
    pub op: Op,
    /// The stamp before it began.
    pub begin: u64,
    /// The stamp after it had returned.
    pub end: u64,
    /// Its outcome.
    pub outcome: Outcome,
}

impl Event {
    /// Whether the two were concurrent.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.begin < other.end && other.begin < self.end
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>4}..{:<4} thread {}: {}: {}", self.begin, self.end, self.thread, self.op, self.outcome)
    }
}

/// Stamps: a counter that all threads share. An operation with a later first stamp than another's last one
/// began after that other had returned.
#[derive(Debug, Default)]
pub(super) struct Clock(AtomicU64);

impl Clock {
    /// The next stamp.
    pub(super) fn stamp(&self) -> u64 {
        // Sequentially consistent: what comes before a stamp in one thread is seen by what follows a later
        // one.
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

//! Why a command could not do its work, and the exit codes: 0 success, 1 the work found a failure, 2 wrong
//! usage or input.

use quire_advise::AdviseError;
use quire_output::FileError;
use std::fmt;

/// The work was done and found something wrong.
pub(crate) const FOUND_FAILURE: u8 = 1;
/// Wrong usage or input.
pub(crate) const WRONG_INPUT: u8 = 2;

/// Why a command could not do its work: one line of text.
#[derive(Debug)]
pub(crate) struct Failure {
    line: String,
    code: u8,
}

impl Failure {
    /// The input or the usage is wrong.
    pub(crate) fn input(error: impl fmt::Display) -> Self {
        Self { line: error.to_string(), code: WRONG_INPUT }
    }

    /// The work itself failed.
    pub(crate) fn work(error: impl fmt::Display) -> Self {
        Self { line: error.to_string(), code: FOUND_FAILURE }
    }

    /// What happened.
    pub(crate) fn line(&self) -> &str {
        &self.line
    }

    /// What the program exits with for it.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }
}

/// A wrong place is wrong usage; a full disk is not.
impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Write { .. } | FileError::Name { .. } => Self::work(error),
            _ => Self::input(error),
        }
    }
}

impl From<AdviseError> for Failure {
    fn from(error: AdviseError) -> Self {
        match error {
            AdviseError::DoesNotFit(..) | AdviseError::HostIsShort(_) => Self::work(error),
            _ => Self::input(error),
        }
    }
}

//! The file that a recording is written to.
//!
//! It gets its name when it is complete, so that under this name there is a complete recording or the
//! previous file.

use super::error::RecordError;
use super::options::{RecordOptions, RecordTarget};
use quire_output::{Meanwhile, WholeFile};
use quire_trace::format::recording_file;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

/// A file that is being written.
#[derive(Debug)]
pub(crate) enum Target {
    Named(WholeFile),
    Open(File),
}

impl Target {
    /// Opens the output. An existing file of its name is not changed yet.
    pub(crate) fn open(options: &RecordOptions) -> Result<Self, RecordError> {
        let opened = match &options.output {
            RecordTarget::Stdout if io::stdout().is_terminal() => return Err(RecordError::Terminal),
            RecordTarget::Stdout => io::stdout().as_fd().try_clone_to_owned().map(File::from),
            RecordTarget::Open(file) => file.try_clone(),
            RecordTarget::File(path) => {
                // If the recorder is killed, what it has written may be of use.
                return Ok(Self::Named(recording_file(path, options.force, Meanwhile::Part)?));
            }
        };
        opened.map(Self::Open).map_err(|source| RecordError::Start { source })
    }

    /// The file, to be written.
    pub(crate) fn file(&self) -> io::Result<File> {
        match self {
            Self::Named(whole) => whole.file().try_clone(),
            Self::Open(file) => file.try_clone(),
        }
    }

    /// Gives a complete recording its name.
    pub(crate) fn name(self) -> Result<(), RecordError> {
        match self {
            Self::Named(whole) => Ok(whole.finish()?),
            Self::Open(_) => Ok(()),
        }
    }
}

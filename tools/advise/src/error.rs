//! Why a prediction is not possible.

use quire_replay::ReplayError;
use std::path::PathBuf;
use thiserror::Error;

/// Why a prediction is not possible.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AdviseError {
    /// No recording was named.
    #[error("there is no recording")]
    Nothing,
    /// A recording cannot be replayed.
    #[error("{0}")]
    Replay(ReplayError),
    /// A recording does not support predictions: which, and why not.
    #[error("{}: {_1}", _0.display())]
    Unsuited(PathBuf, String),
    /// Recordings of different commands were named together.
    #[error("{} is a recording of `{_1}`, {} one of `{_3}`: name recordings of one command", _0.display(), _2.display())]
    OtherCommand(PathBuf, String, PathBuf, String),
    /// Recordings that were made under different settings of huge pages were named together: two of them, and
    /// where the second's differ from the first's.
    #[error("{} was recorded under other settings of huge pages than {}, with {_2}: name recordings made under one", _1.display(), _0.display())]
    OtherSettings(PathBuf, PathBuf, String),
    /// The programs needed more memory than the machine had: under which setting, and what was found.
    #[error("{0}: {1}")]
    DoesNotFit(String, String),
    /// No line of a sweep asks for this: of which setting.
    #[error("no line of a sweep asks for this of {0}")]
    NotAsked(String),
    /// This host has too little free memory for a replay: which one. On another host it finds something else.
    #[error("{0}: this host has too little free memory for the replay: run it on another one")]
    HostIsShort(String),
    /// A replay is neither among the results nor can it be made here: why.
    #[error("{0}")]
    NotInResults(String),
    /// Instructions could not be counted.
    #[error("{0}")]
    Instructions(String),
}

impl From<ReplayError> for AdviseError {
    fn from(error: ReplayError) -> Self {
        Self::Replay(error)
    }
}

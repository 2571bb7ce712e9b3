//! What can go wrong.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

/// Why there is no measurement. The host's settings are as they were.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// Another measurement holds the host's settings.
    #[error("another measurement is changing this host's settings ({} is locked); wait until it ends", .0.display())]
    Busy(PathBuf),
    /// A setting that this host does not have.
    #[error("this host has no setting {}", .0.display())]
    Missing(PathBuf),
    /// A file that this user cannot write.
    #[error("cannot write {}: {why}; changing this host's settings needs root (try sudo)", .file.display())]
    Denied {
        /// The file.
        file: PathBuf,
        /// What the system said.
        why: io::Error,
    },
    /// A value that the kernel does not accept.
    #[error("{} does not accept {word:?}{}", .file.display(), offered(.choices))]
    Refused {
        /// The setting's file.
        file: PathBuf,
        /// The value.
        word: String,
        /// The values that the file lists; empty if it lists none.
        choices: String,
    },
    /// The host's settings could not be restored.
    #[error("could not put back this host's settings; do it by hand: {0}")]
    NotRestored(String),
    /// The program cannot be started.
    #[error("cannot start {program}: {why}")]
    Start {
        /// The command.
        program: String,
        /// What the system said.
        why: io::Error,
    },
    /// The program exceeded its time limit. Its processes were killed.
    #[error("the program was stopped, since it ran longer than {} s", .0.as_secs_f64())]
    Timeout(Duration),
    /// The same, after the kernel had OOM-killed processes of it. The others may have waited for them.
    #[error(
        "the program was stopped, since it ran longer than {} s; processes killed for memory before: {kills}",
        .after.as_secs_f64()
    )]
    Killed {
        /// How long it ran.
        after: Duration,
        /// How many processes the kernel killed.
        kills: u64,
    },
    /// The program failed, so that it is not what was recorded.
    #[error("the program ended with {0}; a run that fails is no measurement")]
    Failed(ExitStatus),
    /// This process may not trace the program.
    #[error("cannot follow the program's processes with ptrace: {0}")]
    Trace(io::Error),
    /// The memory limit, or the swap behind it, cannot be set up.
    #[error("cannot limit memory: {0}")]
    Limit(String),
    /// Swap space cannot be set up.
    #[error("cannot set up swap: {0}")]
    Swap(String),
    /// Another error of the system.
    #[error("{what}: {why}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        why: io::Error,
    },
}

impl MeasureError {
    pub(crate) fn system(what: impl Into<String>, why: impl Into<io::Error>) -> Self {
        Self::System { what: what.into(), why: why.into() }
    }

    pub(crate) fn file(file: &Path, why: io::Error) -> Self {
        match why.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Self::Denied { file: file.to_owned(), why }
            }
            io::ErrorKind::NotFound => Self::Missing(file.to_owned()),
            _ => Self::system(file.display().to_string(), why),
        }
    }
}

fn offered(choices: &str) -> String {
    if choices.is_empty() { String::new() } else { format!("; it offers: {choices}") }
}

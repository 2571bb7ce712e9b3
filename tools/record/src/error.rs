//! Why a recording failed.

use quire_output::FileError;
use quire_trace::format::TraceError;
use std::io;
use thiserror::Error;

/// Why a program could not be recorded. Displays as one line.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The command is invalid.
    #[error("nothing to record: {0}")]
    Command(&'static str),
    /// The program could not be executed.
    #[error("{program}: {source}")]
    Exec {
        /// The program's name as given.
        program: String,
        /// What Linux says.
        source: io::Error,
    },
    /// The output file cannot be written, or is no recording.
    #[error(transparent)]
    Output(#[from] FileError),
    /// The standard output is a terminal.
    #[error("a recording is not written to a terminal; redirect the standard output")]
    Terminal,
    /// The trace could not be written. The program still ran to its end.
    #[error("the program ran to its end but the trace could not be written: {0}")]
    Trace(#[from] TraceError),
    /// A thread or process of the recorder could not be created.
    #[error("the recorder could not start: {source}")]
    Start {
        /// What Linux says.
        source: io::Error,
    },
    /// The program cannot be shown another memory limit.
    #[error(
        "the program cannot be shown a memory limit: {source}; that needs root, and a memory cgroup with a limit file"
    )]
    ShownLimit {
        /// What Linux says.
        source: io::Error,
    },
    /// Tracing the program is not permitted.
    #[error(
        "following a program is not permitted here ({source}); allow ptrace \
         (in a container: --cap-add SYS_PTRACE; see also /proc/sys/kernel/yama/ptrace_scope)"
    )]
    Ptrace {
        /// What Linux says.
        source: io::Error,
    },
    /// The requested source of page faults is not available.
    #[error("page faults cannot be obtained from `{wanted}`: {source}; use `--faults auto`")]
    Faults {
        /// The requested source.
        wanted: &'static str,
        /// What Linux says.
        source: io::Error,
    },
    /// Recording calls without stops was requested, but is not possible.
    #[error("calls cannot be obtained from tracepoints: {why}; use `--calls auto`")]
    Calls {
        /// What is missing.
        why: String,
    },
    /// Memory cannot be paged out.
    #[error("pressure: {0}")]
    Pressure(&'static str),
    /// The recorder itself failed.
    #[error(
        "the recorder stopped in its middle; what it wrote is beside the output, ends in `.part` and may be used with `--salvage`"
    )]
    Broken,
}

impl RecordError {
    /// The code that a command line should exit with: 127 if the program was not found, 126 if it cannot be
    /// executed, 1 for all else.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Exec { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            Self::Exec { .. } => 126,
            _ => 1,
        }
    }
}

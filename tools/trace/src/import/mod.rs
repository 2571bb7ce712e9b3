//! Making traces from the output of other tools.

mod lackey;
mod recent;

pub use lackey::lackey;

use crate::format::TraceError;
use quire_output::FileError;
use std::path::PathBuf;
use std::{fmt, io};
use thiserror::Error;

/// Why a file could not be imported. Displays as one line.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The file could not be read.
    #[error("{}: {source}", path.display())]
    Input {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A line is not what the tool writes.
    #[error(
        "{}: line {line} (offset {offset}): {reason}; make the file with \
         `valgrind --tool=lackey --trace-mem=yes --log-file=FILE CMD`",
        path.display()
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// The line's number, from 1.
        line: u64,
        /// Where it begins.
        offset: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The file has no access in it.
    #[error(
        "{}: there is no memory access in it; make it with \
         `valgrind --tool=lackey --trace-mem=yes --log-file=FILE CMD`",
        path.display()
    )]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file to import is the file to write.
    #[error("{}: this is the file to import; name another one to write", path.display())]
    Same {
        /// The file.
        path: PathBuf,
    },
    /// The trace could not be made.
    #[error(transparent)]
    Output(#[from] FileError),
    /// The trace could not be written.
    #[error("{}: {source}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: TraceError,
    },
}

/// What an import did. Displays as a few lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ImportSummary {
    /// Accesses of the program, instruction fetches included.
    pub accesses: u64,
    /// Uses of pages that the trace has for them.
    pub uses: u64,
    /// Different pages.
    pub pages: u64,
    /// Mappings that were made up for them.
    pub mappings: u64,
    /// Bytes of the trace.
    pub bytes: u64,
}

impl fmt::Display for ImportSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "accesses  {}, kept as {} uses of pages in {} bytes",
            self.accesses, self.uses, self.bytes
        )?;
        writeln!(f, "memory    {} pages of 4 KiB in {} mappings", self.pages, self.mappings)
    }
}

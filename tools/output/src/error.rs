//! Why a file was not written.

use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a file was not written. Displays as one line.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// Nothing can be written there: what the caller named is wrong.
    #[error("{}: {source}", path.display())]
    Place {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It is a block device.
    #[error("{}: a block device, what is on it would be overwritten; name a file", path.display())]
    Block {
        /// The device.
        path: PathBuf,
    },
    /// Another file cannot take its name.
    #[error("{}: something is mounted on this file, it cannot be replaced; name another file", path.display())]
    Mount {
        /// The file.
        path: PathBuf,
    },
    /// No file can be made in the folder.
    #[error("{}: no file can be made in the folder {}: {source}", path.display(), folder.display())]
    Folder {
        /// The file.
        path: PathBuf,
        /// The folder in which it is made.
        folder: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// No file can be made in the folder for temporary files.
    #[error("no temporary file can be made in {}: {source}; TMPDIR names another folder", folder.display())]
    Temporary {
        /// The folder.
        folder: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// There is a file, and it is not of the kind that would be written: it is not replaced.
    #[error("{}: this file is no {kind}, it is left as it is; {hint}", path.display())]
    OtherFile {
        /// The file.
        path: PathBuf,
        /// What would have been written.
        kind: &'static str,
        /// What the caller can do.
        hint: &'static str,
    },
    /// The disk is full, or something else went wrong while it was written. What was there before is still
    /// there.
    #[error("{} was not written: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It was written, and could not get its name. What is at that name is as it was.
    #[error("{} was not written: {source}{}", path.display(), told(kept.as_deref()))]
    Name {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
        /// Where the complete file is; none if it could not be kept.
        kept: Option<PathBuf>,
    },
}

fn told(kept: Option<&Path>) -> String {
    kept.map_or_else(String::new, |kept| format!("; what was to be there is complete in {}", kept.display()))
}

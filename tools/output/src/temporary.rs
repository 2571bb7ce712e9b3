//! Files for the time of a command.

use crate::error::FileError;
use std::fs::File;

/// A file without a name, to read and to write, in the folder for temporary files. It is gone when the
/// process ends in any way.
///
/// # Errors
///
/// [`FileError::Temporary`], which names the folder.
pub fn temporary_file() -> Result<File, FileError> {
    tempfile::tempfile().map_err(|source| FileError::Temporary { folder: tempfile::env::temp_dir(), source })
}
